"""Copies of an environment shared among worker processes, which step theirs at the same time.

An episode is a function of its seed and its actions, so nothing depends on how many processes there are. A worker has
Python without torch: `python -m whet.control.processes`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from whet.control.environments import Environments, Maker
from whet.control.spaces import Floats, observation_coder
from whet.errors import RunFailed, UserError

GRACE = 5.0  # seconds that a worker has to close its environments
KINDS: dict[str, type[Exception]] = {"RunFailed": RunFailed, "UserError": UserError}


@dataclass(frozen=True, slots=True)
class Worker:
    """A process and the copies that it holds: those from `first` on."""

    process: subprocess.Popen[bytes]
    first: int
    count: int

    def send(self, *question: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says that it has ended
            pickle.dump(question, self.process.stdin)
            self.process.stdin.flush()

    def answer(self) -> Any:
        """To the question that was sent; raises what the worker raised."""
        assert self.process.stdout is not None
        try:
            kind, content = pickle.load(self.process.stdout)  # noqa: S301 - from a process that we started
        except (EOFError, pickle.UnpicklingError) as error:
            code = self.process.wait()
            copies = f"{self.first} to {self.first + self.count - 1}"
            raise RunFailed(f"the process of environments {copies} ended with exit code {code}") from error
        if kind in KINDS:
            raise KINDS[kind](content)
        return content


class ProcessEnvironments:
    """`Environments` whose copies are in worker processes."""

    def __init__(self, make: Maker, count: int, *, processes: int, history: int = 1) -> None:
        self.successes: list[bool | None] = [None] * count
        self.history = history
        bounds = np.linspace(0, count, min(processes, count) + 1).astype(int).tolist()
        self._workers: list[Worker] = []
        try:
            for first, end in pairwise(bounds):
                self._workers.append(Worker(_process(), first, end - first))
                self._workers[-1].send(make, end - first, history)
            spaces = [worker.answer() for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self.action_space, observation_space = spaces[0]
        self.coder = observation_coder(observation_space)
        self.width = self.coder.size + (history > 1)
        self.observations: Floats = np.zeros((count, history * self.width), np.float32)
        self._owner = [worker for worker in self._workers for _ in range(worker.count)]

    def __len__(self) -> int:
        return len(self.successes)

    def reset(self, index: int, seed: int) -> None:
        """Begins an episode."""
        worker = self._owner[index]
        worker.send("reset", index - worker.first, seed)
        self.observations[index] = worker.answer()

    def step(
        self, actions: Sequence[Any], where: Sequence[int]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Takes one action in each of these copies: rewards, terminated, and truncated where not terminated."""
        rewards = np.empty(len(where))
        terminated, truncated = np.empty(len(where), np.bool_), np.empty(len(where), np.bool_)
        asked: list[tuple[Worker, list[int]]] = []
        for worker in self._workers:
            places = [place for place, index in enumerate(where) if self._owner[index] is worker]
            if places:
                own = [where[place] - worker.first for place in places]
                worker.send("step", [actions[place] for place in places], own)
                asked.append((worker, places))
        for worker, places in asked:
            (rewards[places], terminated[places], truncated[places]), rows, successes = worker.answer()
            indices = [where[place] for place in places]
            self.observations[indices] = rows
            for index, success in zip(indices, successes, strict=True):
                self.successes[index] = success
        return rewards, terminated, truncated

    def close(self) -> None:
        for worker in self._workers:
            assert worker.process.stdin is not None
            assert worker.process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()
        for worker in self._workers:
            try:
                worker.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            assert worker.process.stdout is not None
            worker.process.stdout.close()


def _process() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the questions end."""

    def answer(kind: str, content: Any) -> None:
        pickle.dump((kind, content), answers)
        answers.flush()

    environments: Environments | None = None
    while True:
        try:
            question = pickle.load(questions)  # noqa: S301 - from the process that started this one
        except EOFError:
            break
        try:
            match question:
                case "reset", index, seed:
                    assert environments is not None
                    environments.reset(index, seed)
                    answer("", environments.observations[index])
                case "step", actions, where:
                    assert environments is not None
                    found = environments.step(actions, where)
                    answer("", (found, environments.observations[where], [environments.successes[i] for i in where]))
                case make, count, history:
                    environments = Environments(make, count, history=history)
                    answer("", (environments.action_space, environments.copies[0].observation_space))
        except (RunFailed, UserError) as error:
            answer(type(error).__name__, str(error))
    if environments is not None:
        environments.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends its workers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no answer
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
