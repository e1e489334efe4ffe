"""One run of the study, in a process of its own."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.doctor import histories
from studies.doctor.bases import SEEN, SEEN_BASES
from studies.doctor.cases import Case, Fault
from studies.doctor.developed import LATER, LATER_BASES, LATER_FAULTS
from studies.doctor.engines import sampling_with
from studies.doctor.faults import SEEN_FAULTS
from studies.doctor.measured import MEASURED, MEASURED_BASES, MEASURED_FAULTS
from whet.cli.progress import SilentProgress
from whet.doctor.examine import over_time
from whet.doctor.plain_words import written
from whet.errors import RunFailed, UserError
from whet.recipe import read_recipe
from whet.train.start import start_run

SEEDS = 5  # of faults, of the cases that they are planted in, and of all that is only measured
OTHER_SEEDS = 2  # of the other healthy cases
BASES: tuple[Case, ...] = (*SEEN_BASES, *LATER_BASES, *MEASURED_BASES)
HEALTHY: tuple[Case, ...] = (*SEEN, *LATER, *MEASURED)
FAULTS: tuple[Fault, ...] = (*SEEN_FAULTS, *LATER_FAULTS, *MEASURED_FAULTS)
CASES: dict[str, Case] = {case.name: case for case in (*HEALTHY, *FAULTS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A run that is to be trained."""

    case: Case
    seed: int
    changes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, int, tuple[str, ...]]:
        return self.case.name, self.seed, self.changes

    @property
    def place(self) -> float:
        """In the order of training: small ones come first."""
        if self.changes:
            return self.seed + 1.2
        if self.case in MEASURED:  # false alarms are rare, so many runs tell more of them
            return 0.5 * self.seed - 0.1
        if isinstance(self.case, Fault):
            return float(self.seed)
        return self.seed - 0.1 if self.case in BASES else 2.5 * self.seed + 0.5

    @property
    def name(self) -> str:
        return f"{self.case.name}-seed-{self.seed}" + ("-advised" if self.changes else "")


def jobs(only: Sequence[str] = (), seeds: Sequence[int] = range(SEEDS)) -> Iterator[Job]:
    """The runs, without those that try advice."""
    often = {case.name for case in (*BASES, *FAULTS, *MEASURED)}
    for case in CASES.values():
        for seed in seeds if case.name in often else [seed for seed in seeds if seed < OTHER_SEEDS]:
            if not only or any(word in case.name for word in only):
                yield Job(case=case, seed=seed)


def advice(one: histories.Trained) -> tuple[str, ...]:
    """The keys of the likeliest cause, as the doctor writes them for the command line; none if it names no key."""
    causes = over_time(one.history, one.facts).causes
    return tuple(f"{change.key}={_value(written(change))}" for change in causes[0].changes) if causes else ()


def _value(text: str) -> str:
    """What a shell would leave of KEY='VALUE'."""
    return text.partition("=")[2].strip("'")


def advised(one: histories.Trained) -> Job | None:
    """The run that tries the advice on a faulty one, where a key can repair it."""
    case = CASES.get(one.case)
    if case is None or not case.is_repairable or one.changes:
        return None
    changes = advice(one)
    return Job(case=case, seed=one.seed, changes=changes) if changes else None


def train(job: Job, made: Path, out: Path) -> dict[str, Any]:
    """One run in this process; what is kept of it."""
    started = time.time()
    ended = ""
    keys = [*job.case.arguments(job.seed, made), *job.changes]
    try:
        with sampling_with(job.case.engine):
            recipe = read_recipe(job.case.recipe, keys)
            start_run(recipe, out.parent, lambda *_: SilentProgress(), path=out)
    except (RunFailed, UserError) as error:
        ended = f"{type(error).__name__}: {error}"
    about = {"case": job.case.name, "seed": job.seed, "changes": job.changes, "ended": ended}
    if not (out / "config.yaml").is_file():
        return {**about, "refused": True}
    return {**about, "seconds": round(time.time() - started, 1), **histories.kept(out)}


def work(job: Job, made: Path, out: Path, result: Path) -> None:
    """In a child process: trains, and writes the line of the run where the parent finds it."""
    import torch

    torch.set_num_threads(1)
    with (out.parent / f"{out.name}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            entry = train(job, made, out)
            if entry.get("refused"):
                sys.stderr.write(entry["ended"])
                return
            temporary = result.with_suffix(".part")
            temporary.write_bytes(histories.line(entry))
            temporary.replace(result)
        except Exception:  # noqa: BLE001 a crash of one run, which its log tells
            traceback.print_exc()


def start_model(job: Job, made: Path) -> None:
    import torch

    torch.set_num_threads(1)
    out = made / f"run-{job.case.name}"
    shutil.rmtree(out, ignore_errors=True)
    entry = train(job, made, out)
    if entry["ended"]:
        raise RunFailed(entry["ended"])
    shutil.copytree(out / "best_model", made / job.case.name, dirs_exist_ok=True)
    shutil.rmtree(out)
