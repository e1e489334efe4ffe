"""Rollout workers with a real vLLM in each: weights by files and by broadcast, and one of them killed."""

import os
import signal
from pathlib import Path

import pytest

from tests.rollout_pool.test_processes import gone, workers_of
from tests.with_vllm.test_training import WRITTEN, Silent
from whet.recipe import Recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

pytestmark = pytest.mark.vllm


class Killer(Silent):
    """Kills the worker after the second step."""

    def __init__(self) -> None:
        self.killed, self.notes = 0, list[str]()

    def step(self, step, metrics, timings):
        if step == 2:
            (self.killed,) = workers_of(os.getpid())
            os.kill(self.killed, signal.SIGKILL)

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("hand_off", ["files", "broadcast"])
def test_a_run_whose_worker_is_killed(hand_off: str, tmp_path: Path) -> None:
    ahead = {"staleness": 1, "workers": 1, "threads": 1, "hand_off": hand_off}
    written = {**WRITTEN, "steps": 5, "engine": {"name": "vllm", "max_sequences": 16}, "asynchronous": ahead}
    progress = Killer()
    recipe = Recipe(name="test", config=validate(written, where="here"), written=written)
    run = start_run(recipe, tmp_path, lambda config, run: progress)
    assert any(f"process {progress.killed}) was killed by SIGKILL" in note for note in progress.notes)
    assert workers_of(os.getpid()) == []
    assert gone([progress.killed])
    rows = {row["step"]: row for row in RunDirectory.open(run, is_writer=False).metrics()}
    assert [rows[step]["staleness/max"] for step in range(1, 6)] == [0, 1, 1, 1, 1]
    assert 0 < rows[1]["mismatch/mean"] < 1e-5  # fp32 in both, other kernels
    assert rows[5]["mismatch/mean"] > rows[1]["mismatch/mean"]  # the policy has moved since
    assert all(rows[step]["updates"] == 1 for step in range(1, 6))
