"""Real `whet` commands in processes of their own, and tiny recipes for them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCES = f"{ROOT / 'src'}{os.pathsep}{ROOT}"  # this tree, whichever one is installed
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": SOURCES, "CUDA_VISIBLE_DEVICES": ""}
LIMIT_SECONDS = 120.0

TASK = {"name": "sorting", "level": 1}
SUPERVISED: dict[str, Any] = {
    "loop": "offline",
    "steps": 30,
    "seed": 3,
    "model": {"new": {"family": "llama", "layers": 1, "heads": 2, "width": 32, "context": 16}},
    "task": TASK,
    "batch_size": 16,
    "optimizer": {"lr": 1e-2, "schedule": "linear", "warmup_steps": 3},
    "update": {"micro_batch_tokens": 64},
    "eval": {"every_steps": 10, "examples": 24, "max_tokens": 6},
    "save": {"every_steps": 4, "keep": 2},
    "track": [],
}


def online(model: Path | str, **changes: Any) -> dict[str, Any]:
    """A recipe in which everything happens: clipping, several updates, KL, a temperature, mixed cadences."""
    return {
        "steps": 60,
        "seed": 5,
        "model": str(model),
        "task": TASK,
        "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.02}},
        "rollout": {"prompts": 5, "group": 6, "max_tokens": 6, "temperature": 0.9},
        "update": {"epochs": 2, "minibatches": 2, "micro_batch_tokens": 64},
        "optimizer": {"lr": 1e-3, "schedule": "cosine", "warmup_steps": 3, "weight_decay": 0.01},
        "eval": {"every_steps": 4, "examples": 24, "max_tokens": 6, "samples": 2, "ks": [1, 2]},
        "save": {"every_steps": 3, "keep": 2, "rollouts_every_steps": 2},
        "track": [],
        **changes,
    }


def blank_report(path: Path) -> Path:
    """Files where a run's report belongs."""
    for name in ("training_curves.png", "report.html"):
        (path / name).write_text("")
    return path / "report.html"


def blank_picture(figure: object) -> bytes:
    """In place of the PNG of a figure."""
    return b"\x89PNG\r\n\x1a\n"


def write_recipe(path: Path, recipe: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(dict(recipe)))
    return path


@dataclass
class Process:
    """A command that the zygote forked."""

    zygote: "Zygote"
    pid: int
    log: Path

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        code = self.zygote.ask(do="wait", pid=self.pid, seconds=LIMIT_SECONDS)
        assert isinstance(code, int), f"{code}: {self.said()}"
        return code

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until(self, happened: Any, what: str) -> None:
        """Returns as soon as `happened()` is true."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not happened():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.said()}"
            time.sleep(0.0005)


class Zygote:
    """Forks commands from a process that has imported everything."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contracts.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
        )
        self._logs = (directory / f"command-{number:03d}.txt" for number in count())

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self, *arguments: object, environment: Mapping[str, str] | None = None, hooks: Mapping[str, str] | None = None
    ) -> Process:
        """`whet …` in a process of its own."""
        log = next(self._logs)
        words = [str(argument) for argument in arguments]
        request = {"arguments": words, "log": str(log), "environment": dict(environment or {}), "hooks": hooks or {}}
        return Process(self, self.ask(do="start", **request), log)

    def run(self, *arguments: object, **options: Any) -> Process:
        """`whet …` to its good end."""
        process = self.start(*arguments, **options)
        code = process.wait()
        assert code == 0, process.said()
        return process

    def start_ranks(
        self, size: int, *arguments: object, environment: Mapping[str, str] | None = None, **options: Any
    ) -> list[Process]:
        """`whet …` in `size` processes that train together, as torchrun starts them."""
        shared = {**together(size), **(environment or {})}
        return [self.start(*arguments, environment=as_rank(shared, rank), **options) for rank in range(size)]

    def run_ranks(self, size: int, *arguments: object, **options: Any) -> None:
        """The same, to their good end."""
        ranks = self.start_ranks(size, *arguments, **options)
        codes = [rank.wait() for rank in ranks]
        assert codes == [0] * size, [rank.said() for rank in ranks]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=LIMIT_SECONDS)


def together(size: int) -> dict[str, str]:
    """What the environments of processes that train together have in common."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def as_rank(shared: Mapping[str, str], rank: int) -> dict[str, str]:
    return {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}


def only_run(root: Path) -> Path:
    """The one run directory in `root`."""
    (run,) = root.iterdir()
    return run
