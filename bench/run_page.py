"""How fast the page of `whet ui` answers, and what memory its server takes: `python -m bench.run_page`.

Two runs are made by the run's own writer, of random numbers that pack as badly as real ones: one of 10,000 rollouts,
and one whose directory has 2 GB (`--gigabytes`) and repeats a step. A server of its own answers what the page asks when
it is opened. Beside the seconds is the processor time of the server, which other work on the machine does not change
much. Everything is deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from bench.command import run_command
from bench.machine import machine
from whet.runs import layout
from whet.runs.directory import RunDirectory
from whet.train.online.number_text import number_text

if TYPE_CHECKING:
    from tests.browser.chromium import Page

GROUP = 8
STEP_ROLLOUTS = 256
WORDS = ("so", "we", "add", "the", "two", "and", "get", "a", "sum", "which", "is", "then", "what", "was", "asked")
VOCABULARY = 50_000
BROWSER_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def rows(count: int, tokens: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rollouts with everything that a run with a reference and several updates records of tokens."""
    random = np.random.default_rng(seed)
    for number in range(count):
        logprobs = -random.exponential(0.5, tokens)
        columns = {
            "logprobs": logprobs,
            "old_logprobs": logprobs + random.normal(0, 1e-4, tokens),
            "reference_logprobs": logprobs + random.normal(0, 0.05, tokens),
            "entropies": random.exponential(0.7, tokens),
            "ratios": random.normal(1, 0.02, tokens),
        }
        text = [f" {WORDS[place]}" for place in random.integers(0, len(WORDS), tokens)]
        reward = float(random.integers(0, 2))
        yield {
            "group": number // GROUP,
            "id": f"prompt-{seed}-{number // GROUP}",
            "prompt": f"What is {number // GROUP} + {seed}?",
            "text": "".join(text),
            "tokens": random.integers(0, VOCABULARY, tokens).tolist(),
            "mask": [True] * tokens,
            "finish": "stop",
            "version": seed,
            "reward": reward,
            "parts": {"correct": reward},
            "trained": True,
            "advantage": float(random.normal()),
            "pieces": text,
            "clipped": [],
            **{name: number_text(values, [tokens], 5)[0] for name, values in columns.items()},
        }


def make(path: Path, *, steps: int, rollouts: int, tokens: int, least_bytes: int = 0) -> None:
    """A run of this many steps; if `least_bytes` are asked for, its last step is repeated until it has them."""
    with RunDirectory.create(path.parent, path.name, "loop: online\nsteps: 1\n", path=path) as run:
        for step in range(1, steps + 1):
            run.log(step, {"reward/mean": 0.5, "entropy": 1.0, "kl": 0.01 * step})
            run.record(step, rows(min(STEP_ROLLOUTS, rollouts - (step - 1) * STEP_ROLLOUTS), tokens, step))
    folder, step = path / layout.ROLLOUTS, steps
    files = sorted(folder.glob(f"*{steps:06}*"))
    size, once = (sum(file.stat().st_size for file in found) for found in (folder.iterdir(), files))
    while size < least_bytes:
        step, size = step + 1, size + once
        for file in files:
            shutil.copyfile(file, folder / file.name.replace(f"{steps:06}", f"{step:06}"))


@dataclass
class Server:
    """A running `whet ui`."""

    url: str
    pid: int

    def ask(self, question: str, **parameters: object) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}api/{question}?{urlencode(parameters)}") as answer:
            return dict(json.load(answer))

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "whet", "ui", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            told += process.stdout.readline()
        yield Server(json.loads(told)["url"], process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def listed(server: Server) -> int:
    """The page's list of all rollouts, answer by answer; how many there are."""
    count, following = 0, None
    while True:
        answer = server.ask("rollouts", run="run", **({} if following is None else {"before": following}))
        count, following = count + len(answer["step"]), answer["next"]
        if following is None:
            return count


def opened(server: Server) -> int:
    """What the list of rollouts asks until it is complete, with the texts of its first rows; how many there are."""
    steps = server.ask("run", run="run")["rollout_steps"]
    count = listed(server)
    server.ask("excerpts", run="run", places=",".join(f"{steps[-1]}-0-{number}" for number in range(GROUP)))
    return count


def used(server: Server, answers: int) -> None:
    """One rollout, its prompt's history, the curves, and the first answers of a search for what is nowhere."""
    steps = server.ask("run", run="run")["rollout_steps"]
    for step in (steps[0], steps[len(steps) // 2], steps[-1]):
        server.ask("rollout", run="run", step=step, group=3, number=2)
    server.ask("history", run="run", id=f"prompt-{steps[0]}-3")
    server.ask("curves", run="run", log="metrics")
    following = None
    for _ in range(answers):
        following = server.ask("search", run="run", text="#", **({} if following is None else {"before": following}))[
            "next"
        ]
        if following is None:
            return


def in_browser(url: str, count: int) -> tuple[float, float]:
    """Seconds until chromium shows the whole list, and the processor time of the page's thread."""
    from tests.browser.chromium import Chromium

    chromium = Chromium()
    try:
        page = chromium.page()
        page.send("Performance.enable", timeDomain="threadTicks")
        page.open(f"{url}#runs")
        line = "(document.querySelector('p[role=status]')?.innerText ?? '')"
        began, processor = time.perf_counter(), _thread_seconds(page)
        page.run("location.hash = '#rollouts?run=run'")
        page.wait(f"{line}.startsWith('{count:,} of {count:,}') && !{line}.includes('reading')", BROWSER_SECONDS)
        return time.perf_counter() - began, _thread_seconds(page) - processor
    finally:
        chromium.close()


def _thread_seconds(page: Page) -> float:
    found = {one["name"]: one["value"] for one in page.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    print(f"{machine('cpu', 1)}, load {os.getloadavg()[0]:.1f}")
    with TemporaryDirectory(prefix="bench-", dir=options.place) as place:
        run = Path(place) / "small" / "run"
        make(run, steps=-(-options.rollouts // STEP_ROLLOUTS), rollouts=options.rollouts, tokens=options.tokens)
        print(f"{options.rollouts:,} rollouts of {options.tokens} tokens, {_size(run):,} bytes", flush=True)
        for attempt in range(options.repeats):
            with served(run.parent) as server:
                server.ask("runs")
                for again in ("first", "again"):
                    began, processor = time.perf_counter(), server.processor_seconds()
                    count = opened(server)
                    seconds, processor = time.perf_counter() - began, server.processor_seconds() - processor
                    print(f"  {attempt}, {again}: {count:,} listed in {seconds:.2f} s, {processor:.2f} s of processor")
        if options.browser:
            for attempt in range(options.repeats):
                with served(run.parent) as server:
                    seconds, processor = in_browser(server.url, options.rollouts)
                    print(f"  {attempt}, in chromium: {seconds:.2f} s, {processor:.2f} s of processor", flush=True)
        shutil.rmtree(run.parent)
        if not options.gigabytes:
            return
        run = Path(place) / "large" / "run"
        rollouts = 4 * STEP_ROLLOUTS
        make(run, steps=4, rollouts=rollouts, tokens=1000, least_bytes=int(1e9 * options.gigabytes))
        with served(run.parent) as server:
            server.ask("runs")
            begun = server.peak_bytes()
            count = opened(server)
            listing = server.peak_bytes()
            used(server, options.search_answers)
            print(
                f"{_size(run):,} bytes, {count:,} rollouts of 1,000 tokens: peak memory of the server "
                f"{begun / 1e6:.0f} MB with the list of runs, {listing / 1e6:.0f} MB with all rollouts listed, "
                f"{server.peak_bytes() / 1e6:.0f} MB after rollouts, a history, curves and a search"
            )


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=200, help="of a rollout")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the large run; 0: none")
    parser.add_argument("--repeats", type=int, default=3, help="servers that are asked")
    parser.add_argument("--browser", action="store_true", help="also until Debian's chromium shows the list")
    parser.add_argument("--search-answers", type=int, default=30, help="answers of the search in the large run")
    parser.add_argument("--place", help="folder of the runs; else the system's for temporary files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
