"""A real `whet ui` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WHET = [sys.executable, "-m", "whet"]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder for the block; yields the address."""
    process = subprocess.Popen([*WHET, "ui", str(folder), "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "whet ui ended"
            told += line
        yield json.loads(told)["url"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def training(folder: Path, name: str, *settings: str) -> subprocess.Popen[bytes]:
    """Starts to train a small model to sort."""
    arguments = ["train", "grpo-sorting", "--out", str(folder / name), *settings]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*WHET, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet)
