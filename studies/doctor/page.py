"""docs/doctor.md: the prose of a template, the rules and causes of the code, and the verdicts in `results`.

`python -m studies.doctor.page docs/doctor.template.md docs/doctor.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pages.markdown import header, row_line
from studies.doctor.cases import Fault, Part
from studies.doctor.judge import PARTS, RESTORED, Repair, Verdict, repair_summary, summary
from studies.doctor.training import FAULTS, HEALTHY
from whet.doctor.causes import CAUSES
from whet.doctor.rules.all_rules import RULES
from whet.doctor.settings import Settings
from whet.errors import UserError
from whet.number_format import percent

RESULTS = Path(__file__).resolve().parent / "verdicts"
NOTICE = (
    "<!-- Written by `make docs` from doctor.template.md, the rules and studies/doctor/verdicts. Change those. -->\n"
)
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)
NONE = "–"
PART_NAMES: Mapping[Part, str] = {
    "fit": "to fit thresholds",
    "develop": "known while rules were written",
    "measure": "only measured",
}
KINDS = {"online": "online", "sft": "SFT", "preference": "preferences", "reward": "reward models"}

Lines = Iterator[str]


class Results:
    """The committed verdicts of whet's doctor and of the others."""

    def __init__(self, folder: Path) -> None:
        whet, rivals = (json.loads((folder / name).read_text("utf-8")) for name in ("whet.json", "rivals.json"))
        self.whet = [_verdict(row) for row in whet["runs"]]
        self.repairs = [_repair(row) for row in whet["repairs"]]
        self.rivals = {name: [_verdict(row) for row in rows] for name, rows in rivals.items()}


def _verdict(row: Mapping[str, Any]) -> Verdict:
    kept = {key: row[key] for key in Verdict.__dataclass_fields__}
    return Verdict(**{**kept, "alarms": tuple(row["alarms"]), "causes": tuple(row["causes"])})


def _repair(row: Mapping[str, Any]) -> Repair:
    return Repair(**{**row, "changes": tuple(row["changes"])})


def render(template: str, results: Results) -> str:
    """The page: every marked line of the template gives way to a table."""
    marked = set(MARK.findall(template))
    if marked != set(TABLES):
        raise UserError(f"the template marks {sorted(marked)}, and there are tables {sorted(TABLES)}")
    return NOTICE + MARK.sub(lambda mark: "\n".join(TABLES[mark[1]](results)), template)


def _doctors(results: Results, part: Part) -> Lines:
    """A part of the study: this doctor and the others."""
    doctors: Mapping[str, Sequence[Verdict]] = {"`whet doctor`": results.whet, **results.rivals}
    yield from header(
        "doctor",
        "detected",
        "right cause first",
        "among the first two",
        "median of the run until warned",
        "healthy runs",
    )
    for name, verdicts in doctors.items():
        found = summary(one for one in verdicts if one.part == part)
        median = found["median share"]
        warned = found["warned"]
        yield row_line(
            name,
            *(_share(found[key]) for key in ("detected", "first", "first two")),
            NONE if median is None else percent(median),
            NONE if warned is None else f"{warned['count']} of {found['healthy runs']} warned",
        )


def _share(found: Mapping[str, float] | None) -> str:
    if found is None:
        return NONE
    return f"{percent(found['value'])} ({percent(found['low'])} to {percent(found['high'])})"


def _counts(results: Results) -> Lines:
    """How many runs the tables are made of."""
    yield from header("runs", "faults", "faulty runs", "healthy cases", "healthy runs")
    for part in PARTS:
        own = [one for one in results.whet if one.part == part]
        yield row_line(
            PART_NAMES[part],
            *(
                str(len(some))
                for faulty in (True, False)
                for some in (
                    {one.case for one in own if one.faulty == faulty},
                    [one for one in own if one.faulty == faulty],
                )
            ),
        )


def _repaired(results: Results) -> Lines:
    """What became of the advice."""
    yield from header(
        "runs", "harmed by the fault", "advice tried", f"restored to {percent(RESTORED)} of the healthy result"
    )
    for part in PARTS:
        found = repair_summary(one for one in results.repairs if one.part == part)
        words = PART_NAMES[part]
        yield row_line(words, str(found["hurt"]), str(found["tried"]), _share(found["restored"]))


def _faults(results: Results) -> Lines:
    """A line for every fault."""
    yield from header("fault", "in", "part", "detected", "cause", "first two", "warned at", "restored")
    for fault in FAULTS:
        verdicts = [one for one in results.whet if one.case == fault.name]
        if not verdicts:
            continue
        shares = [one.share for one in verdicts if one.share is not None]
        repairs = [one for one in results.repairs if one.case == fault.name and one.restored is not None]
        hurt = [one for one in repairs if one.lost is None or one.lost < RESTORED]
        yield row_line(
            fault.what,
            fault.base,
            fault.part,
            _of(one.is_warned for one in verdicts),
            " or ".join(f"`{cause}`" for cause in fault.causes),
            _of(one.rank is not None and one.rank <= 2 for one in verdicts),
            percent(statistics.median(shares)) if shares else NONE,
            _restored(fault, hurt),
        )


def _restored(fault: Fault, hurt: Sequence[Repair]) -> str:
    if not fault.repair:
        return "no key"
    return _of((one.restored or 0.0) >= RESTORED for one in hurt) if hurt else "no harm"


def _of(outcomes: Iterable[bool]) -> str:
    every = list(outcomes)
    return f"{sum(every)} of {len(every)}"


def _false_alarms(results: Results) -> Lines:
    """The healthy runs with a warning."""
    warned = [one for one in results.whet if not one.faulty and one.alarms]
    if not warned:
        yield "No healthy run has a warning."
        return
    yield from header("healthy run", "part", "alarms")
    for one in warned:
        yield row_line(f"{one.case}, seed {one.seed}", one.part, ", ".join(f"`{rule}`" for rule in one.alarms))


def _healthy(_: Results) -> Lines:
    """What the healthy cases are."""
    yield from header("part", "healthy cases")
    for part in PARTS:
        names = (case.name for case in HEALTHY if case.part == part)
        yield row_line(PART_NAMES[part], ", ".join(f"`{name}`" for name in names))


def _rules(_: Results) -> Lines:
    """The symptoms that are looked for."""
    yield from header("finding", "symptom", "reads", "of")
    for rule in RULES:
        yield row_line(
            ", ".join(f"`{name}`" for name in rule.names),
            rule.symptom,
            ", ".join(f"`{name}`" for name in rule.reads) or NONE,
            "all runs" if len(rule.kinds) == len(KINDS) else ", ".join(KINDS[kind] for kind in rule.kinds),
        )


def _causes(_: Results) -> Lines:
    """The causes, and the keys that their advice changes in a run where it can."""
    yield from header("cause", "in words", "keys that the advice changes")
    for name, cause in CAUSES.items():
        keys = dict.fromkeys(change.key for settings in SETTINGS for change in cause.changes(settings))
        yield row_line(
            f"`{name}`", cause.sentence, ", ".join(f"`{key}`" for key in keys) or "none: it is not in the recipe"
        )


# Recipes in which causes have something to change.
SETTINGS = (
    Settings(config={}),
    Settings(
        config={
            "algorithm": {
                "surrogate": "cells.py:mine",
                "kl": {"coefficient": 1.0, "reference": "random"},
                "entropy": {"coefficient": 1.0},
                "clip": {"low": 1e-4, "high": 1e-4},
            },
            "update": {"epochs": 8, "minibatches": 8},
            "reward": {"functions": ["rewards.py:mine"]},
            "task": {"level": 4},
            "cold_start": {"steps": 0},
            "critic": {"lr": 1e-8},
        }
    ),
)

TABLES: Mapping[str, Callable[[Results], Lines]] = {
    **{part: partial(_doctors, part=part) for part in PARTS},
    "counts": _counts,
    "repaired": _repaired,
    "faults": _faults,
    "false_alarms": _false_alarms,
    "healthy": _healthy,
    "rules": _rules,
    "causes": _causes,
}


def main(arguments: Sequence[str]) -> None:
    """Reads the template and the results, writes the page."""
    if len(arguments) != 2:
        raise UserError("give the template and the page: python -m studies.doctor.page A.template.md A.md")
    template, page = map(Path, arguments)
    page.write_text(render(template.read_text("utf-8"), Results(RESULTS)), "utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
