"""`python -m tests.mutants`: plants bugs in the targets, one at a time, and says which ones no test noticed."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

from tests.mutants.targets import ROOT, TESTS, chosen, source

PRELOADED = ("transformers", "torch._dynamo")
MANY = 50  # mutants for which it is worth while to import these before the first fork


def main() -> None:
    """Parses, runs, writes."""
    options = _options()
    _prepare()
    from tests.mutants.report import accepted, complaints, counted, shown, write
    from tests.mutants.sites import mutants

    some = [mutant for file in chosen(options.only) for mutant in mutants(file, source(file))]
    if options.tests:
        TESTS.update(dict.fromkeys(chosen(options.only), tuple(options.tests)))
    if options.line:
        some = [mutant for mutant in some if mutant.lines[0] <= options.line <= mutant.lines[1]]
    if options.sample and options.sample < len(some):
        some = random.Random(options.seed).sample(some, options.sample)
    if options.list:
        print(*map(shown, some), f"{len(some)} mutants", sep="\n")
        return
    if not some:
        sys.exit("error: there is no such mutant: see --list")
    known, progress = accepted(), _Progress(len(some), options.verbose)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        outcomes = _run(some, options.workers, Path(folder), progress)
    seconds = time.monotonic() - start
    files = counted(outcomes)
    _print(files, known, seconds)
    everything = files
    is_whole = not (options.line or options.sample or options.tests)
    if options.out and is_whole:
        about = {"python": platform.python_version(), "torch": version("torch").split("+")[0]}
        everything = write(options.out, files, about)
    wrong = complaints(files, everything if is_whole else {}, known)
    if wrong:
        sys.exit("\n".join(f"error: {sentence}" for sentence in wrong))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="targets with this in their name; may be repeated")
    parser.add_argument("--line", type=int, help="only mutants of the statement on this line")
    parser.add_argument("--tests", nargs="+", help="these tests in the place of the targets' own")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--sample", type=int, help="so many of them, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--verbose", action="store_true", help="show what killed the others, too")
    parser.add_argument("--out", type=Path, help="a JSON file for results of whole files; others stay in it")
    return parser.parse_args()


def _prepare() -> None:
    """What forks share: dependencies, one thread each, properties of Hypothesis drawn the same way every time."""
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    import hypothesis

    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")


def _import(names: tuple[str, ...] | list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001 - whatever it is, the tests that need it will say so
            continue


def _run(some: list, workers: int, scratch: Path, say) -> list:
    """The warm ones in a fork of their own, so that this process never imports what the cold ones change."""
    from tests.mutants.cold import run_cold
    from tests.mutants.findings import Findings
    from tests.mutants.planting import whets
    from tests.mutants.warm import run_warm

    _import(PRELOADED if len(some) >= MANY else ())
    answer = scratch / "warm.json"
    child = os.fork()
    if not child:
        code = 2
        try:
            sys.stdout.flush()
            answer.write_text(run_warm(some, workers=workers, scratch=scratch, say=say).to_json(), "utf-8")
            code = 0
        except SystemExit as stop:
            print(f"error: {stop}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(2)
    found = Findings.from_json(answer.read_text("utf-8"))
    if not found.left:
        return found.outcomes
    _import(found.modules)
    assert not whets(sys.modules)
    say.done = len(found.outcomes)
    return found.outcomes + run_cold(found.left, found.known, workers=workers, scratch=scratch, say=say)


class _Progress:
    """Survivors as they are found, and a line now and then."""

    def __init__(self, total: int, verbose: bool) -> None:
        self.total, self.verbose, self.done, self.start = total, verbose, 0, time.monotonic()

    def __call__(self, outcome) -> None:
        from tests.mutants.report import shown

        self.done += 1
        if outcome.is_alive:
            print(f"{outcome.verdict}: {shown(outcome.mutant)}")
        elif self.verbose:
            print(f"{outcome.verdict} in {outcome.seconds:.2f} s by {outcome.killer}: {shown(outcome.mutant)}")
        if self.done % 50 == 0:
            print(f"... {self.done} of {self.total} after {time.monotonic() - self.start:.0f} s")
        sys.stdout.flush()


def _print(files: dict, known: dict, seconds: float) -> None:
    from tests.mutants.report import VERDICTS, key_of

    total = dict.fromkeys((*VERDICTS, "accepted"), 0)
    for file, counts in files.items():
        reasons = sum(key_of(file, row) in known for row in counts["survivors"])
        for verdict in VERDICTS:
            total[verdict] += counts[verdict]
        total["accepted"] += reasons
        print(f"{file:36} " + ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v]) + f", {reasons} accepted")
    count = sum(total[verdict] for verdict in VERDICTS)
    dead = total["killed"] + total["timeout"] + total["crashed"]
    print(
        f"{count} mutants in {seconds:.0f} s, {dead / max(1, count):.1%} noticed"
        f" ({total['timeout']} by the time limit, {total['crashed']} by a crash), {count - dead} survived,"
        f" {total['accepted']} of them with a reason"
    )


if __name__ == "__main__":
    main()
