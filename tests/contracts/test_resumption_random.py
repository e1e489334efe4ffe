"""Contract 4 at moments that nobody chose: one or both of two ranks are killed, started by hand and by torchrun."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.contracts.command import ENVIRONMENT, LIMIT_SECONDS, ROOT, Process, Zygote, only_run, write_recipe
from tests.contracts.ranks import MARK, PROCESSES, carrying, nothing_left_of, recipe_with_workers
from tests.contracts.test_resumption import differing, outcome
from whet.distributed.world import TIMEOUT
from whet.runs.layout import by_step

KILLS = [*[(0,)] * 3, *[(1,)] * 3, *[(0, 1)] * 4]  # which ranks
STEPS = 50
PATIENCE = {TIMEOUT: "20"}  # who is killed before the ranks have met is only missed
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "whet"]

pytestmark = pytest.mark.slow


class Launch(Protocol):
    """Two ranks that were started."""

    def pids(self) -> list[int]: ...

    def interrupt(self) -> None:
        """Asks for the end as its user would."""
        ...

    def ended(self) -> str:
        """What was said, when all of it has ended."""
        ...


@dataclass
class ByHand:
    """Nobody watches over these ranks."""

    ranks: list[Process]

    def pids(self) -> list[int]:
        return [rank.pid for rank in self.ranks]

    def interrupt(self) -> None:
        for pid in self.pids():  # as a terminal does
            os.kill(pid, signal.SIGINT)

    def ended(self) -> str:
        codes = [rank.wait() for rank in self.ranks]
        said = "\n".join(rank.said() for rank in self.ranks)
        assert all(code in (0, 1, 130, -signal.SIGKILL) for code in codes), (codes, said)
        return said


@dataclass
class ByTorchrun:
    """torchrun ends the other ranks when one has ended."""

    agent: subprocess.Popen[str]
    mark: str
    log: Path

    def pids(self) -> list[int]:
        ranks = [
            pid for pid, command in carrying(self.mark).items() if " -m whet " in command and pid != self.agent.pid
        ]
        return sorted(ranks, key=lambda pid: b"RANK=1" in (PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"))

    def interrupt(self) -> None:
        self.agent.terminate()  # which it passes on

    def ended(self) -> str:
        self.agent.wait(timeout=LIMIT_SECONDS)
        return self.log.read_text()


def by_hand(zygote: Zygote, directory: Path, *arguments: object) -> Launch:
    return ByHand(zygote.start_ranks(2, "train", *arguments, environment={MARK: directory.name, **PATIENCE}))


def by_torchrun(_: Zygote, directory: Path, *arguments: object) -> Launch:
    log = directory / f"torchrun-{len(list(directory.glob('torchrun-*')))}.txt"
    command = [*TORCHRUN, "train", *map(str, arguments)]
    environment = {**os.environ, **ENVIRONMENT, **PATIENCE, MARK: directory.name}
    with log.open("w") as output:
        agent = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)
    return ByTorchrun(agent, directory.name, log)


def until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def lines(root: Path) -> int:
    """How many steps are logged."""
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*/metrics.jsonl"))


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in (PROCESSES / str(pid) / "status").read_text()
    except OSError:
        return False


def kill(launch: Launch, doomed: tuple[int, ...], root: Path, rng: random.Random) -> tuple[int, float]:
    """Kills these ranks some way into the run: after how many lines, and how long the other one lived."""
    until(lambda: len(launch.pids()) == 2, "two ranks")
    pids, before, steps = launch.pids(), lines(root), rng.choice([0, 0, 1, 2, 3, 4])
    if steps:  # a resumed run first takes some lines away
        until(lambda: lines(root) != before or not alive(pids[0]), "the first line")
        goal = lines(root) + steps - 1
        until(lambda: lines(root) >= goal or not alive(pids[0]), f"line {goal}")
    time.sleep(rng.uniform(0, 0.4 if steps else 4.0))
    assert all(alive(pid) for pid in pids), "the run ended before this kill"
    for rank in doomed:
        os.kill(pids[rank], signal.SIGKILL)
    at, killed = lines(root), time.monotonic()
    until(lambda: not any(alive(pid) for pid in pids), "the end of the other rank")
    return at, time.monotonic() - killed


@pytest.mark.skipif(not PROCESSES.is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("launch", [by_hand, by_torchrun])
def test_ten_kills_at_random_moments_change_no_byte(
    launch: Callable[..., Launch], zygote: Zygote, beginner: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "rl.yaml", recipe_with_workers(beginner, tmp_path, steps=STEPS))
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "whole")
    root, rng = tmp_path / "runs", random.Random(5)
    for number, doomed in enumerate(rng.sample(KILLS, len(KILLS))):
        begun = root.is_dir() and any((run / "config.yaml").exists() for run in root.iterdir())
        arguments = [only_run(root), "--resume"] if begun else [recipe, "--runs", root]
        started = launch(zygote, tmp_path, *arguments)
        at, seconds = kill(started, doomed, root, rng)
        said = started.ended()
        nothing_left_of(tmp_path.name)
        assert f'File "{ROOT}' not in said, said  # torchrun ends with a traceback, we do not
        print(f"{launch.__name__} {number}: killed {doomed} after line {at}, all ended within {seconds:.2f} s")
    interrupt(launch(zygote, tmp_path, only_run(root), "--resume"), root)
    said = launch(zygote, tmp_path, only_run(root), "--resume").ended()
    assert (only_run(root) / "final_results.json").exists(), said
    assert differing(outcome(only_run(root)), outcome(only_run(tmp_path / "whole"))) == []
    nothing_left_of(tmp_path.name)


def interrupt(launch: Launch, root: Path) -> None:
    """The first request ends the run after a step that is saved."""
    before = lines(root)
    until(lambda: lines(root) > before, "a line more")
    launch.interrupt()
    said = launch.ended()
    run = only_run(root)
    assert f"stopped; continue with: whet train {run} --resume" in said
    assert list(by_step(run / "checkpoints"))[-1] == lines(root) - 1, said  # step 0 has a line too
