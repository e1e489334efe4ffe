"""Updates of a policy that really moves: what is compared with the sampler, and where they end."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.train import scenes
from tests.train.scenes import Table, config_of, groups_of, pull
from whet.errors import RunFailed
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import Old


def taught(old: Old, *, error: float, **settings: Any) -> tuple[Table, dict[str, float]]:
    """A table that really moves, taught by rollouts whose log-probs are off by `error`."""
    policy = Table()
    config = config_of({"preset": "grpo"}, **settings)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    learner = replace(scenes.learner_of(policy, config, optimizer=optimizer), old=old)
    try:
        batch, _, metrics = scenes.annotated(learner, groups_of(policy, error=error))
        return policy, metrics | update(learner, batch, step=1)
    except RunFailed as failure:
        failure.add_note(str(policy.logits.tolist()))
        raise


@pytest.mark.parametrize("old", ["read", "own", "sampled"])
def test_a_wrong_sampler_stops_the_run_before_the_policy_moves(old: Old) -> None:
    with pytest.raises(RunFailed, match=r"disagree by 0.2 nats .* \(limit 0.1\)") as failure:
        taught(old, error=0.2)
    assert failure.value.__notes__ == [str(Table().logits.tolist())]
    moved, metrics = taught(old, error=0.05)
    assert metrics["mismatch/mean"] == pytest.approx(0.05, rel=1e-4)
    assert metrics["mismatch/kl"] == pytest.approx(math.exp(-0.05) - 1 + 0.05, rel=1e-3)
    assert float((moved.logits - Table().logits).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("old", ["read", "sampled"])
def test_only_the_first_update_is_compared_with_the_sampler(old: Old) -> None:
    """By the later ones the policy has moved, which is no disagreement."""
    _, metrics = taught(old, error=0.0, epochs=3, minibatches=2)
    assert metrics["updates"] == 6
    assert metrics["approx_kl"] > 1e-3
    assert metrics["mismatch/max"] < 1e-5


@pytest.mark.parametrize("old", ["read", "sampled"])
def test_updates_end_where_the_policy_has_moved_far(old: Old) -> None:
    free, _ = taught(old, error=0.0, epochs=1)
    _, once = taught(old, error=0.0, epochs=2)
    reached = 2 * once["approx_kl"]  # nothing at the first update, so this is the KL before the second one
    held, metrics = taught(old, error=0.0, epochs=5, target_kl=0.9 * reached)
    assert metrics["updates"] == 1
    assert torch.equal(held.logits, free.logits)  # the second was computed, and not taken
    _, metrics = taught(old, error=0.0, epochs=2, target_kl=1.1 * reached)
    assert metrics["updates"] == 2


def test_an_update_that_reads_its_own_log_probs_follows_the_gradient_of_the_first_one() -> None:
    """Every ratio is 1, and it is the ratio that pulls: by hand as in test_update.py."""
    moved, metrics = taught("own", error=0.0)
    a, b = 0.5 / (math.sqrt(0.5) + 1e-6), 0.25 / (math.sqrt(0.125) + 1e-6)
    gradient = pull(Table(), [[a / 8, a / 8], [-a / 4], [-b / 12] * 3, [b / 4]])
    assert torch.allclose(moved.logits, Table().logits - 0.5 * gradient, atol=1e-6)
    assert metrics["approx_kl"] == 0
