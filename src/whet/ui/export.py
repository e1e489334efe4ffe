"""`whet ui --export`: the page with the answers about some runs, as files that need no server.

Answers are scripts, because a page from file:// may not fetch. What does not fit the limit is left out, and told.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from whet.errors import RunFailed, UserError
from whet.runs import layout
from whet.runs.catalogue import runs_below, runs_inside
from whet.runs.experiment_directories import first_of_several, is_comparison, is_pipeline
from whet.runs.logs import json_bytes, reason
from whet.runs.rollout_files import RolloutFiles
from whet.ui.answers.files import found_file
from whet.ui.answers.listing import entries_of
from whet.ui.answers.one_rollout import told
from whet.ui.answers.query import Query
from whet.ui.answers.questions import QUESTIONS
from whet.ui.answers.rollouts import Columns
from whet.ui.answers.sources import Sources
from whet.ui.answers.standings import UNREADABLE, said
from whet.ui.library import Library

PAGE = Path(__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
# Before a copied report, whose own scripts then do not run, whoever wrote it.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
QUIET = f'<!doctype html><meta http-equiv="Content-Security-Policy" content="{REPORT_POLICY}">'.encode()
EVALUATIONS = 12  # of which answers are kept
ANSWERS = 500  # of one evaluation
MEGABYTE = 1_000_000


@dataclass
class Export:
    """A directory that is being filled."""

    target: Path
    here: str  # the folder of the runs on this machine, which the export does not name
    files: dict[str, str] = field(default_factory=dict)  # key of an answer → file
    rollouts: dict[str, dict[int, str]] = field(default_factory=dict)  # run → step → file
    copied: dict[str, str] = field(default_factory=dict)  # directory/file of a report → file
    left_out: list[str] = field(default_factory=list)
    size: int = 0  # bytes of its data

    def answer(self, question: str, parameters: Mapping[str, str], found: Mapping[str, Any]) -> None:
        key = _key(question, parameters)
        self.files[key] = self.write("data", ".js", self.elsewhere(_script("answered", key, found)))

    def elsewhere(self, script: bytes) -> bytes:
        """A script whose messages name files below the folder of the runs alone."""
        return script.replace(json_bytes(self.here)[1:-1], b"") if len(self.here) > 1 else script

    def write(self, folder: str, ending: str, data: bytes) -> str:
        """Writes a numbered file; returns its path in the export."""
        directory = self.target / folder
        directory.mkdir(exist_ok=True)
        name = f"{folder}/{len(list(directory.iterdir())) + 1:06}{ending}"
        (self.target / name).write_bytes(data)
        self.size += len(data)
        return name


def export(runs: Sequence[Path], target: Path, *, megabytes: float) -> Export:
    """Writes the page about these runs, pipelines and comparisons; `megabytes` of rollouts of each run at most."""
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file; choose a directory for the export")
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} is not empty; choose another directory for the export")
    library, paths = _common(runs)
    sources, made = Sources(library), Export(target, f"{library.folder}/")
    try:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copytree(PAGE / "js", target / "page" / "js")
        shutil.copytree(PAGE / "css", target / "page" / "css")
        shutil.copy(PAGE / "icon.svg", target / "page")
        entries = entries_of(sources, paths, [run for path in paths for run in runs_below(path) or [path]])
        made.answer("runs", {}, {"folder": "an export", "alone": "", "entries": entries[::-1], "problems": []})
        for entry in entries:
            _one(made, sources, entry, megabytes * MEGABYTE)
        contents = {name: getattr(made, name) for name in ("files", "rollouts", "copied", "left_out")}
        (target / "contents.js").write_bytes(made.elsewhere(_script("exported", contents)))
        (target / "index.html").write_text(_index(), encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"cannot write the export {target}: {reason(error)}") from error
    return made


def _common(runs: Sequence[Path]) -> tuple[Library, list[Path]]:
    """A library that holds all of them, and where they are."""
    paths = list(dict.fromkeys(path.resolve() for path in runs))
    for path in paths:
        checks = (is_pipeline, is_comparison, first_of_several, lambda one: (one / layout.CONFIG).is_file())
        if not any(check(path) for check in checks):
            raise UserError(f"{path} is neither a run nor a pipeline nor a comparison{runs_inside(path)}")
    above = paths[0].parent
    while not all(path.is_relative_to(above) and path != above for path in paths):
        above = above.parent
    return Library(above), paths


def _one(made: Export, sources: Sources, entry: Mapping[str, Any], limit: float) -> None:
    name = entry["name"]
    try:
        if entry["kind"] == "run":
            _run(made, sources, name, limit)
        else:
            found = _asked(made, sources, "experiment", {"in": name})
            _copy(made, sources, found.get("page"))
    except UNREADABLE as error:
        made.left_out.append(f"{name}: {said(error)}")


def _run(made: Export, sources: Sources, name: str, limit: float) -> None:
    about = QUESTIONS["run"](sources, Query({"run": name})) | {"path": name}  # nothing of this machine's directories
    made.answer("run", {"run": name}, about)
    for log in ("metrics", "timings"):
        _asked(made, sources, "curves", {"log": log, "run": name})
    _asked(made, sources, "meanings", {"run": name})
    diagnosis = _asked(made, sources, "doctor", {"run": name})
    for file in about["files"].values():
        _copy(made, sources, {"in": name, "file": file})
    _answers(made, sources, name, about["answer_steps"])
    shown = {seen["rollout"][0] for one in diagnosis.get("findings", ()) for seen in one["evidence"] if seen["rollout"]}
    _rollouts(made, sources.rollouts(sources.library.run(name)), name, shown, limit)


def _asked(made: Export, sources: Sources, question: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Asks and keeps the answer; one that cannot be given is told."""
    try:
        found = QUESTIONS[question](sources, Query(parameters))
    except UNREADABLE as error:
        made.left_out.append(f"{parameters.get('run', parameters.get('in'))}, {question}: {said(error)}")
        return {}
    made.answer(question, parameters, found)
    return found


def _copy(made: Export, sources: Sources, place: Mapping[str, str] | None) -> None:
    """A report or picture, as it is."""
    if place is None:
        return
    path = found_file(sources, Query(place))
    start = QUIET if path.suffix == ".html" else b""
    made.copied[f"{place['in']}/{place['file']}"] = made.write("copied", path.suffix, start + path.read_bytes())


def _answers(made: Export, sources: Sources, name: str, steps: Sequence[int]) -> None:
    kept = list(spread(steps, EVALUATIONS))
    if len(kept) < len(steps):
        made.left_out.append(f"{name}: the held-out answers of {len(steps) - len(kept)} of {len(steps)} evaluations")
    for step in kept:
        found = QUESTIONS["held_out"](sources, Query({"run": name, "step": str(step)}))
        told_of = {**found, "steps": kept, "answers": found["answers"][:ANSWERS]}
        made.answer("held_out", {"run": name, "step": str(step)}, told_of)
        if step == steps[-1]:
            made.answer("held_out", {"run": name}, told_of)
        if len(found["answers"]) > ANSWERS:
            made.left_out.append(f"{name}: all but {ANSWERS} of the held-out answers of step {step}")


def _rollouts(made: Export, files: RolloutFiles, name: str, shown: set[int], limit: float) -> None:
    """Whole steps as far as the limit goes: those of findings first, then the last, the first, and those between."""
    steps = files.steps()
    columns, used = Columns(), 0
    kept: list[int] = []
    chunks: dict[int, str] = {}
    for step in by_importance(steps, shown):
        calls = [
            _script("rolledOut", name, {"step": step, "group": group, "number": number, **told(row)})
            for (group, number), row in files.placed_rows(step)
        ]
        size = sum(map(len, calls))
        if used + size > limit and kept:
            break
        used += size
        kept.append(step)
        chunks[step] = made.write("rollouts", ".js", b"".join(calls))
    for step in sorted(kept, reverse=True):
        for one in files.summaries(step):
            columns.add(one)
    missing = len(steps) - len(kept)
    left_out = [f"the rollouts of {missing} of {len(steps)} steps were left out of this export"] if missing else []
    made.left_out += [f"{name}: {one}" for one in (*left_out, *files.problems())]
    made.rollouts[name] = chunks
    made.answer(
        "rollouts", {"run": name}, {**columns.answer(), "next": None, "problems": [*left_out, *files.problems()]}
    )


def by_importance(steps: Sequence[int], shown: set[int]) -> list[int]:
    """Steps of findings, the last and the first one, then always those in the middle of what is left."""
    order = [step for step in steps if step in shown] + list(steps[-1:]) + list(steps[:1])
    ranges = [(0, len(steps) - 1)]
    for low, high in ranges:
        if high - low > 1:
            middle = (low + high) // 2
            order.append(steps[middle])
            ranges += [(low, middle), (middle, high)]
    return list(dict.fromkeys(order))


def spread(steps: Sequence[int], count: int) -> Iterator[int]:
    """At most `count` of them, the first and the last included."""
    if len(steps) <= count:
        yield from steps
    else:
        yield from sorted({steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)})


def _key(question: str, parameters: Mapping[str, str]) -> str:
    """As the page makes it: js/answers.js."""
    return f"{question}?{urlencode(sorted(parameters.items()))}" if parameters else question


def _script(function: str, *values: object) -> bytes:
    return b"%b(%b);\n" % (function.encode(), b", ".join(json_bytes(value) for value in values))


def _index() -> str:
    page = (PAGE / "index.html").read_text("utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    page = page.replace('<meta charset="utf-8">\n', f'<meta charset="utf-8">\n{policy}')
    scripts = '<script src="page/js/bundle.js"></script>\n<script src="contents.js"></script>\n'
    return page.replace('<script src="page/js/charts.js">', f'{scripts}<script src="page/js/charts.js">')
