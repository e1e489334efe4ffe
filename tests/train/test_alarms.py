"""The doctor beside a run: an alarm that has lasted is said, and ends the run where the recipe asks for it."""

from pathlib import Path

import pytest

from tests.cli.refusal import train_tiny
from whet.runs.directory import RunDirectory

CONSTANT = "def constant(completions, **columns):\n    return [0.5] * len(completions)\n"


@pytest.mark.parametrize(("alarm", "steps"), [("never", 12), ("critical", 6)])
def test_an_alarm_of_its_level_ends_the_run(tmp_path: Path, alarm: str, steps: int) -> None:
    """A constant reward is critical after five steps, and lasts at the second look at it."""
    (tmp_path / "rewards.py").write_text(CONSTANT)
    reward = f"reward.functions=[{tmp_path / 'rewards.py'}:constant]"
    run = RunDirectory.open(train_tiny(tmp_path, "steps=12", reward, f"early_stopping.alarm={alarm}"), is_writer=False)
    assert max(row["step"] for row in run.metrics()) == steps
    results = run.results()
    assert results is not None
    assert ("constant-reward" in str(results)) == (alarm != "never")
