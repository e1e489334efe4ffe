"""What a test may change in a `whet` process before it runs: watch it, or break a contract on purpose."""

import importlib
import os
import resource
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist

from whet.distributed.world import World
from whet.train.session import checkpoint_files
from whet.train.session.session import Session
from whet.train.setup import build

WIDTH = 32  # bytes of the note that says where the process is


def announce(path: str) -> None:
    """Keeps the file at `path` saying which step and stage the process is in: where a kill found it.

    Ranks after the first keep a file of their own beside it.
    """
    rank = os.environ.get("RANK", "0")
    path = path if rank == "0" else f"{path}-{rank}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)

    def say(step: int, stage: str) -> None:
        os.pwrite(file, f"{step} {stage}".ljust(WIDTH).encode(), 0)

    def wrap(stage: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Session, *arguments: Any) -> Any:
            before = whereabouts(Path(path))
            say(self.last, stage)
            result = original(self, *arguments)
            say(*before)
            return result

        return method

    timed, restore = Session.timed, Session._restore

    def watched(self: Session, name: str) -> Any:
        say(self.last + 1, name)
        return timed(self, name)

    say(0, "start")
    Session.timed = watched  # type: ignore[method-assign,assignment]
    Session._restore = wrap("restore", restore)  # type: ignore[method-assign]
    Session._evaluate = wrap("evaluate", Session._evaluate)  # type: ignore[method-assign]
    Session._save = wrap("save", Session._save)  # type: ignore[method-assign]


def whereabouts(path: Path) -> tuple[int, str]:
    """What `announce` last wrote."""
    step, _, stage = path.read_text().strip().partition(" ")
    return int(step or 0), stage


def forget_the_optimizer(_: str) -> None:
    """Broken: a resumed run begins with fresh moments."""
    checkpoint_files.restore_optimizer = lambda *_: None


def average_over_ranks(_: str) -> None:
    """Broken: losses carry global weights already, so dividing by the number of ranks divides twice."""
    original = World.sum_gradients

    def averaged(self: World, parameters: Any) -> None:
        parameters = list(parameters)
        original(self, parameters)
        for parameter in parameters:
            parameter.grad /= dist.get_world_size()

    World.sum_gradients = averaged  # type: ignore[method-assign]


def signal_in(where: str) -> None:
    """`RANKS SIGNAL COUNT MODULE:NAME`: these ranks send themselves the signal when they call NAME a COUNT-th time."""
    ranks, number, goal, target = where.split()
    if os.environ["RANK"] not in ranks:
        return
    module, _, names = target.partition(":")
    *path, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for step in path:
        owner = vars(owner)[step]
    original, calls = vars(owner)[name], count(1)

    def watched(*arguments: Any, **named: Any) -> Any:
        if next(calls) == int(goal):
            os.kill(os.getpid(), signal.Signals[number])
        return original(*arguments, **named)

    setattr(owner, name, watched)


def limit_files(size: str) -> None:
    """No file that the process writes may be longer than `size` bytes: a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))


def wait_while_the_model_is_made(_: str) -> None:
    """The process says `loading` and waits for a signal."""

    def slow(*_: Any, **__: Any) -> None:
        print("loading", flush=True)
        time.sleep(60)

    build.new_decoder_config = slow  # type: ignore[assignment]


HOOKS: dict[str, Callable[[str], None]] = {
    hook.__name__: hook
    for hook in (
        announce,
        forget_the_optimizer,
        average_over_ranks,
        signal_in,
        limit_files,
        wait_while_the_model_is_made,
    )
}
