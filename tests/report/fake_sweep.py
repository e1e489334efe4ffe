"""ComparisonView directories that look like real ones: made with the real `Run`, from given values."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.evaluate.statistics import wilson
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory

MACHINE = {"device": "cpu", "threads": 2}
VERSIONS = {"whet": "0.1.0"}


def write_run(
    path: Path,
    values: Sequence[float],
    *,
    metric: str = "eval/accuracy",
    every: int = 10,
    examples: int = 200,
    seconds: float = 0.5,
    finished: bool = True,
    machine: Mapping[str, object] = MACHINE,
) -> None:
    """A run with this held-out metric at steps 0, every, 2·every, …; every step takes `seconds`."""
    steps = every * (len(values) - 1)
    with RunDirectory.create(path.parent, "fake", f"loop: online\nsteps: {steps}\n", path=path) as run:
        for step in range(steps + 1):
            metrics = {} if step == 0 else {"reward/mean": 0.1}
            if step % every == 0:
                metrics |= _evaluate(run, step, metric, values[step // every], examples)
            run.log(step, metrics)
            if step:
                run.log_times(step, {"seconds/step": seconds, "seconds/eval": 100.0})
        if finished:
            ends = [_measured(metric, value, examples) for value in (values[0], values[-1])]
            numbers = {"steps": steps, "seed": 0, "seconds": seconds * steps, "best": {"step": steps}}
            about = {"recipe": "fake", "loop": "online", "machine": machine, "versions": VERSIONS}
            run.finish({"before": ends[0], "after": ends[1], **numbers, **about})


def comparison(path: Path, curves: Mapping[str, Sequence[Sequence[float]]], **options: object) -> ComparisonDirectory:
    """Method → one curve per seed 0, 1, …; an empty curve leaves the run out."""
    directory = ComparisonDirectory.open(path)
    for method, seeds in curves.items():
        for seed, values in enumerate(seeds):
            if values:
                write_run(directory.run_path(method, seed), values, **options)  # type: ignore[arg-type]
    return directory


def _evaluate(run: RunDirectory, step: int, metric: str, value: float, examples: int) -> dict[str, float]:
    right = round(value * examples) if metric == "eval/accuracy" else None
    row = {"prompt": "1+1", "answer": "2", "text": "2", "tokens": 2, "finish": "stop"}
    greedy = [
        {"id": str(i), **row, "correct": None if right is None else i < right, "sample": 0} for i in range(examples)
    ]
    sampled = [{"id": str(i), **row, "correct": True, "sample": 1} for i in range(examples)]
    run.record_answers(step, [*greedy, *sampled])
    return _measured(metric, value, examples)


def _measured(metric: str, value: float, examples: int) -> dict[str, float]:
    """Of a reward a standard error of 0.1, whose t interval over 200 examples is ± 0.1972; of a loss no interval."""
    if metric == "eval/loss":
        return {metric: value}
    low, high = value - 0.1971957, value + 0.1971957
    if metric == "eval/accuracy":
        interval = wilson(round(value * examples), examples)
        low, high = interval.low, interval.high
    return {metric: value, f"{metric}_low": low, f"{metric}_high": high}
