"""Trains the cases, each in a process of its own, and keeps what the doctor reads of every run.

    python -m studies.doctor.run all --parallel 14 --runs DIR --to histories.jsonl.gz --minutes 8

The runs that tell most come first: every fault and every healthy case with one seed, then what the doctor advises, then
the other seeds. Runs that stand in the file are not trained again; what the doctor advises on them now is, if it is new.
Stopped at any time, nothing that has finished is lost.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from studies.doctor import histories
from studies.doctor.bases import BASES, HEALTHY
from studies.doctor.cases import Case, Fault
from studies.doctor.engines import sampling_with
from studies.doctor.faults import FAULTS
from studies.doctor.inputs import make_endless, make_files, start_cases
from whet.cli.progress import SilentProgress
from whet.doctor.examine import over_time
from whet.doctor.plain_words import written
from whet.errors import RunFailed, UserError
from whet.recipe import read_recipe
from whet.train.start import start_run

SEEDS = 5  # of faults and of the cases that they are planted in
OTHER_SEEDS = 2  # of the other healthy cases
RUN_SECONDS = 120.0  # after which a run is ended
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
        if isinstance(self.case, Fault):
            return float(self.seed)
        return self.seed - 0.1 if self.case in BASES else 2.5 * self.seed + 0.5

    @property
    def name(self) -> str:
        return f"{self.case.name}-seed-{self.seed}" + ("-advised" if self.changes else "")


def jobs(only: Sequence[str] = (), seeds: Sequence[int] = range(SEEDS)) -> Iterator[Job]:
    """The runs, without those that try advice."""
    often = {case.name for case in (*BASES, *FAULTS)}
    for case in CASES.values():
        for seed in seeds if case.name in often else [seed for seed in seeds if seed < OTHER_SEEDS]:
            if not only or any(word in case.name for word in only):
                yield Job(case=case, seed=seed)


def advice(one: histories.Trained) -> tuple[str, ...]:
    """The keys of the likeliest cause, as the doctor writes them for the command line; none if it names no key."""
    causes = over_time(one.history).causes
    return tuple(f"{change.key}={_value(written(change))}" for change in causes[0].changes) if causes else ()


def _value(text: str) -> str:
    """What a shell would leave of KEY='VALUE'."""
    return text.partition("=")[2].strip("'")


def advised(one: histories.Trained) -> Job | None:
    """The run that tries the advice on a faulty one, where a key can repair it."""
    case = CASES.get(one.case)
    if not isinstance(case, Fault) or not case.repair or one.changes:
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


def _work(job: Job, made: Path, out: Path, result: Path) -> None:
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
        except Exception:
            traceback.print_exc()


@dataclass
class Pool:
    """Processes that train, a few at a time; what comes of them."""

    parallel: int
    runs: Path
    made: Path
    to: Path
    until: float  # time.time() after which nothing is left running
    keep: bool = False
    waiting: list[tuple[float, int, Job]] = field(default_factory=list)
    known: set[tuple[str, int, tuple[str, ...]]] = field(default_factory=set)
    working: dict[BaseProcess, tuple[Job, float]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def add(self, job: Job | None) -> None:
        if job is not None and job.key not in self.known:
            self.known.add(job.key)
            heapq.heappush(self.waiting, (job.place, next(self.numbers), job))

    def work(self) -> None:
        """Until nothing is left, or the time is over."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["studies.doctor.run", "torch", "transformers", "whet.train.online.loop"])
        while self.waiting or self.working:
            if time.time() > self.until:
                sys.stdout.write(f"time is over: {len(self.waiting)} runs were not started\n")
                break
            while self.waiting and len(self.working) < self.parallel:
                self._start(context, heapq.heappop(self.waiting)[2])
            wait([process.sentinel for process in self.working], timeout=1.0)
            for process in list(self.working):
                self._look(process)
        for process in self.working:
            process.kill()

    def _start(self, context: Any, job: Job) -> None:
        out = self.runs / job.name
        shutil.rmtree(out, ignore_errors=True)
        process = context.Process(target=_work, args=(job, self.made, out, self._result(job)))
        process.start()
        self.working[process] = (job, time.time())

    def _result(self, job: Job) -> Path:
        return self.runs / f"{job.name}.line.gz"

    def _look(self, process: BaseProcess) -> None:
        job, started = self.working[process]
        if process.is_alive():
            if time.time() - started > RUN_SECONDS:
                process.kill()
            return
        del self.working[process]
        result = self._result(job)
        if not result.is_file():
            log = (self.runs / f"{job.name}.log").read_text("utf-8", "replace") if started else ""
            said = f"failed: {log[-600:]}" if log else "was ended"
            sys.stdout.write(f"{job.name}: {said}\n")
            sys.stdout.flush()
            return
        with self.to.open("ab") as file:
            file.write(result.read_bytes())
        one = next(iter(histories.read([result])))
        result.unlink()
        if not self.keep:
            shutil.rmtree(self.runs / job.name, ignore_errors=True)
        sys.stdout.write(f"{job.name}: {_said(one)} in {one.seconds:.0f} s\n")
        sys.stdout.flush()
        self.add(advised(one))


def _said(one: histories.Trained) -> str:
    """Its held-out result, before and after."""
    measure, ends = one.history.measure, one.history.ends()
    shown = f"{measure.label} {ends[0][measure.metric]:.3g} → {ends[1][measure.metric]:.3g}" if measure and ends else "–"
    return shown + (f" (ended: {one.ended[:80]})" if one.ended else "")


def prepare(made: Path, parallel: int) -> None:
    """Start models and files, if they are not there."""
    if (made / "endless").is_dir():
        return
    make_files(made)
    context = multiprocessing.get_context("forkserver")
    processes = []
    for case in start_cases():
        job = Job(case=case, seed=0)
        processes.append(context.Process(target=_start_model, args=(job, made)))
        processes[-1].start()
        if len(processes) >= parallel:
            processes.pop(0).join()
    for process in processes:
        process.join()
    make_endless(made)


def _start_model(job: Job, made: Path) -> None:
    import torch

    torch.set_num_threads(1)
    out = made / f"run-{job.case.name}"
    shutil.rmtree(out, ignore_errors=True)
    entry = train(job, made, out)
    if entry["ended"]:
        raise RunFailed(entry["ended"])
    shutil.copytree(out / "best_model", made / job.case.name, dirs_exist_ok=True)
    shutil.rmtree(out)


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    started = time.time()
    os.environ["OMP_NUM_THREADS"] = "1"
    options.runs.mkdir(parents=True, exist_ok=True)
    made = options.runs / "made"
    prepare(made, options.parallel)
    before = histories.read([options.to])
    pool = Pool(
        parallel=options.parallel,
        runs=options.runs,
        made=made,
        to=options.to,
        until=started + 60 * options.minutes,
        keep=options.keep,
        known={one.key for one in before},
    )
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.what == "all":
        for job in jobs(options.only, seeds):
            pool.add(job)
    for one in before:
        if one.seed in seeds and (not options.only or any(word in one.case for word in options.only)):
            pool.add(advised(one))
    sys.stdout.write(f"{len(pool.waiting)} runs to train, {len(before)} are known\n")
    pool.work()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("all", "advised"), help="advised: only what the doctor advises on known runs")
    parser.add_argument("--runs", type=Path, required=True, help="where runs are trained")
    parser.add_argument("--to", type=Path, required=True, help="the file of histories, which is added to")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seeds", default=",".join(map(str, range(SEEDS))))
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="cases with this in their name")
    parser.add_argument("--keep", action="store_true", help="keep the run directories")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
