"""A run from Python: config, metrics, rollouts, model. Everything is read from its directory."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import UserError, nearest
from whet.evaluate.measures import main_result
from whet.imports import passing
from whet.recipe import parse_yaml
from whet.report.run.page import write_report
from whet.runs.directory import RunDirectory

if TYPE_CHECKING:
    from whet.api.loaded_model import Model
    from whet.evaluate.evaluation import Evaluation


class Metrics(list[dict[str, Any]]):
    """A list of rows, one per step; indexed by a metric's name, its column, None where a row has no value."""

    @property
    def names(self) -> list[str]:
        """All metrics, in order of first appearance."""
        return list(dict.fromkeys(name for row in self for name in row))

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            known = ", ".join(self.names) or "none"
            raise UserError(f"no metric {key!r}{nearest(key, self.names)} (there are: {known})")
        return [row.get(key) for row in self]


class Run:
    """The directory of a run, finished or not. `whet.train` returns one; `whet.Run(path)` opens one."""

    def __init__(self, path: str | os.PathLike[str], *, objects: Mapping[str, object] | None = None) -> None:
        """`objects`: those that the run was trained with, by name; a task among them is needed to evaluate."""
        self.path = Path(path).expanduser()
        self._objects = dict(objects or {})
        self._directory = RunDirectory.open(self.path, is_writer=False)

    def __fspath__(self) -> str:
        """A run can be passed as a path: `model=run` starts from its best model."""
        return str(self.path)

    @property
    def finished(self) -> bool:
        """False for a stopped run, which `whet.train(resume=run)` continues."""
        return self._directory.finished

    @property
    def config(self) -> dict[str, Any]:
        """The recipe, with defaults."""
        return parse_yaml(self._directory.config_yaml(), where=str(self.path))

    @property
    def metrics(self) -> Metrics:
        """Metrics of every step: `run.metrics[-1]`, `run.metrics["reward/mean"]`."""
        return Metrics(self._directory.metrics())

    @property
    def results(self) -> dict[str, Any] | None:
        """Final results; None for a run that is not finished."""
        return self._directory.results()

    def rollouts(self, step: int | None = None) -> list[dict[str, Any]]:
        """Rollouts of a step; by default, of the last step that recorded any."""
        steps = self._directory.rollout_steps()
        if step is None and not steps:
            raise UserError(f"run {self.path} has recorded no rollouts")
        return self._directory.rollouts(steps[-1] if step is None else step)

    def load(self, **settings: Any) -> Model:
        """The best model of the run; see `whet.load`."""
        from whet.api.loaded_model import load

        with passing(self._objects):
            return load(self, **settings)

    def sample(
        self, prompt: str | int = 3, *, n: int = 4, seed: int = 0, raw: bool = False, **sampling: Any
    ) -> list[dict[str, Any]]:
        """`n` completions of a prompt, or of this many held-out examples of the run's task, which grades them."""
        from whet.api.loaded_model import choose_sampling, find_task
        from whet.api.model_limits import chosen_limit

        model = self.load()
        settings = choose_sampling(model.target.config, sampling)
        limit = chosen_limit(model.target.config, sampling.get("max_tokens"))
        if isinstance(prompt, str):
            return model.rows(prompt, settings, limit=limit, n=n, seed=seed, raw=raw)
        with passing(self._objects):
            task, _, _ = find_task(model.target, None, {})
            return model.task_rows(task, prompt, settings, limit=limit, n=n, seed=seed)

    def evaluate(self, task: Any = None, **settings: Any) -> Evaluation:
        """Held-out accuracy and, with samples, pass@k of the best model; see `whet.evaluate`."""
        from whet.api.loaded_model import evaluate

        with passing(self._objects):
            return evaluate(self, task, **settings)

    def report(self) -> Path:
        """Writes the HTML report (curves, health checks, samples); returns its path."""
        return write_report(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self._summary()})"

    def _repr_html_(self) -> str:
        """For notebooks: the result, and the curves if a report was written."""
        text = f"<p><b>{html.escape(str(self.path))}</b><br>{html.escape(self._summary())}</p>"
        if not self._directory.curves_path.is_file():
            return text
        picture = base64.b64encode(self._directory.curves_path.read_bytes()).decode()
        return f'{text}<img alt="training curves" style="max-width: 100%" src="data:image/png;base64,{picture}">'

    def _summary(self) -> str:
        rows, results = self._directory.metrics(), self._directory.results() if self.finished else None
        done = max((row["step"] for row in rows), default=0)
        text = f"{done} of {self.config['steps']} steps{'' if self.finished else ', not finished'}"
        return ", ".join(filter(None, (text, main_result(rows, results))))
