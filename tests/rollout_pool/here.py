"""Workers in threads of this process, with what can happen to them; the rest of a run is as always."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whet.train.online import asynchronous
from whet.train.rollout_pool.orders import Order, WorkerSetup
from whet.train.rollout_pool.pool import WorkerLost
from whet.train.rollout_pool.sampler import Sampler

Before = Callable[["ThreadWorker", Order], None]


class ThreadWorker:
    """Samples in the thread that asks."""

    last_output = ""

    def __init__(self, number: int, setup: WorkerSetup, before: Before) -> None:
        self.number, self.setup, self.before = number, setup, before
        self.sampler: Sampler | None = None

    @property
    def name(self) -> str:
        return f"thread {self.number}"

    def start(self) -> None:
        self.sampler = Sampler(self.setup)

    def sample(self, order: Order) -> bytes:
        assert self.sampler is not None
        self.before(self, order)
        return self.sampler.sample(order)

    def end(self) -> None: ...

    def close(self) -> None: ...


def in_threads(monkeypatch: Any, before: Before = lambda *_: None) -> None:
    """Runs of this test have such workers; `before` every order something may happen."""

    def make(settings: Any, setup: WorkerSetup, directory: Path) -> Any:
        assert directory.is_dir()
        return (lambda number: ThreadWorker(number, setup, before)), lambda: None

    monkeypatch.setattr(asynchronous, "worker_maker", make)
    monkeypatch.setattr("whet.train.rollout_pool.pool.PAUSE_SECONDS", 0.0)


def unreliable(seed: int, share: float) -> Before:
    """Workers that are lost with this share of their orders, never twice in a row with one draw."""
    rng, lock = random.Random(seed), threading.Lock()
    lost: list[int] = []

    def before(_: ThreadWorker, order: Order) -> None:
        with lock:
            if lost[-1:] != [order.ticket.draw] and rng.random() < share:
                lost.append(order.ticket.draw)
                raise WorkerLost("was killed by SIGKILL")

    before.lost = lost  # type: ignore[attr-defined]
    return before
