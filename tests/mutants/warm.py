"""Mutants of functions: everything is imported and collected once; each mutant is a fork in which a function changes.

What runs at the import (a table, a default, a function that a table calls) cannot be changed afterwards: that is left
to `cold`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.children import Ended, children
from tests.mutants.findings import Findings, Known
from tests.mutants.outcome import Outcome, Say, outcome_of
from tests.mutants.planting import can_replace, living_functions, path_of, replace
from tests.mutants.sites import Mutant
from tests.mutants.targets import ROOT, tests_of
from tests.mutants.touched import Touched

QUIET = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
    "-p",
    "no:xdist",
    "--no-header",
    "--disable-warnings",
    "-q",
    "-s",
)
BASELINE_SECONDS = 1200.0
TIMES_BASELINE = 5
OURS = {"whet", "tests", "pages", "bench", "studies", "__main__"}  # packages that import the library
FEW = 20  # mutants for which it is not worth while to ask whether the tests pass in another order


@dataclass(frozen=True, slots=True)
class Job:
    """A mutant, or None to see whether the tests pass in this order; and the tests, likeliest first."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    seconds: float


@dataclass(kw_only=True, eq=False)
class Warm:
    """A plugin that runs mutants in the place of tests."""

    mutants: Sequence[Mutant]
    workers: int
    scratch: Path
    say: Say
    touched: Touched
    known: dict[str, Known] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    left: list[Mutant] = field(default_factory=list)
    failure: str = ""
    error: str = ""  # why there are no outcomes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of pytest's own loop."""
        try:
            self._work(session)
        except SystemExit as stop:
            self.error = str(stop)
        return True

    def _work(self, session: pytest.Session) -> None:
        """Baseline, then mutants."""
        at_import = {path: set(lines) for path, lines in self.touched.stop().items()}
        self.items = {item.nodeid: item for item in session.items}
        self.functions = living_functions({path_of(mutant.file) for mutant in self.mutants})
        self._baseline()
        jobs = list(self._jobs(at_import))
        nulls = [Job(None, tests, self._limit(tests)) for tests in self._orders()]
        for ended in self._run([*nulls, *jobs]):
            job = ended.job
            outcome = outcome_of(ended, job.mutant, self._killer(job))
            if job.mutant is None:
                if outcome.verdict != "survived":
                    raise SystemExit(
                        f"without a mutant, but in another order, {outcome.killer or outcome.verdict} fails"
                    )
            else:
                self.outcomes.append(outcome)
                self.say(outcome)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remembers the test that failed."""
        if report.failed:
            self.failure = report.nodeid

    def _baseline(self) -> None:
        """Every test file by itself, with the lines that its tests touch."""
        files: dict[str, list[str]] = {}
        for name in self.items:
            files.setdefault(file_of(name), []).append(name)
        log = self.scratch / "baseline.log"
        for ended in children(
            files,
            lambda file: self._watch(file, files[file]),
            workers=self.workers,
            seconds=lambda _: BASELINE_SECONDS,
            log=log,
        ):
            if ended.code != 0:
                said = log.read_text("utf-8", "replace")
                raise SystemExit(f"without a mutant {ended.job} ended with {ended.code}:\n{said}")
            for row in json.loads(self._place(ended.job).read_text("utf-8")):
                self.known[row["name"]] = Known(**row)
        failing = [known.name for known in self.known.values() if not known.passed]
        if failing:
            raise SystemExit("without a mutant these fail: " + ", ".join(failing))

    def _watch(self, file: str, names: Sequence[str]) -> int:
        self._settle(file)
        found = []
        for name, following in zip(names, [*names[1:], None], strict=True):
            self.failure = ""
            start = time.process_time()
            self.touched.start()
            self._one(name, following)
            lines = self.touched.stop()
            taken = time.process_time() - start
            found.append(asdict(Known(name=name, seconds=taken, passed=not self.failure, lines=lines)))
        self._place(file).write_text(json.dumps(found), "utf-8")
        return 0

    def _jobs(self, at_import: dict[str, set[int]]) -> Iterator[Job]:
        for mutant in self.mutants:
            path, lines = path_of(mutant.file), set(range(mutant.lines[0], mutant.lines[1] + 1))
            is_imported = not mutant.owner or bool(lines & at_import.get(path, set()))
            allowed = self._tests(mutant.file)
            touching = [name for name in allowed if lines & set(self.known[name].lines.get(path, ()))]
            if not is_imported and not touching:
                outcome = Outcome(mutant=mutant, verdict="not covered")
                self.outcomes.append(outcome)
                self.say(outcome)
                continue
            if is_imported or not can_replace(self.functions, mutant):
                self.left.append(mutant)
                continue
            # What a file computes once is touched by the first test that asks for it: the others look at it too.
            files = {file for file in {file_of(name) for name in touching} if remembers(file)}
            rest = [name for name in allowed if file_of(name) in files and name not in set(touching)]
            tests = (*in_order(touching, self.known), *in_order(rest, self.known))
            yield Job(mutant, tests, self._limit(tests))

    def _orders(self) -> set[tuple[str, ...]]:
        """The tests of each target, once for targets that have the same."""
        if len(self.mutants) < FEW:
            return set()
        return {tuple(in_order(self._tests(mutant.file), self.known)) for mutant in self.mutants}

    def _limit(self, tests: Sequence[str]) -> float:
        return TIMES_BASELINE * sum(self.known[name].seconds for name in tests)

    def _tests(self, file: str) -> list[str]:
        return [name for name in self.items if belongs(name, tests_of(file))]

    def _run(self, jobs: Sequence[Job]) -> Iterator[Ended[Job]]:
        return children(jobs, self._attempt, workers=self.workers, seconds=lambda job: job.seconds)

    def _attempt(self, job: Job) -> int:
        """In the child: 1 at the first test that fails."""
        self._settle(self._name(job))
        if job.mutant is not None:
            replace(self.functions, job.mutant)
        for name, following in zip(job.tests, [*job.tests[1:], None], strict=True):
            self.failure = ""
            self._one(name, following)
            if self.failure:
                self._place(self._name(job)).write_text(self.failure, "utf-8")
                return 1
        return 0

    def _one(self, name: str, following: str | None) -> None:
        item = self.items[name]
        after = None if following is None else self.items[following]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)

    def _settle(self, name: str) -> None:
        """The child's own folder for what tests write."""
        folder = self._place(name).with_suffix(".tmp")
        folder.mkdir()
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = str(folder)

    def _killer(self, job: Job) -> str:
        place = self._place(self._name(job))
        return place.read_text("utf-8") if place.exists() else ""

    @staticmethod
    def _name(job: Job) -> str:
        return f"{job.mutant.file}-{job.mutant.number}" if job.mutant else f"null-{hash(job.tests)}"

    def _place(self, name: str) -> Path:
        return self.scratch / f"{name.replace('/', '-')}.found"


def file_of(name: str) -> str:
    """Where a test is."""
    return name.split("::", maxsplit=1)[0]


@cache
def remembers(file: str) -> bool:
    """Whether tests of a file may share what one of them has computed: a fixture of the module, or a cache."""
    places = (ROOT / file, (ROOT / file).with_name("conftest.py"))
    return any(re.search(r"scope=|cache", place.read_text("utf-8")) for place in places if place.exists())


def belongs(name: str, tests: Sequence[str]) -> bool:
    """Whether a test is in one of these files or folders."""
    file = file_of(name)
    return any(file == one or file.startswith(f"{one}/") for one in tests)


def in_order(names: Sequence[str], known: Mapping[str, Known]) -> list[str]:
    """Quick tests first; those of a file stay together, because they share fixtures."""
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(file_of(name), []).append(name)

    def seconds(name: str) -> float:
        return known[name].seconds if name in known else 0.1

    for some in files.values():
        some.sort(key=seconds)
    return [name for some in sorted(files.values(), key=lambda some: seconds(some[0])) for name in some]


def run_warm(mutants: Sequence[Mutant], *, workers: int, scratch: Path, say: Say) -> Findings:
    """Runs those that can be changed after the import."""
    touched = Touched({path_of(mutant.file) for mutant in mutants})
    plugin = Warm(mutants=mutants, workers=workers, scratch=scratch, say=say, touched=touched)
    tests = sorted({test for mutant in mutants for test in tests_of(mutant.file)})
    touched.start()
    code = pytest.main([*QUIET, "--rootdir", str(ROOT), *(str(ROOT / test) for test in tests)], plugins=[plugin])
    if code != 0 or plugin.error:
        raise SystemExit(plugin.error or f"the tests cannot be collected: pytest ended with {code}")
    return Findings(
        outcomes=plugin.outcomes,
        left=plugin.left,
        known=plugin.known,
        modules=[name for name in sys.modules if name.split(".")[0] not in OURS],
    )
