"""ComparisonView directories that look like real ones: made with the real `Run`, from given accuracies."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.evaluate.statistics import wilson
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory

MACHINE = {"device": "cpu", "threads": 2}
VERSIONS = {"whet": "0.1.0"}


def write_run(
    path: Path,
    accuracies: Sequence[float],
    *,
    every: int = 10,
    examples: int = 200,
    seconds: float = 0.5,
    finished: bool = True,
    machine: Mapping[str, object] = MACHINE,
) -> None:
    """A run with this held-out accuracy at steps 0, every, 2·every, …; every step takes `seconds`."""
    steps = every * (len(accuracies) - 1)
    with RunDirectory.create(path.parent, "fake", f"loop: online\nsteps: {steps}\n", path=path) as run:
        for step in range(steps + 1):
            metrics = {} if step == 0 else {"reward/mean": 0.1}
            if step % every == 0:
                metrics |= _evaluate(run, step, accuracies[step // every], examples)
            run.log(step, metrics)
            if step:
                run.log_times(step, {"seconds/step": seconds, "seconds/eval": 100.0})
        if finished:
            ends = [{"eval/accuracy": value} for value in (accuracies[0], accuracies[-1])]
            numbers = {"steps": steps, "seed": 0, "seconds": seconds * steps, "best": {"step": steps}}
            about = {"recipe": "fake", "loop": "online", "machine": machine, "versions": VERSIONS}
            run.finish({"before": ends[0], "after": ends[1], **numbers, **about})


def comparison(path: Path, curves: Mapping[str, Sequence[Sequence[float]]], **options: object) -> ComparisonDirectory:
    """Method → one curve per seed 0, 1, …; an empty curve leaves the run out."""
    directory = ComparisonDirectory.open(path)
    for method, seeds in curves.items():
        for seed, accuracies in enumerate(seeds):
            if accuracies:
                write_run(directory.run_path(method, seed), accuracies, **options)  # type: ignore[arg-type]
    return directory


def _evaluate(run: RunDirectory, step: int, accuracy: float, examples: int) -> dict[str, float]:
    right = round(accuracy * examples)
    row = {"prompt": "1+1", "answer": "2", "text": "2", "tokens": 2, "finish": "stop"}
    greedy = [{"id": str(i), **row, "correct": i < right, "sample": 0} for i in range(examples)]
    sampled = [{"id": str(i), **row, "correct": True, "sample": 1} for i in range(examples)]
    run.record_answers(step, [*greedy, *sampled])
    interval = wilson(right, examples)
    return {
        "eval/accuracy": accuracy,
        "eval/accuracy_low": interval.low,
        "eval/accuracy_high": interval.high,
    }
