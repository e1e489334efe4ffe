"""The exercises, in the order of the chapters."""

from __future__ import annotations

from whet.errors import UserError, nearest
from whet.learn.bugs.broken_runs import RUNS
from whet.learn.bugs.hunt import BUGS
from whet.learn.exercise import Exercise
from whet.learn.language import attention_exercise, bigram_exercise, byte_pair_exercise, next_token_exercise
from whet.learn.policy_gradients import (
    bandit_exercise,
    baseline_exercise,
    gae_exercise,
    group_exercise,
    kl_exercise,
    ppo_exercise,
    return_exercise,
)
from whet.learn.preferences import dpo_exercise, pair_reward_exercise

EXERCISES: tuple[Exercise, ...] = (
    bigram_exercise.EXERCISE,
    byte_pair_exercise.EXERCISE,
    attention_exercise.EXERCISE,
    next_token_exercise.EXERCISE,
    bandit_exercise.EXERCISE,
    return_exercise.EXERCISE,
    baseline_exercise.EXERCISE,
    gae_exercise.EXERCISE,
    ppo_exercise.EXERCISE,
    group_exercise.EXERCISE,
    kl_exercise.EXERCISE,
    pair_reward_exercise.EXERCISE,
    dpo_exercise.EXERCISE,
    *BUGS,
    *RUNS,
)


def find(wanted: str) -> Exercise:
    """An exercise by number or name."""
    if wanted.isdecimal() and 1 <= int(wanted) <= len(EXERCISES):
        return EXERCISES[int(wanted) - 1]
    for exercise in EXERCISES:
        if exercise.name == wanted:
            return exercise
    close = nearest(wanted, [exercise.name for exercise in EXERCISES])
    raise UserError(f"no exercise {wanted!r}{close}; there are 1 to {len(EXERCISES)}: `whet learn list`")


def number_of(exercise: Exercise) -> int:
    """Its place in the list, from 1."""
    return EXERCISES.index(exercise) + 1
