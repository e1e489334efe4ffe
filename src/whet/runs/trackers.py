"""Trackers: TensorBoard and Weights & Biases. They are views; metrics.jsonl is the record."""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.runs.layout import TENSORBOARD, WANDB_ID
from whet.runs.logs import write_atomic

DEFAULT_PROJECT = "whet"


class TensorBoard:
    """Event files in a directory."""

    def __init__(self, directory: Path, first_step: int) -> None:
        """Hides events of `first_step` and later from an earlier process."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory), purge_step=first_step, flush_secs=10)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Makes logged values survive a kill."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run per run directory, also when it is resumed."""

    def __init__(self, run: Path, config: Mapping[str, Any]) -> None:
        """Reads WANDB_PROJECT and WANDB_MODE."""
        try:
            import wandb
        except ImportError as error:
            raise UserError("tracker wandb: the package is not installed; pip install wandb") from error
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            mode=os.environ.get("WANDB_MODE") or None,  # type: ignore[arg-type,unused-ignore]  # wandb checks it
            id=_stable_id(run / WANDB_ID),
            resume="allow",
            name=run.name,
            dir=str(run),
            config=dict(config),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # After a resume W&B ignores known steps, whose values are the same.
        self._run.log(dict(metrics), step=step)

    def flush(self) -> None:
        """Nothing to do: W&B writes in its own process."""

    def close(self) -> None:
        self._run.finish()


Tracker = TensorBoard | WeightsAndBiases


def start_trackers(names: Sequence[str], run: Path, config: Mapping[str, Any], first_step: int) -> list[Tracker]:
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(run / TENSORBOARD, first_step),
        "wandb": lambda: WeightsAndBiases(run, config),
    }
    return [makers[name]() for name in dict.fromkeys(names)]


def _stable_id(file: Path) -> str:
    if not file.exists():
        write_atomic(file, secrets.token_hex(4).encode())
    return file.read_text().strip()
