"""Runs that sample ahead, and workers in threads of this process with what can happen to them."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.contracts.command import LIMIT_SECONDS, online
from whet.cli.progress import SilentProgress
from whet.distributed.weight_broadcast import Missed
from whet.recipe import Recipe, validate
from whet.train.online import asynchronous
from whet.train.rollout_pool.broadcasts import Offer
from whet.train.rollout_pool.orders import Order, WorkerSetup
from whet.train.rollout_pool.sampler import Sampler
from whet.train.rollout_pool.ticket_pool import WorkerLost
from whet.train.start import start_run

Before = Callable[["ThreadWorker", Order], None]

STEPS = 24
AHEAD = {"algorithm": {"preset": "grpo", "importance_correction": "token_truncate", "kl": {"coefficient": 0.02}}}


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

    def receive(self, offer: Offer) -> str:
        assert self.sampler is not None
        try:
            self.sampler.receive(offer)
        except Missed as error:
            return str(error)
        return ""

    def end(self) -> None: ...

    def close(self) -> None: ...


def in_threads(monkeypatch: Any, before: Before = lambda *_: None) -> None:
    """Runs of this test have such workers; `before` every order something may happen."""

    def make(settings: Any, setup: WorkerSetup, directory: Path, others: Any) -> Any:
        assert directory.is_dir()
        return (lambda number: ThreadWorker(number, setup, before)), lambda: None

    monkeypatch.setattr(asynchronous, "worker_maker", make)
    monkeypatch.setattr("whet.train.rollout_pool.ticket_pool.PAUSE_SECONDS", 0.0)


def unreliable(seed: int, share: float) -> Before:
    """Workers that are lost with this share of their orders, never twice in a row with one draw."""
    rng, lock = random.Random(seed), threading.Lock()
    lost: list[int] = []

    def before(_: ThreadWorker, order: Order) -> None:
        with lock:
            if lost[-1:] != [order.part.draw] and rng.random() < share:
                lost.append(order.part.draw)
                raise WorkerLost("was killed by SIGKILL")

    before.lost = lost  # type: ignore[attr-defined]
    return before


def until(happened: Callable[[], bool]) -> None:
    """Waits, not for ever."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def recipe(model: Path, asynchronous: Any = None, **changes: Any) -> dict[str, Any]:
    written = online(model, steps=7, device="cpu", **changes)
    written["eval"] = {"every_steps": 3, "examples": 8, "max_tokens": 6}
    written["save"] = {"every_steps": 2, "keep": 9}
    return written if asynchronous is None else {**written, "asynchronous": asynchronous}


class Heard(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def train(written: dict[str, Any], path: Path, progress: SilentProgress | None = None) -> Path:
    config = validate(written, where="test")
    named = Recipe(name="ahead", config=config, written={})
    return start_run(named, path.parent, lambda *_: progress or SilentProgress(), path=path)


def content(run: Path) -> dict[str, bytes]:
    """Everything of a run that may not depend on time: metrics, answers, rollouts, weights, moments."""
    kept = ("metrics.jsonl", "evals/*", "rollouts/*", "best_model/*.safetensors", "checkpoints/*/*.safetensors")
    files = [*(path for some in kept for path in run.glob(some)), *run.glob("checkpoints/*/model/*.safetensors")]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def same(one: Path, other: Path) -> None:
    mine, theirs = content(one), content(other)
    assert mine.keys() == theirs.keys()
    assert len(mine) > 10
    assert [name for name in mine if mine[name] != theirs[name]] == []


def written(model: Path, **ahead: Any) -> dict[str, Any]:
    """A run that is long enough to be disturbed."""
    return {**recipe(model, {"staleness": 2, "workers": 2, **ahead}, **AHEAD), "steps": STEPS}
