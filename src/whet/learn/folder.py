"""The learner's folder: copies of the stubs, and PROGRESS.md, which git ignores there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from whet.errors import UserError
from whet.learn.catalogue import EXERCISES, number_of
from whet.learn.exercise import Exercise

PROGRESS = "PROGRESS.md"
ROW = re.compile(r"^\| (\d+) \| ([\w-]+) \| (solved|begun) \| (\d+) \| (\d+) \|$", re.MULTILINE)
HEAD = "# Progress\n\n| number | exercise | state | checks | hints |\n|--:|---|---|--:|--:|\n"


@dataclass(frozen=True)
class Record:
    """What a learner did with one exercise."""

    state: str = "begun"  # or solved, which it stays
    checks: int = 0
    hints: int = 0


def file_of(folder: Path, exercise: Exercise) -> Path:
    """Where the learner's answer is."""
    return folder / f"{number_of(exercise):02d}_{exercise.name.replace('-', '_')}.py"


def start(folder: Path, exercise: Exercise) -> Path:
    """Copies the stub into the folder; a file that is there is never overwritten."""
    file = file_of(folder, exercise)
    if file.exists():
        raise UserError(f"{file} exists: `whet learn check` it, or move it away to begin anew")
    folder.mkdir(parents=True, exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text(f"{PROGRESS}\n", "utf-8")
    file.write_text(exercise.stub.read_text("utf-8"), "utf-8")
    if exercise.recipe and not (folder / exercise.recipe.name).exists():
        (folder / exercise.recipe.name).write_text(exercise.recipe.read_text("utf-8"), "utf-8")
    if exercise.name not in progress(folder):
        note(folder, exercise, Record())
    return file


def begun(folder: Path, exercise: Exercise) -> Path:
    """The learner's file, which must exist."""
    file = file_of(folder, exercise)
    if not file.is_file():
        raise UserError(f"no file {file}: `whet learn start {exercise.name}` makes it; --folder names another folder")
    return file


def progress(folder: Path) -> dict[str, Record]:
    """Exercise → record, from the table in PROGRESS.md; lines that are no rows of it are passed over."""
    try:
        text = (folder / PROGRESS).read_text("utf-8")
    except OSError:
        return {}
    return {name: Record(state, int(checks), int(hints)) for _, name, state, checks, hints in ROW.findall(text)}


def note(folder: Path, exercise: Exercise, record: Record) -> None:
    """Writes the record of an exercise; the others stay."""
    records = {**progress(folder), exercise.name: record}
    rows = [
        f"| {number} | {one.name} | {known.state} | {known.checks} | {known.hints} |\n"
        for number, one in enumerate(EXERCISES, 1)
        if (known := records.get(one.name))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRESS).write_text(HEAD + "".join(rows), "utf-8")


def checked(folder: Path, exercise: Exercise, *, solved: bool) -> None:
    """Counts a check; what was solved once stays solved."""
    record = progress(folder).get(exercise.name, Record())
    note(folder, exercise, replace(record, state="solved" if solved else record.state, checks=record.checks + 1))


def next_hint(folder: Path, exercise: Exercise) -> tuple[int, str]:
    """The number of the next hint and its text; after the last one, the last one again."""
    record = progress(folder).get(exercise.name, Record())
    number = min(record.hints + 1, len(exercise.hints))
    note(folder, exercise, replace(record, hints=number))
    return number, exercise.hints[number - 1]
