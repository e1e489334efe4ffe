"""The trainer's side of a worker in a process of its own on this machine. `worker` has the protocol."""

import os
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from whet.errors import RunFailed, escaped
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung
from whet.train.rollout_pool.broadcasts import Offer
from whet.train.rollout_pool.orders import Order, WorkerSetup
from whet.train.rollout_pool.ticket_pool import WorkerLost

COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "whet.train.rollout_pool.worker_process",
)  # -P: no file here shadows a library
LOAD_SECONDS = 600.0  # the least that a worker is given to import torch and read a model from a cold disk
SHOWN_BYTES = 2000  # of the last output
VISIBLE = "CUDA_VISIBLE_DEVICES"


def worker_device(kind: str, number: int, others: Collection[str] = ()) -> str:
    """The device of a worker: the GPUs that no trainer process of this machine has, in turn, or the first one.

    Not those of other models either, which are `others`.
    """
    if kind == "cpu":
        return kind
    trainers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free = [f"{kind}:{index}" for index in range(trainers, torch.cuda.device_count())]
    free = [device for device in free if device not in others] or [f"{kind}:0"]
    return free[number % len(free)]


def with_vllm(setup: WorkerSetup, environment: Mapping[str, str]) -> tuple[WorkerSetup, dict[str, str]]:
    """A worker's setup and environment: a vLLM takes the first GPU that it sees, or would bind threads to all cores."""
    found = {**environment, "OMP_NUM_THREADS": str(setup.threads)}
    kind, _, index = setup.device.partition(":")
    if setup.engine.get("name") != "vllm":
        return setup, found
    if kind == "cpu":
        return setup, {"VLLM_CPU_OMP_THREADS_BIND": "nobind", **found}
    seen = [name for name in environment.get(VISIBLE, "").split(",") if name]
    place = int(index or 0)
    return replace(setup, device=f"{kind}:0"), {**found, VISIBLE: seen[place] if seen else str(place)}


class LocalWorker:
    """A child process that samples; killed when an order takes longer than its limit."""

    def __init__(self, number: int, setup: WorkerSetup, *, answers: Path, limit_seconds: float) -> None:
        """`answers`: a directory for the files in which it answers."""
        self._number, self._setup, self._answers, self._limit = number, setup, answers, limit_seconds
        self._child: Child | None = None
        self._printed = bytearray()
        self._is_ended = False

    @property
    def name(self) -> str:
        return "not started" if self._child is None else f"process {self._child.pid}"

    @property
    def last_output(self) -> str:
        return escaped(" ".join(self._printed[-SHOWN_BYTES:].decode(errors="replace").split()))

    def start(self) -> None:
        setup, environment = with_vllm(self._setup, os.environ)
        self._child = Child(COMMAND, environment, printed=self._print)
        if self._is_ended:  # meanwhile
            self._child.end()
        message = {**asdict(setup), "answers": str(self._answers)}
        if "ready" not in self._asked(message, max(LOAD_SECONDS, self._limit)):
            raise WorkerLost("gave an answer that is none")

    def sample(self, order: Order) -> bytes:
        reply = self._asked(order.packed(), self._limit)
        try:
            file = Path(reply["file"])
            answer = file.read_bytes()
        except (KeyError, OSError) as error:
            raise WorkerLost(f"gave an answer that is none ({error})") from error
        file.unlink(missing_ok=True)
        return answer

    def receive(self, offer: Offer) -> str:
        reply = self._asked({"offer": offer.packed()}, offer.limit_seconds)
        if not isinstance(reply.get("missed"), str):
            raise WorkerLost("gave an answer that is none")
        return str(reply["missed"])

    def end(self) -> None:
        self._is_ended = True
        if self._child is not None:
            self._child.end()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _asked(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._child is not None
        deadline = time.monotonic() + seconds
        try:
            self._child.send(message, deadline=deadline)
            reply = self._child.receive(deadline=deadline)
        except ChildHung:
            raise WorkerLost(f"did not answer within {seconds:g} s") from None
        except ChildDied as error:
            raise WorkerLost(str(error)) from None
        except ChildGarbled as error:
            raise WorkerLost(f"answered {error}") from None
        if "failed" in reply:
            raise RunFailed(f"rollout worker {self._number}: {reply['failed']}")
        return reply

    def _print(self, text: bytes) -> None:
        self._printed += text
        del self._printed[: -2 * SHOWN_BYTES]
