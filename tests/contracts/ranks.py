"""Two processes that train together and lose each other: what is left of them, and what they said."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import LIMIT_SECONDS, Process, online

MARK = "WHET_TEST_MARK"  # in the environment of ranks: what carries it and is no rank is a worker of one
PROCESSES = Path("/proc")
REWARDS = """
def tidy(completions, **columns):
    return [float(text == "".join(sorted(text))) for text in completions]
"""


def recipe_with_workers(model: Path, directory: Path, **changes: Any) -> dict[str, Any]:
    """Something of everything, and a reward that runs in a process of its own on every rank."""
    (directory / "rewards.py").write_text(REWARDS)
    return online(
        model,
        rollout={"prompts": 4, "group": 4, "max_tokens": 6, "temperature": 0.9},
        update={"micro_batch_tokens": 256},
        reward={"functions": [f"{directory / 'rewards.py'}:tidy"]},
        eval={"every_steps": 4, "examples": 6, "max_tokens": 6},
        save={"every_steps": 2, "keep": 2, "rollouts_every_steps": 2},
        **changes,
    )


def carrying(mark: str) -> dict[int, str]:
    """The processes that were started with this mark: id → command. A zombie has neither."""
    found = {}
    for directory in PROCESSES.glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found[int(directory.name)] = (directory / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it ended, or is not ours
            continue
    return found


def nothing_left_of(mark: str) -> None:
    """Fails where a process that was started with this mark does not end."""
    if not PROCESSES.is_dir():
        pytest.skip("looks for processes in /proc")
    deadline = time.monotonic() + LIMIT_SECONDS
    while left := carrying(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def lost_the_other(survivor: Process, run: Path, other: int) -> None:
    """The survivor ended by itself, with one sentence."""
    code, said = survivor.wait(), survivor.said()
    assert code == 1, said
    assert "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if line.startswith("whet: ")]
    assert f"rank {other} of the run has ended" in sentence
    assert f"continue with: whet train {run} --resume" in sentence
