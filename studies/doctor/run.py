"""Trains the cases, each in a process of its own, and keeps what the doctor reads of every run.

    python -m studies.doctor.run all --parallel 14 --runs DIR --to histories.jsonl.gz --minutes 8

The runs that tell most come first: every fault and every healthy case with one seed, then what the doctor advises, then
the other seeds. Runs that stand in the file are not trained again; what the doctor advises on them now is tried.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from studies.doctor import histories
from studies.doctor.inputs import make_endless, make_files, start_cases
from studies.doctor.training import SEEDS, Job, advised, jobs, start_model, work

PRELOADED = ["studies.doctor.training", "torch", "transformers", "whet.train.online.loop"]  # once, for all runs
RUN_SECONDS = 120.0  # after which a run is ended, unless --run-seconds says otherwise
USUAL_SECONDS = 20.0  # before the end no run is started
SAID = 600  # characters of the log of a run that failed


def processes() -> ForkServerContext:
    """Children that begin with torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@dataclass
class Pool:
    """Processes that train, a few at a time; what comes of them."""

    parallel: int
    runs: Path
    made: Path
    to: Path
    until: float  # time.time() after which nothing is left running
    run_seconds: float = RUN_SECONDS
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
        context = processes()
        while self.working or (self.waiting and time.time() < self.until - USUAL_SECONDS):
            if time.time() > self.until:
                break
            while self.waiting and len(self.working) < self.parallel and time.time() < self.until - USUAL_SECONDS:
                self._start(context, heapq.heappop(self.waiting)[2])
            wait([process.sentinel for process in self.working], timeout=1.0)
            for process in list(self.working):
                self._look(process)
        for process in self.working:
            process.kill()
        if self.waiting or self.working:
            sys.stdout.write(f"time is over: {len(self.waiting) + len(self.working)} runs were not finished\n")

    def _start(self, context: Any, job: Job) -> None:
        out = self.runs / job.name
        shutil.rmtree(out, ignore_errors=True)
        process = context.Process(target=work, args=(job, self.made, out, self._result(job)))
        process.start()
        self.working[process] = (job, time.time())

    def _result(self, job: Job) -> Path:
        return self.runs / f"{job.name}.line.gz"

    def _look(self, process: BaseProcess) -> None:
        job, started = self.working[process]
        if process.is_alive():
            if time.time() - started > self.run_seconds:
                process.kill()
            return
        del self.working[process]
        result = self._result(job)
        if not result.is_file():
            log = self.runs / f"{job.name}.log"
            said = log.read_text("utf-8", "replace")[-SAID:] if log.is_file() else ""
            sys.stdout.write(f"{job.name}: nothing is kept (exit code {process.exitcode}) {said}\n")
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
    shown = (
        f"{measure.label} {ends[0][measure.metric]:.3g} → {ends[1][measure.metric]:.3g}" if measure and ends else "–"
    )
    return shown + (f" (ended: {one.ended[:80]})" if one.ended else "")


def prepare(made: Path, parallel: int) -> None:
    """Start models and files, if they are not there."""
    if (made / "endless").is_dir():
        return
    make_files(made)
    working: list[BaseProcess] = []
    for case in start_cases():
        working.append(processes().Process(target=start_model, args=(Job(case=case, seed=0), made)))
        working[-1].start()
        if len(working) >= parallel:
            working.pop(0).join()
    for process in working:
        process.join()
    make_endless(made)


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
        run_seconds=options.run_seconds,
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
    parser.add_argument("--run-seconds", type=float, default=RUN_SECONDS, help="after which one run is ended")
    parser.add_argument("--seeds", default=",".join(map(str, range(SEEDS))))
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="cases with this in their name")
    parser.add_argument("--keep", action="store_true", help="keep the run directories")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
