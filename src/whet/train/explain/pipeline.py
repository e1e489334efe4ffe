"""Explaining a pipeline, run by run, before any of them has begun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from whet.config.loops import CollectConfig
from whet.config.pipeline import REFERENCE, references
from whet.errors import UserError
from whet.recipe import Pipeline, Recipe, plain
from whet.train.explain.recipe import Explanation, explain


def explain_pipeline(pipeline: Pipeline) -> dict[str, Explanation | str]:
    """Dotted name of each run → what it will do; or why that cannot be known before an earlier stage has run."""
    stages = {recipe.name: recipe for recipe in pipeline.stages()}
    return {name: _explain(_with_model(recipe, stages)) for name, recipe in pipeline.runs().items()}


def _explain(recipe: Recipe) -> Explanation | str:
    if isinstance(recipe.config, CollectConfig):
        return _collected(recipe.config)
    try:
        return explain(recipe)
    except UserError as error:
        missing = references(plain(recipe.config))
        if not missing:
            raise
        return f"known when {' and '.join(sorted(missing))} is there ({error})"


def _collected(config: CollectConfig) -> str:
    drawn = config.steps * config.rollout.prompts
    by = f"the reward model {config.reward.model.path}" if config.reward.model else f"task {config.task.name}"
    return f"collects {config.select}: {drawn:,} prompts × {config.rollout.group:,} completions, scored by {by}"


def _with_model(recipe: Recipe, stages: Mapping[str, Recipe]) -> Recipe:
    """The recipe with the model that the stage it starts from has started from: the shape is the same."""
    own = recipe.config.model
    match = REFERENCE.fullmatch(own.path)
    if match is None or match[2]:
        return recipe
    first = _with_model(stages[match[1]], stages).config.model
    model = first.model_copy(update={"gradient_checkpointing": own.gradient_checkpointing})
    return replace(recipe, config=recipe.config.model_copy(update={"model": model}))
