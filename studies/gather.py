"""Takes from finished runs what is committed of a study: numbers and pictures, and never a text of the data.

    python studies/gather.py runs/20260101-120000-hh runs/20260102-120000-hh --to studies/hh/results

A pipeline, or a run by itself, goes into the folder of its seed: seed-N/comparison holds the numbers of the contest,
seed-N/runs.json the first and last evaluation of every run, its seconds, and the analysis of a reward model. Pictures
are taken of the lowest seed in the folder of results: `whet report seed-N/comparison` draws them for any other.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.recipe import parse_yaml
from whet.runs import layout, logs
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import ComparisonDirectory, PipelineDirectory, is_pipeline, portable

RUNS = "runs.json"
KEPT = ("ended", "rows", "select", "best", "versions")  # of the results of a run, where it has them
MACHINE = ("device", "threads", "processes")  # what its speed depends on
MODELS, PATHS = ("start", "reward", "judge"), ("proxy_path", "judge_path")  # where a contest names directories
BY_ROW = ("margins", "worst")  # of an analysis: they speak of single rows of the data


def gather(sources: Sequence[Path], to: Path) -> list[Path]:
    """Copies what is committed of each source; returns the folders of their seeds, the lowest first."""
    named: dict[tuple[int, str], Path] = {}
    for source in sources:
        key = _seed_and_name(source)
        if key in named:
            raise UserError(f"{source}: seed {key[0]} of {key[1]} comes twice; name every seed once")
        named[key] = source
    lowest = min([seed for seed, _ in named] + list(seed_folders(to)))
    for (seed, name), source in sorted(named.items()):
        folder = to / f"{layout.SEED}{seed}"
        if is_pipeline(source):
            _take_pipeline(PipelineDirectory.open(source), folder, with_pictures=seed == lowest)
        else:
            _take_run(RunDirectory.open(source, is_writer=False), name, folder, with_pictures=seed == lowest)
    return [to / f"{layout.SEED}{seed}" for seed in sorted({seed for seed, _ in named})]


def seed_folders(path: Path) -> dict[int, Path]:
    """Seed → its folder, the lowest first."""
    entries = list(path.iterdir()) if path.is_dir() else []
    found = {entry: re.fullmatch(rf"{layout.SEED}(\d+)", entry.name) for entry in entries}
    return dict(sorted((int(match[1]), entry) for entry, match in found.items() if match))


def entry(run: RunDirectory) -> dict[str, Any]:
    """What runs.json says of a run: the evaluations at its ends, seconds, and where a reward model is right."""
    results = _results(run)
    timings, last = run.timings(), run.metrics()[-1]["step"]
    ends = {"before": 0, "after": last}
    analysis = run.path / layout.ANALYSIS
    return {
        **{end: {"step": step, **results[end]} for end, step in ends.items() if end in results},
        "seconds_of_steps": math.fsum(row["seconds/step"] for row in timings),
        "seconds_of_evaluations": math.fsum(row.get("seconds/eval", 0.0) for row in timings),
        **{key: results[key] for key in KEPT if key in results},
        **({"machine": {key: results["machine"][key] for key in MACHINE}} if "machine" in results else {}),
        **({"analysis": without_texts(logs.read_json(analysis))} if analysis.is_file() else {}),
    }


def without_texts(analysis: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an analysis that are about all rows; a part with any text in it repeats the data."""
    return {key: value for key, value in analysis.items() if key not in BY_ROW and not _has_text(value)}


def without_places(results: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a contest with `@stage` where they name directories of one machine."""
    settings = {key: _placeless(value) if key in MODELS else value for key, value in results["settings"].items()}
    return {**results, **{key: _placeless(results[key]) for key in PATHS}, "settings": settings}


def _placeless(path: str | None) -> str | None:
    """`@stage`, or of another directory its name."""
    stage = portable(path) if path else path
    return Path(stage).name if stage and not stage.startswith("@") else stage


def _results(run: RunDirectory) -> dict[str, Any]:
    results = run.results()
    if results is None:
        raise UserError(f"{run.path} is not finished; go on with: whet train {run.path} --resume")
    return results


def _seed_and_name(source: Path) -> tuple[int, str]:
    if not is_pipeline(source):
        run = RunDirectory.open(source, is_writer=False)
        return int(_results(run)["seed"]), run.recipe
    results = ComparisonDirectory(PipelineDirectory.open(source).comparison_path).results()
    return int(results["seed"]), str(results["title"])


def _take_run(run: RunDirectory, name: str, folder: Path, *, with_pictures: bool) -> None:
    """A run by itself joins those that are there already."""
    known = logs.read_json(folder / RUNS) if (folder / RUNS).is_file() else {}
    _write_json(folder / RUNS, {**known, name: entry(run)})
    _take_picture(run, folder / f"{name}.png", wanted=with_pictures)


def _take_pipeline(pipeline: PipelineDirectory, folder: Path, *, with_pictures: bool) -> None:
    compared = ComparisonDirectory(pipeline.comparison_path)
    target = ComparisonDirectory(folder / pipeline.comparison_path.name)
    results = compared.results()
    _write_json(target.results_path, without_places(results))
    finished = {
        str(path.relative_to(pipeline.path)): RunDirectory.open(path, is_writer=False)
        for path in (*_stages(pipeline), *_methods(pipeline, results))
    }
    _write_json(folder / RUNS, {place: entry(run) for place, run in finished.items()})
    for place, run in finished.items():
        _take_picture(run, folder / f"{Path(place).name}.png", wanted=with_pictures)
    if with_pictures:
        for path in (compared.table_path, *sorted(compared.path.glob("*.png"))):
            shutil.copyfile(path, target.path / path.name)


def _stages(pipeline: PipelineDirectory) -> list[Path]:
    """In the order in which they build on each other."""
    written = parse_yaml(pipeline.config_yaml(), where=str(pipeline.path))
    return [pipeline.stage_path(name) for name in written["stages"]]


def _methods(pipeline: PipelineDirectory, results: Mapping[str, Any]) -> list[Path]:
    """The runs that were compared: those that failed have nothing to show."""
    return [
        pipeline.method_path(method["method"], seed["seed"])
        for method in results["methods"]
        for seed in method["seeds"]
        if seed["failure"] is None
    ]


def _take_picture(run: RunDirectory, target: Path, *, wanted: bool) -> None:
    picture = run.path / layout.ANALYSIS_PICTURE
    if wanted and picture.is_file():
        shutil.copyfile(picture, target)


def _has_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logs.write_atomic(path, logs.json_bytes(values, indent=1) + b"\n")


def main(arguments: Sequence[str]) -> None:
    """Reads the command line and says what was written."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", metavar="RUN", nargs="+", type=Path, help="directories of pipelines, or of runs")
    parser.add_argument("--to", required=True, type=Path, help="the folder of results, e.g. studies/hh/results")
    wanted = parser.parse_args(arguments)
    for folder in gather(wanted.sources, wanted.to):
        sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
