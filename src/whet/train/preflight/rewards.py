"""Checks on a few real rollouts: rewards differ, advantages have the scale of their cells, the loss points right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from whet.algorithms import advantages as a
from whet.algorithms.cells import Cell, name, plain
from whet.algorithms.table import ADVANTAGES, SCALINGS, Algorithm
from whet.number_format import number, percent
from whet.records import Batch
from whet.rollout import Group
from whet.tasks.protocol import Grader, is_reward
from whet.train.preflight.results import CheckFailed, NotTried

TOLERANCES = {0.0: 1e-4, 1.0: 1e-2}  # of a mean that should be 0, a deviation that should be 1
WRONG_SIGN = 0.01  # share of tokens that a loss may push the wrong way
OF_GROUPS = (a.center, a.leave_one_out, a.standardize, a.over_valid, a.max_likelihood)  # their mean in a group is 0
CONSTANT = "nothing can be learned from equal rewards"


def differ(grader: Grader, groups: Sequence[Group], cold_start: int = 0) -> str:
    """The rewards of a few rollouts are not all the same; else whether expected answers get another one.

    `cold_start`: supervised steps that the run makes first, without which its policy may never be right.
    """
    rewards = [rollout.score.reward for group in groups for rollout in group if not rollout.score.is_missing]
    if not rewards:
        raise CheckFailed("the reward failed on every rollout")
    if not all(map(is_reward, rewards)):
        raise CheckFailed("a reward is not a finite number")
    low, high = min(rewards), max(rewards)
    if low < high:
        compared = [group for group in groups if len(group) > 1]
        uneven = sum(len({rollout.score.reward for rollout in group}) > 1 for group in compared)
        of_groups = f"; they differ in {percent(uneven / len(compared))} of {len(compared)} groups" if compared else ""
        return f"{len(rewards)} rollouts got {number(low)} to {number(high)}{of_groups}"
    constant, best = f"all {len(rewards)} rollouts got {number(low)}", _of_answers(grader, groups)
    if best is None:
        raise CheckFailed(f"{constant}: {CONSTANT}")
    if best <= low:
        raise CheckFailed(
            f"{constant}: {CONSTANT}; the expected answers get no more, so the reward does not depend on what is "
            "written"
        )
    works = f"the expected answers get up to {number(best)}, so the reward works"
    if cold_start:
        raise NotTried(
            f"{constant} before the {cold_start} supervised steps of cold_start, which are not made here; {works}"
        )
    raise CheckFailed(
        f"{constant}: {CONSTANT}; {works} and the policy is never right: take easier prompts, more rollouts "
        "(rollout.group) or a supervised start (cold_start.steps)"
    )


def _of_answers(grader: Grader, groups: Sequence[Group]) -> float | None:
    """The best reward of the expected answers; None if there are none, or none that can be graded alone."""
    examples = [group[0].example for group in groups if group[0].example.answer]
    if not examples:
        return None
    try:
        scores = grader.grade(examples, [example.answer for example in examples])
    except ValueError:  # a grader that needs tokens
        return None
    return max((score.reward for score in scores if not score.is_missing), default=None)


def normalised(algorithm: Algorithm, batch: Batch, group: int) -> str:
    """Advantages are finite and 0 off the trained tokens, and have the mean and deviation that their cells promise."""
    values, mask = batch.advantages.double().cpu(), batch.sequences.mask.cpu()
    if not bool(values.isfinite().all()):
        raise CheckFailed("an advantage is not a finite number")
    if bool((values[~mask] != 0).any()):
        raise CheckFailed("advantages lie on tokens that are not trained")
    if not bool((values != 0).any()):
        raise NotTried("all advantages are 0, because the rewards of every group are equal")
    rollouts = ((values * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).view(-1, group)
    rollouts = rollouts[mask.any(dim=1).view(-1, group).all(dim=1)]  # groups of which every rollout is trained on
    found = {
        **_scaled(algorithm.scaling, values[mask]),
        **(_of_cell(algorithm.advantage, rollouts) if plain(algorithm.scaling) is a.unscaled else {}),
    }
    for what, (value, wanted) in found.items():
        if not math.isclose(value, wanted, abs_tol=TOLERANCES[wanted]):
            raise CheckFailed(f"{what} is {value:.4g} instead of {wanted:g}, as {_called(algorithm)} says")
    own = [cell for cell in (algorithm.advantage, algorithm.scaling) if not _is_packaged(cell)]
    told = ", ".join(f"{what} {value:.2g}" for what, (value, _) in found.items())
    rest = f"mean {float(values[mask].mean()):.2g}, deviation {float(values[mask].std()):.2g} over trained tokens"
    if own:
        raise NotTried(f"{name(own[0])} is your own function, whose scale is not known here: {rest}")
    return f"{_called(algorithm)}: {told or f'promises no scale; {rest}'}"


def _called(algorithm: Algorithm) -> str:
    scaling = "" if plain(algorithm.scaling) is a.unscaled else f" with {name(algorithm.scaling)}"
    return f"{name(algorithm.advantage)}{scaling}"


def _is_packaged(cell: Cell) -> bool:
    return plain(cell) in {plain(one) for one in (*ADVANTAGES.values(), *SCALINGS.values())}


def _scaled(scaling: Cell, values: Tensor) -> Mapping[str, tuple[float, float]]:
    """What a scaling promises of the trained tokens: what → value and what it should be."""
    if plain(scaling) is not a.whiten:
        return {}
    return {
        "the mean over trained tokens": (float(values.mean()), 0.0),
        "their deviation": (float(values.std(correction=0)), 1.0),
    }


def _of_cell(advantage: Cell, rollouts: Tensor) -> Mapping[str, tuple[float, float]]:
    """What an advantage promises of the (P, G) rollouts; the farthest group counts."""
    if plain(advantage) is a.over_batch:
        return {"the mean over the batch": (float(rollouts.mean()), 0.0)}
    if plain(advantage) not in OF_GROUPS or not len(rollouts):
        return {}
    means = rollouts.mean(dim=1)
    found = {"the mean in a group": (float(means[means.abs().argmax()]), 0.0)}
    if plain(advantage) is a.standardize:
        spread = [float(one.std()) for one in rollouts if bool(one.max() > one.min())]
        if spread:
            found["the deviation in a group"] = (max(spread, key=lambda value: abs(value - 1)), 1.0)
    return found


def points_right(metrics: Mapping[str, float], batch: Batch) -> str:
    """The loss makes tokens with a positive advantage likelier and the others less likely, in a first update."""
    if not bool((batch.advantages != 0).any()):
        raise NotTried("all advantages are 0, so the loss has no direction")
    if "surrogate/wrong_sign" not in metrics:
        raise NotTried("no update was made")
    share = metrics["surrogate/wrong_sign"]
    if share > WRONG_SIGN:
        raise CheckFailed(
            f"at {percent(share)} of the trained tokens the loss lowers what the advantage says to raise, or the "
            "reverse: its sign is wrong (algorithm.surrogate)"
        )
    return f"against the advantage at {percent(share)} of the trained tokens"
