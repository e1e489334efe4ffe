"""The packaged recipe trains on reasoning-gym's problems with the rewards of the book."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.tiny import Whet
from tests.small import small_chat_model
from whet.runs.directory import RunDirectory

pytestmark = pytest.mark.skipif(not find_spec("reasoning_gym"), reason="the package reasoning-gym is not installed")
QUICK = ("steps=1", "rollout.prompts=2", "rollout.group=2", "rollout.max_tokens=8", "eval.max_tokens=8")


def test_it_trains_a_step(whet: Whet, tmp_path: Path) -> None:
    model = f"model={small_chat_model(tmp_path / 'model')}"
    few = ("eval.examples=4", "device=cpu", "track=[]", "task.held_out_examples=4")
    result = whet("train", "grpo-spell-backward-gym", model, *QUICK, *few, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (path,) = (tmp_path / "runs").iterdir()
    row = RunDirectory.open(path, is_writer=False).metrics()[-1]
    assert row["eval/prompts"] == 4
    assert row["reward/mean"] == pytest.approx(row["parts/accuracy"] + 0.5 * row["parts/format"])
    assert row["parts/failed"] == 0
