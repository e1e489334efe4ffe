"""Trackers: TensorBoard, Weights & Biases, MLflow and trackio. They are views; metrics.jsonl is the record."""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from whet.imports import optional_package
from whet.runs.layout import MLFLOW_ID, TENSORBOARD, WANDB_ID
from whet.runs.logs import write_atomic

DEFAULT_PROJECT = "whet"
COLUMNS = ("prompt", "text", "answer", "reward", "correct", "rule", "level", "finding")  # of rows that are shown
LONGEST = 500  # characters of a value of MLflow's parameters
MLFLOW_BATCH = 100  # parameters per request

Row = Mapping[str, Any]


class Tracker(Protocol):
    """What a run tells a tracker."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def show(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """Shows a few completions, or findings: of each row the keys of COLUMNS that it has."""
        ...

    def flush(self) -> None:
        """Makes logged values survive a kill."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Hides events of `first_step` and later from an earlier process."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory), purge_step=first_step, flush_secs=10)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def show(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """As text; values are indented, so that Markdown in them is not rendered."""
        known = [(key, row[key]) for row in rows for key in shown_columns([row])]
        parts = [f"**{key}**\n\n{_indented(str(value))}" for key, value in known]
        self._writer.add_text(name, "\n\n".join(parts), step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run per run directory, also when it is resumed."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Reads WANDB_PROJECT and WANDB_MODE."""
        self._wandb: Any = optional_package("wandb", "track: [wandb]")
        self._run: Any = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            mode=os.environ.get("WANDB_MODE") or None,
            id=_stable_id(run / WANDB_ID),
            resume="allow",
            name=run.name,
            dir=str(run),
            config=dict(config),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # After a resume W&B ignores known steps, whose values are the same.
        self._run.log(dict(metrics), step=step)

    def show(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """As a table."""
        columns = shown_columns(rows)
        data = [[row.get(key) for key in columns] for row in rows]
        self._run.log({name: self._wandb.Table(columns=columns, data=data)}, step=step)

    def flush(self) -> None:
        """Nothing to do: W&B writes in its own process."""

    def close(self) -> None:
        self._run.finish()


class Trackio(WeightsAndBiases):
    """One trackio run per run directory, by its name; trackio has W&B's interface."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Reads TRACKIO_PROJECT; trackio itself reads the other variables that begin with TRACKIO_."""
        self._wandb = optional_package("trackio", "track: [trackio]")
        project = os.environ.get("TRACKIO_PROJECT") or DEFAULT_PROJECT
        self._run = self._wandb.init(project=project, name=run.name, resume="allow", config=dict(config))


class MLflow:
    """One MLflow run per run directory; MLflow itself reads MLFLOW_TRACKING_URI and the other variables of its own."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Reads MLFLOW_EXPERIMENT_NAME."""
        self._mlflow: Any = optional_package("mlflow", "track: [mlflow]")
        file = run / MLFLOW_ID
        if file.exists():
            self._mlflow.start_run(run_id=file.read_text().strip())
            return
        self._mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT)
        started = self._mlflow.start_run(run_name=run.name)
        write_atomic(file, started.info.run_id.encode())
        flat = list(_flat(config))
        for start in range(0, len(flat), MLFLOW_BATCH):
            self._mlflow.log_params(dict(flat[start : start + MLFLOW_BATCH]))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # MLflow allows no @ in a name: eval/pass@4 is eval/pass_at_4.
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def show(self, step: int, name: str, rows: Sequence[Row]) -> None:
        """As a JSON artifact of the step."""
        table = [{key: row[key] for key in shown_columns([row])} for row in rows]
        self._mlflow.log_dict({"step": step, "rows": table}, f"{name}/step-{step:06}.json")

    def flush(self) -> None:
        """Nothing to do: every call is a request."""

    def close(self) -> None:
        self._mlflow.end_run()


def start_trackers(names: Sequence[str], run: Path, config: Mapping[str, Any], first_step: int) -> list[Tracker]:
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(run / TENSORBOARD, first_step),
        "wandb": lambda: WeightsAndBiases(run, config),
        "mlflow": lambda: MLflow(run, config),
        "trackio": lambda: Trackio(run, config),
    }
    return [makers[name]() for name in dict.fromkeys(names)]


def shown_columns(rows: Sequence[Row]) -> list[str]:
    """The columns that a row has a value for, in the order of COLUMNS."""
    return [key for key in COLUMNS if any(row.get(key) is not None for row in rows)]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def _flat(config: Mapping[str, Any], above: str = "") -> Any:
    """Dotted keys and short values, as MLflow's parameters take them."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(value)[:LONGEST]


def _stable_id(file: Path) -> str:
    if not file.exists():
        write_atomic(file, secrets.token_hex(4).encode())
    return file.read_text().strip()
