"""Packaged recipes: every key that they write has an effect."""

import pytest

from whet.recipe import Pipeline, packaged_recipes, parse_yaml, read_any
from whet.train.explain.unused_keys import keys_without_effect


@pytest.mark.parametrize("name", packaged_recipes())
def test_packaged_recipes_write_no_key_that_does_nothing(name: str) -> None:
    is_starter = not {"model", "stages", "environment"} & set(parse_yaml(packaged_recipes()[name], where=name))
    of_task = "task" in parse_yaml(packaged_recipes()[name], where=name)
    own = ["model=DIR", "task.path=FILE" if of_task else "data=FILE", "reward.functions=[rewards.py:f]"]
    own = own[: {"grpo": 3, "ppo": 3, "grpo-spell-backward-gym": 1}.get(name, 2)] if is_starter else []
    found = read_any(name, own)
    for recipe in found.runs().values() if isinstance(found, Pipeline) else [found]:
        assert keys_without_effect(recipe) == {}, recipe.name
