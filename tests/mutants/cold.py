"""Mutants of what runs at the import: each in a fork that has our dependencies, and imports what is ours anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.mutants.children import children
from tests.mutants.findings import Known
from tests.mutants.outcome import Outcome, Say, outcome_of
from tests.mutants.planting import import_with
from tests.mutants.sites import Mutant
from tests.mutants.targets import ROOT, tests_of
from tests.mutants.warm import FEW, QUIET, TIMES_BASELINE, belongs, in_order

IMPORT_SECONDS = 20.0


class Order:
    """A plugin: tests in the order in which a target names them, the quick ones first; failures go to a file."""

    def __init__(self, tests: Sequence[str], known: Mapping[str, Known], place: Path) -> None:
        self.tests, self.known, self.place = tests, known, place

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sorts."""
        by_name = {item.nodeid: item for item in items}
        rank = {name: min(i for i, test in enumerate(self.tests) if belongs(name, [test])) for name in by_name}
        items[:] = [by_name[name] for name in sorted(in_order(list(by_name), self.known), key=rank.__getitem__)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes the failure down."""
        if report.failed:
            self.place.write_text(report.nodeid, "utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is a failure too."""
        if report.failed:
            self.place.write_text(report.nodeid, "utf-8")


def run_cold(
    mutants: Sequence[Mutant], known: Mapping[str, Known], *, workers: int, scratch: Path, say: Say
) -> list[Outcome]:
    """What became of these; before them, once for each set of tests, whether they pass with nothing planted."""
    nulls = {tests_of(mutant.file): mutant for mutant in mutants} if len(mutants) >= FEW else {}
    jobs = [*((one, False) for one in nulls.values()), *((one, True) for one in mutants)]
    found = []
    for ended in children(
        jobs,
        lambda job: _attempt(*job, known, scratch),
        workers=workers,
        seconds=lambda job: IMPORT_SECONDS + TIMES_BASELINE * _seconds(job[0], known),
    ):
        mutant, is_planted = ended.job
        place = _place(mutant, is_planted, scratch)
        killer = place.read_text("utf-8") if place.exists() else ""
        outcome = outcome_of(ended, mutant, killer)
        if is_planted:
            found.append(outcome)
            say(outcome)
        elif outcome.verdict != "survived":
            raise SystemExit(f"without a mutant, imported anew, {killer or mutant.file} fails: {ended.code}")
    return found


def _attempt(mutant: Mutant, is_planted: bool, known: Mapping[str, Known], scratch: Path) -> int:
    place = _place(mutant, is_planted, scratch)
    folder = place.with_suffix(".tmp")
    folder.mkdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    if is_planted:
        import_with(mutant)
    tests = [str(ROOT / test) for test in tests_of(mutant.file)]
    order = Order(tests_of(mutant.file), known, place)
    code = pytest.main([*QUIET, "-x", "--rootdir", str(ROOT), *tests], plugins=[order])
    return 0 if code == pytest.ExitCode.OK else 1


def _seconds(mutant: Mutant, known: Mapping[str, Known]) -> float:
    return sum(one.seconds for one in known.values() if belongs(one.name, tests_of(mutant.file)))


def _place(mutant: Mutant, is_planted: bool, scratch: Path) -> Path:
    return scratch / f"cold-{mutant.file.replace('/', '-')}-{mutant.number if is_planted else 'null'}.found"
