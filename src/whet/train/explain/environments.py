"""`whet explain` of a recipe for environments: its formulas, and how many actions and updates they are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import ceil

from whet.algorithms import off_policy
from whet.algorithms.cells import formula, name
from whet.config.control import ControlConfig
from whet.config.control.off_policy import OffPolicyConfig
from whet.config.loops import Acting

LOSSES = {
    "sac": {
        "target": off_policy.soft_target,
        "critics": off_policy.twin_loss,
        "policy": off_policy.soft_policy_loss,
        "entropy coefficient": off_policy.temperature_loss,
    },
    "td3": {
        "target": off_policy.clipped_target,
        "actions of targets": off_policy.smoothed_actions,
        "critics": off_policy.twin_loss,
        "policy": off_policy.deterministic_policy_loss,
    },
}
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
    schedule |= _rates_and_evaluations(config)
    about = {"loop": config.loop, "environment": config.environment.name, "policy": config.policy.kind}
    return {recipe: about, "loss": loss, "one step": step, "schedule": schedule}


def explain_off_policy(recipe: str, config: OffPolicyConfig) -> dict[str, Mapping[str, str]]:
    """Heading → facts."""
    rollout, update, replay, algorithm = config.rollout, config.update, config.replay, config.algorithm
    loss = {what: (inspect.getdoc(one) or "").partition("\n")[0] for what, one in LOSSES[algorithm.preset].items()}
    if algorithm.preset == "sac" and algorithm.entropy_coefficient != "auto":
        loss["entropy coefficient"] = f"{algorithm.entropy_coefficient:g}, fixed"
    count = rollout.environments * rollout.length
    updates = rollout.length // update.every_steps * update.gradient_steps
    step = {
        "actions": f"{rollout.environments:,} environments × {rollout.length:,} = {count:,}",
        "updates": f"{update.gradient_steps:,} after every {update.every_steps:,} environment steps = {updates:,}, "
        f"{update.batch_size:,} transitions each",
    }
    buffer = {"size": f"{replay.size:,} transitions", "random actions": f"the first {replay.learning_starts:,}"}
    if replay.hindsight is not None:
        goals = replay.hindsight.goals
        buffer["hindsight"] = f"{goals} of {goals + 1} transitions have a goal that is achieved later in their episode"
    schedule = {"steps": f"{config.steps:,}", "actions": f"{config.steps * count:,}", **_rates_and_evaluations(config)}
    about = {"loop": config.loop, "environment": config.environment.name, "algorithm": algorithm.preset}
    return {recipe: about, "loss": loss, "one step": step, "replay buffer": buffer, "schedule": schedule}


def _rates_and_evaluations(config: Acting) -> dict[str, str]:
    found = {"learning rate": f"{config.optimizer.lr:g}, {config.optimizer.schedule}"}
    evaluation = config.eval
    if evaluation.every_steps:
        found["evaluations"] = f"every {evaluation.every_steps:,} steps, {evaluation.episodes:,} episodes"
    return found
