"""`whet explain` of a recipe with loop control: its formulas, and how many actions and updates they are."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from whet.algorithms.cells import formula, name
from whet.config.control import ControlConfig

SHOWN = ("advantage", "scaling", "surrogate", "weighting")  # cells


def explain_control(recipe: str, config: ControlConfig) -> dict[str, Mapping[str, str]]:
    """Heading → facts."""
    rollout, update, entropy = config.rollout, config.update, config.algorithm.entropy
    cells = {kind: config.algorithm.cell(kind) for kind in SHOWN}
    loss = {kind: f"{name(cell)}: {formula(cell)}" for kind, cell in cells.items()}
    if config.needs_values:
        loss["critic"] = f"+ {config.critic.coefficient:g} · value_loss"
    if entropy.is_wanted:
        below = f", more below {entropy.floor:g}" if entropy.floor else ""
        loss["entropy"] = f"− {entropy.coefficient:g} · entropy{below}"
    step: dict[str, str] = {}
    schedule = {"steps": f"{config.steps:,}"}
    if rollout.length:
        count = rollout.environments * rollout.length
        each = ceil(count / (update.minibatch or count))
        step["actions"] = f"{rollout.environments:,} environments × {rollout.length:,} = {count:,}"
        step["updates"] = (
            f"{update.epochs} epochs × {each:,} minibatch{'es' * (each > 1)} = {update.epochs * each:,} updates"
        )
        schedule["actions"] = f"{config.steps * count:,}"
    else:
        group = f" × {rollout.group} from the same start" if rollout.group > 1 else ""
        step["episodes"] = f"{rollout.environments:,}{group}"
        step["updates"] = f"{update.epochs} epochs, {update.minibatch or 'all'} actions in an optimizer step"
    schedule["learning rate"] = f"{config.optimizer.lr:g}, {config.optimizer.schedule}"
    evaluation = config.eval
    if evaluation.every_steps:
        schedule["evaluations"] = f"every {evaluation.every_steps:,} steps, {evaluation.episodes:,} episodes"
    about = {"loop": config.loop, "environment": config.environment.name, "policy": config.policy.kind}
    return {recipe: about, "loss": loss, "one step": step, "schedule": schedule}
