"""A local Ray: actors that are killed change no byte. Needs the package ray."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.rollout_pool.here import STEPS, Heard, same, train, written

ACTOR = b"ray::SamplerActor"

pytestmark = pytest.mark.slow


def actors() -> list[int]:
    found = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and (directory / "cmdline").read_bytes().startswith(ACTOR):
                found.append(int(directory.name))
        except OSError:
            continue
    return found


class Killing(Heard):
    """Kills a random actor after some steps."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self.steps, self.rng, self.killed = steps, random.Random(4), 0

    def step(self, step: int, *given: Any) -> None:
        if step in self.steps and (pids := actors()):
            os.kill(self.rng.choice(pids), signal.SIGKILL)
            self.killed += 1


@pytest.mark.parametrize("hand_off", ["files", "broadcast"])
def test_three_actors_killed_at_random_change_no_byte(
    hand_off: str,
    model: Path,
    undisturbed: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    progress = Killing([3, 9, 10, 18])
    run = train(written(model, pool="ray", workers=3, threads=1, hand_off=hand_off), tmp_path / "run", progress)
    assert progress.killed >= 3
    assert any("Ray actor" in note and "was lost" in note for note in progress.notes)
    same(undisturbed, run)
    assert len(list(run.glob("rollouts/*"))) > STEPS // 3
    assert actors() == []
