"""Rollouts that cannot fit in memory are refused before a model or an example is built."""

from pathlib import Path

import pytest

from tests.cli.refusal import write_recipe
from whet.cli.progress import SilentProgress
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.train.setup.rollout_memory import COMPLETION_BYTES, PROMPT_BYTES, TOKEN_BYTES, refuse_rollouts_beyond_memory
from whet.train.start import start_run


def test_more_prompts_than_any_machine_holds_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    recipe = read_recipe(str(write_recipe(tmp_path)), ["rollout.prompts=1000000000000"])
    told = r"=1,000,000,000,000 × rollout.group=2 is 2,000,000,000,000 completions a step, more than 1,500,000.0 GB"
    with pytest.raises(UserError, match=told):
        start_run(recipe, tmp_path / "runs", lambda *_: SilentProgress())
    assert not (tmp_path / "runs").exists()


def test_the_estimate_by_hand(tmp_path: Path) -> None:
    config = read_recipe(str(write_recipe(tmp_path)), ["rollout.prompts=10"]).config
    least = 10 * PROMPT_BYTES + 20 * COMPLETION_BYTES
    most = least + 20 * 3 * TOKEN_BYTES
    with pytest.raises(UserError, match="lower rollout"):
        refuse_rollouts_beyond_memory(config, least - 1)
    assert "up to rollout.max_tokens=3 tokens" in refuse_rollouts_beyond_memory(config, most - 1)
    assert refuse_rollouts_beyond_memory(config, most) == ""
