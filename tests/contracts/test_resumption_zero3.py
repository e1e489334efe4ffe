"""Contract 4 for models that DeepSpeed's ZeRO-3 spreads: their checkpoints are those of whole models.

Skipped where DeepSpeed is not installed.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import Zygote, only_run, write_recipe
from tests.contracts.ranks import recipe_with_workers
from tests.contracts.test_additivity_ranks import SMOOTH, alike, online_recipe
from tests.contracts.test_resumption import differing, outcome
from tests.contracts.test_resumption_ranks import kill_one
from tests.contracts.test_resumption_spread import (
    FREE,
    files,
    go_on,
    ppo,
    test_moments_are_whole,
    test_nothing_is_pickled_and_transformers_loads_it,
)

__all__ = ["test_moments_are_whole", "test_nothing_is_pickled_and_transformers_loads_it"]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'whet[deepspeed]'"
)


@pytest.fixture(scope="module")
def spread(zygote: Zygote, beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes: a policy, a critic and a reference."""
    place = tmp_path_factory.mktemp("zero3")
    recipe = write_recipe(place / "recipe.yaml", ppo(beginner, update=FREE, distributed="zero3"))
    zygote.run_ranks(2, "train", recipe, "--runs", place / "runs")
    return only_run(place / "runs")


def test_a_run_has_the_bytes_of_whole_models(zygote: Zygote, beginner: Path, spread: Path, tmp_path: Path) -> None:
    """Weights, moments, critic, reference and rollouts, after three steps."""
    recipe = write_recipe(tmp_path / "recipe.yaml", ppo(beginner, update=FREE))
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "runs")
    whole = only_run(tmp_path / "runs")
    assert len([name for name in files(spread) if name.endswith("optimizer.safetensors")]) == 3
    assert differing(files(spread), files(whole)) == []
    assert alike(whole, spread) == []


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (1, ()),
        (2, ("distributed.sharding=none",)),
        (2, ("distributed.sharding=fsdp2",)),
        pytest.param(4, (), marks=pytest.mark.slow),
    ],
)
def test_it_goes_on_otherwise(size: int, words: tuple[str, ...], zygote: Zygote, spread: Path, tmp_path: Path) -> None:
    assert alike(spread, go_on(zygote, spread, tmp_path, size, *words)) == []


@pytest.mark.parametrize("changes", [{}, {"lora": {"rank": 4}}])
def test_whole_models_can_be_spread_later(
    changes: dict[str, Any], zygote: Zygote, beginner: Path, tmp_path: Path
) -> None:
    """Of one process, with clipping and several micro-batches."""
    recipe = online_recipe(beginner) | {"model": {"path": str(beginner), **changes}}
    path = write_recipe(tmp_path / "recipe.yaml", recipe | {"save": {"every_steps": 1, "keep": 9}})
    zygote.run("train", path, "--runs", tmp_path / "one")
    one = only_run(tmp_path / "one")
    assert alike(one, go_on(zygote, one, tmp_path, 2, "distributed.sharding=zero3")) == []


def test_ranks_that_are_killed_change_no_byte(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    """In a pass, whose weights DeepSpeed gathers; the other rank says that it was left."""
    recipe = recipe_with_workers(beginner, tmp_path, steps=4)
    path = write_recipe(tmp_path / "rl.yaml", recipe | {"distributed": "zero3", "optimizer": SMOOTH})
    zygote.run_ranks(2, "train", path, "--runs", tmp_path / "whole")
    kill_one(zygote, path, tmp_path / "runs", 1, "3 whet.train.online.update:read_tokens")
    zygote.run_ranks(2, "train", only_run(tmp_path / "runs"), "--resume")
    assert differing(outcome(only_run(tmp_path / "runs")), outcome(only_run(tmp_path / "whole"))) == []
