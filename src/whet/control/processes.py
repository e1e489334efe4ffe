"""Copies of an environment shared among worker processes, which step theirs at the same time.

An episode is a function of its seed and its actions, so nothing depends on how many processes there are. A worker has
Python without torch: `python -m whet.control.processes`. A message is a line of JSON and the bytes of arrays.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from whet.control.environments import Environments, Named
from whet.control.spaces import Floats, observation_coder
from whet.errors import RunFailed, UserError

GRACE = 5.0  # seconds that a worker has to close its environments
KINDS: dict[str, type[Exception]] = {"RunFailed": RunFailed, "UserError": UserError}

Arrays = list[NDArray[Any]]


def write_message(stream: IO[bytes], told: Mapping[str, Any], *arrays: NDArray[Any]) -> None:
    """JSON values, and arrays of numbers behind them."""
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    stream.write(json.dumps({**told, "arrays": shapes}).encode() + b"\n")
    for array in arrays:
        stream.write(array.tobytes())
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays] | None:
    """What `write_message` wrote; None where the stream has ended."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    told, arrays = json.loads(line), Arrays()
    for kind, shape in told.pop("arrays"):
        size = np.dtype(kind).itemsize * int(np.prod(shape))
        content = stream.read(size)
        if len(content) < size:
            return None
        arrays.append(np.frombuffer(bytearray(content), kind).reshape(shape))
    return told, arrays


@dataclass(frozen=True, slots=True)
class Worker:
    """A process and the copies that it holds: those from `first` on."""

    process: subprocess.Popen[bytes]
    first: int
    count: int

    def send(self, question: Mapping[str, Any], *arrays: NDArray[Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says that it has ended
            write_message(self.process.stdin, question, *arrays)

    def answer(self) -> tuple[dict[str, Any], Arrays]:
        """To the question that was sent; raises what the worker raised."""
        assert self.process.stdout is not None
        answered = read_message(self.process.stdout)
        if answered is None:
            code = self.process.wait()
            copies = f"{self.first} to {self.first + self.count - 1}"
            raise RunFailed(f"the process of environments {copies} ended with exit code {code}")
        told, arrays = answered
        if "raised" in told:
            raise KINDS[told["raised"]](told["message"])
        return told, arrays


class ProcessEnvironments:
    """`Environments` whose copies are in worker processes."""

    def __init__(self, make: Named, count: int, *, processes: int, history: int = 1) -> None:
        one = make()  # here, for its spaces
        self.action_space, self.coder = one.action_space, observation_coder(one.observation_space)
        one.close()
        self.successes: list[bool | None] = [None] * count
        self.history = history
        bounds = np.linspace(0, count, min(processes, count) + 1).astype(int).tolist()
        self._workers: list[Worker] = []
        try:
            for first, end in pairwise(bounds):
                self._workers.append(Worker(_process(), first, end - first))
                self._workers[-1].send({"make": asdict(make), "count": end - first, "history": history})
            for worker in self._workers:
                worker.answer()
        except BaseException:
            self.close()
            raise
        self.width = self.coder.size + (history > 1)
        self.observations: Floats = np.zeros((count, history * self.width), np.float32)
        self._owner = [worker for worker in self._workers for _ in range(worker.count)]

    def __len__(self) -> int:
        return len(self.successes)

    def reset(self, index: int, seed: int) -> None:
        """Begins an episode."""
        worker = self._owner[index]
        worker.send({"reset": index - worker.first, "seed": seed})
        (self.observations[index],) = worker.answer()[1]

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
                worker.send({"step": own}, np.stack([np.asarray(actions[place]) for place in places]))
                asked.append((worker, places))
        for worker, places in asked:
            told, (rewards[places], terminated[places], truncated[places], rows) = worker.answer()
            indices = [where[place] for place in places]
            self.observations[indices] = rows
            for index, success in zip(indices, told["successes"], strict=True):
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


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answers until the questions end."""

    environments: Environments | None = None
    while (question := read_message(questions)) is not None:
        asked, arrays = question
        try:
            if environments is None:
                environments = Environments(Named(**asked["make"]), asked["count"], history=asked["history"])
                write_message(answers, {})
            elif "reset" in asked:
                environments.reset(asked["reset"], asked["seed"])
                write_message(answers, {}, environments.observations[asked["reset"]])
            else:
                where, (actions,) = asked["step"], arrays
                found = environments.step(actions.tolist() if actions.ndim == 1 else list(actions), where)
                successes = [environments.successes[index] for index in where]
                write_message(answers, {"successes": successes}, *found, environments.observations[where])
        except (RunFailed, UserError) as error:
            write_message(answers, {"raised": type(error).__name__, "message": str(error)})
    if environments is not None:
        environments.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends its workers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no answer
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
