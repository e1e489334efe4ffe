"""The runs below a folder: which there are, how each stands, and which one a name stands for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from whet.errors import RunFailed, UserError
from whet.runs import layout, logs
from whet.runs.directory import RunDirectory
from whet.runs.experiment_directories import first_of_several, is_comparison, is_pipeline
from whet.runs.lock import is_held

MARK = "@"  # before a name that must be that of a run
LAST = f"{MARK}last"  # the newest
POLL_SECONDS = 0.5
NAMED = 8  # runs that an error names
ELSEWHERE = "give the path of the run, or its folder of runs as $WHET_RUNS (train, compare and demo: or --runs DIR)"

Status = Literal["finished", "stopped", "failed", "being written"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How a run stands."""

    status: Status
    step: int  # the last one that was logged
    error: str = ""  # of a run that failed


def runs_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The parent of new run directories: as given, else $WHET_RUNS, else runs."""
    return Path(root or os.environ.get("WHET_RUNS") or "runs").expanduser()


def find_run(text: str, root: Path) -> Path | None:
    """The directory that a text names: a path, `@last`, or the name of one run below `root` or a part of it.

    None if there is none; a UserError for a part of several names, or for `@part` of no name.
    """
    if not text.startswith(MARK) and Path(text).expanduser().is_dir():
        return Path(text).expanduser()
    part, matches = text.removeprefix(MARK), runs_called(text, root)
    if len(matches) > 1:
        names = ", ".join(str(path.relative_to(root)) for path in reversed(matches[-NAMED:]))
        raise UserError(f"{text!r} is in the names of {len(matches)} runs below {root}: {names}; give more of a name")
    if not matches and text.startswith(MARK):
        raise UserError(f"no run {text}: {known_runs(root)}; {ELSEWHERE}")
    return matches[0] if matches and part else None


def runs_called(text: str, root: Path) -> list[Path]:
    """For `@last` the newest experiment below a folder; else those, or runs inside of them, with this in their name.

    Those of exactly this name, with or without the time before it, come before those that only have it in theirs.
    """
    found, part = experiments(root), text.removeprefix(MARK)
    if text == LAST and found:
        return found[-1:]
    exact = [path for path in found if part in (path.name, layout.without_time(path))]
    if exact or (named := [path for path in found if part in path.name]):
        return exact or named
    below = runs_below(root)
    return [path for path in below if part == str(path.relative_to(root))] or [
        path for path in below if part in str(path.relative_to(root))
    ]


def known_runs(root: Path) -> str:
    """What is below a folder, newest first, for an error."""
    names, folder = [path.name for path in reversed(experiments(root)[-NAMED:])], root.absolute()
    return f"below {folder} there are {', '.join(names)}" if names else f"there are no runs below {folder}"


def runs_inside(folder: Path) -> str:
    """Which runs are in a folder that is none itself, newest first, for the end of an error; nothing if it has none."""
    names = [str(path) for path in reversed(experiments(folder)[-NAMED:])]
    return f"; name one of its runs: {', '.join(names)}" if names else ""


def experiments(root: Path) -> list[Path]:
    """Runs, pipelines and comparisons directly below a folder, oldest first."""
    ours = [path for path in _inside(root) if _is_run(path) or is_comparison(path) or first_of_several(path)]
    return sorted(ours, key=_last_started)


def runs_below(root: Path) -> list[Path]:
    """All runs below a folder, also those of pipelines and comparisons, oldest first."""
    return sorted(_runs(root), key=_last_started)


def started(run: Path) -> datetime:
    """When a run began, whether or not it was resumed: the time in its name, else that of its oldest file."""
    named = layout.time_of(run)
    if named is not None:
        return named
    # Not only config.yaml, which an extension writes again: the first evaluation is written once.
    files = [file for folder in (run, run / layout.EVALS) if folder.is_dir() for file in folder.iterdir()]
    return datetime.fromtimestamp(min(file.stat().st_mtime for file in files if file.is_file()))


def standing(run: RunDirectory, *, step: int | None = None) -> Standing:
    """Whether a run is finished or is being written; else how it ended. `step`: the last one, if it is known."""
    step = max((row["step"] for row in run.metrics()), default=0) if step is None else step
    if is_held(run.path / layout.LOCK):
        return Standing(status="being written", step=step)
    if run.finished:
        return Standing(status="finished", step=step)
    failure = failure_of(run.path)
    is_first = step == 0 == failure.get("step") and not run.metrics()  # the evaluation before training
    if failure.get("step") == step + 1 or is_first:  # else a later step was made after a repair
        return Standing(status="failed", step=step, error=str(failure.get("error", "")))
    return Standing(status="stopped", step=step)


def wait_for_writer(run: Path, seconds: float) -> None:
    """Waits until no process writes the run, so long at most: one that is being replaced may still be ending."""
    deadline = time.monotonic() + seconds
    while is_held(run / layout.LOCK) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _last_started(path: Path) -> float:
    """When a run was started, or last extended, in seconds since 1970."""
    config = path / layout.CONFIG
    try:
        return (config if config.is_file() else path).stat().st_mtime
    except OSError:  # it was removed meanwhile
        return 0.0


def _is_run(path: Path) -> bool:
    return (path / layout.CONFIG).is_file()


def _runs(folder: Path) -> Iterator[Path]:
    """Runs have no runs inside, but pipelines do."""
    waiting = [folder]
    while waiting:
        for path in _inside(waiting.pop()):
            if _is_run(path) and not is_pipeline(path):
                yield path
            elif path.is_dir() and not path.is_symlink():
                waiting.append(path)


def _inside(folder: Path) -> list[Path]:
    """What is in a folder and may be opened; nothing of a folder that may not, or that is being removed."""
    try:
        return sorted(path for path in folder.iterdir() if os.access(path, os.R_OK | os.X_OK))
    except OSError:
        return []


def newest_failure(run: Path) -> Path | None:
    """The file about the last failure of a run: what failed, on which example, with the traceback."""
    files = (run / layout.FAILURES).glob("*.json")
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


def failure_of(run: Path) -> dict[str, Any]:
    """What that file says; nothing if there is none, or it is damaged."""
    newest = newest_failure(run)
    try:
        return {} if newest is None else logs.read_json(newest)
    except RunFailed:
        return {}
