"""The model that a stage of a pipeline starts from, before the stages that make it have run. Imports no torch."""

from collections.abc import Mapping
from dataclasses import replace

from whet.config.loops import Acting
from whet.config.pipeline import REFERENCE
from whet.recipe import Recipe


def with_stage_model(recipe: Recipe, stages: Mapping[str, Recipe]) -> Recipe:
    """The recipe with the start model of the stage that it continues: it has the same shape."""
    assert not isinstance(recipe.config, Acting)
    own = recipe.config.model
    match = REFERENCE.fullmatch(own.path)
    if match is None or match[2]:
        return recipe
    before = with_stage_model(stages[match[1]], stages).config
    assert not isinstance(before, Acting)
    first = before.model
    chat = {key: getattr(own, key) or getattr(first, key) for key in ("chat_template", "system_prompt")}
    model = first.model_copy(update={"gradient_checkpointing": own.gradient_checkpointing, **chat})
    return replace(recipe, config=recipe.config.model_copy(update={"model": model}))
