"""Advantages and updates against sums that are written out, on a policy that is a table of logits."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.command import online
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.records import Batch, Example, Rollout, Score
from whet.rollout import Group
from whet.train.optim import make_optimizer
from whet.train.parts import build_algorithm
from whet.train.update import annotate, update

ALONE = World.alone()
VOCABULARY = 4
# Prompt of one token, then the completion. Two prompts, two rollouts each.
TOKENS = [[(0, 1, 2), (0, 3)], [(1, 2, 2, 0), (1, 0)]]
REWARDS = [[1.0, 0.0], [0.25, 0.75]]


class Table(nn.Module):
    """The next token depends on the last one alone: row i of `logits` holds what follows token i."""

    gradient_checkpointing = False
    context, vocab_size = 16, VOCABULARY

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)))

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, VOCABULARY).float()

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.logits


def logprob(table: Any, before: int, token: int) -> float:
    row = table.logits[before].tolist()
    return float(row[token] - math.log(sum(math.exp(x) for x in row)))


def groups_of(table: Any, *, error: float = 0.0) -> list[Group]:
    def rollout(tokens: tuple[int, ...], reward: float) -> Rollout:
        pairs = pairwise(tokens)
        return Rollout(
            example=Example(id="x", prompt="", answer=""),
            tokens=tokens,
            mask=(False, *(True,) * (len(tokens) - 1)),
            logprobs=(0.0, *(logprob(table, a, b) + error for a, b in pairs)),
            text="",
            finish="stop",
            version=3,
            score=Score(reward=reward, parts={}),
        )

    return [
        [rollout(tokens, reward) for tokens, reward in zip(row, rewards, strict=True)]
        for row, rewards in zip(TOKENS, REWARDS, strict=True)
    ]


def config_of(algorithm: dict[str, Any], **update: Any) -> OnlineConfig:
    written = online("unused", algorithm=algorithm, update={"clip_norm": 1e9, **update})
    written["rollout"] = {"prompts": 2, "group": 2, "max_tokens": 8}
    written["eval"] |= {"max_tokens": 8}
    return OnlineConfig.model_validate(written)


def prepared(
    policy: Any, config: OnlineConfig, reference: Any = None, **options: float
) -> tuple[Batch, dict[str, float]]:
    algorithm = build_algorithm(config.algorithm)
    return annotate(groups_of(policy, **options), policy, reference, algorithm, config, ALONE)


def follow(policy: Any, batch: Batch, config: OnlineConfig, optimizer: Any = None) -> dict[str, float]:
    optimizer = optimizer or torch.optim.SGD(policy.parameters(), lr=0.0)
    return update(policy, optimizer, batch, build_algorithm(config.algorithm), config, ALONE, step=1)


def pull(policy: Any, weights: list[list[float]]) -> Tensor:
    """−Σ weight · d log π / d logits, written out: one-hot minus softmax in the row of the token before."""
    gradient = torch.zeros(VOCABULARY, VOCABULARY)
    flat = [tokens for row in TOKENS for tokens in row]
    for tokens, row in zip(flat, weights, strict=True):
        for before, token, weight in zip(tokens, tokens[1:], row, strict=False):
            one_hot = torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY)
            gradient[before] -= weight * (one_hot - policy.logits[before].detach().softmax(-1))
    return gradient


def test_advantages_of_a_group_by_hand() -> None:
    policy = Table()
    batch, agreement = prepared(policy, config_of({"preset": "rloo"}))
    assert batch.advantages.tolist() == [[0, 1, 1, 0], [0, -1, 0, 0], [0, -0.5, -0.5, -0.5], [0, 0.5, 0, 0]]
    assert batch.logprobs_ref is None
    assert agreement["mismatch/max"] < 1e-6
    assert float(batch.logprobs_old[2, 3]) == pytest.approx(logprob(policy, 2, 0))


def test_the_gradient_of_rloo_by_hand() -> None:
    policy, config = Table(), config_of({"preset": "rloo"})
    batch, _ = prepared(policy, config)
    statistics = follow(policy, batch, config)
    quarter = [[0.25, 0.25], [-0.25], [-0.125] * 3, [0.125]]  # advantage / 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, quarter), atol=1e-6)
    assert statistics["grad_norm"] == pytest.approx(float(policy.logits.grad.norm()))


def test_the_gradient_of_grpo_by_hand() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    statistics = follow(policy, batch, config)
    a = 0.5 / (math.sqrt(0.5) + 1e-6)  # rewards 1 and 0: ±0.5 from the mean, deviation √0.5
    b = 0.25 / (math.sqrt(0.125) + 1e-6)
    by_length = [[a / 8, a / 8], [-a / 4], [-b / 12] * 3, [b / 4]]  # / own length / 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, by_length), atol=1e-6)
    assert statistics["loss"] == pytest.approx(-(a - a - b + b) / 4, abs=1e-6)
    assert statistics["clip_fraction"] == 0
    assert "kl" not in statistics


def test_a_ratio_beyond_the_clip_no_longer_pulls() -> None:
    """Old log-probs are lowered by 1: every ratio is e > 1.2, so positive advantages are clipped, negative ones not."""
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    batch.logprobs_old.sub_(batch.sequences.mask.float())
    statistics = follow(policy, batch, config)
    a, b = math.e * 0.5 / (math.sqrt(0.5) + 1e-6), math.e * 0.25 / (math.sqrt(0.125) + 1e-6)
    assert torch.allclose(policy.logits.grad, pull(policy, [[0, 0], [-a / 4], [-b / 12] * 3, [0]]), atol=1e-5)
    assert statistics["clip_fraction"] == pytest.approx(3 / 7)  # 2 + 1 of 7 tokens
    assert statistics["policy_kl"] == pytest.approx(math.e - 2, abs=1e-5)  # ρ − 1 − log ρ


def test_the_reference_enters_the_loss_and_the_statistics() -> None:
    policy, reference = Table(), Table(seed=1)
    config = config_of({"preset": "rloo", "advantage": "center", "kl": {"coefficient": 0.5, "estimator": "k2"}})
    batch, _ = prepared(policy, config, reference)
    batch.advantages.zero_()
    statistics = follow(policy, batch, config)
    flat = [tokens for row in TOKENS for tokens in row]
    gaps = [[logprob(policy, a, b) - logprob(reference, a, b) for a, b in pairwise(tokens)] for tokens in flat]
    assert statistics["kl"] == pytest.approx(sum(d * d / 2 for row in gaps for d in row) / 7, rel=1e-5)
    # d/dθ of 0.5 · d²/2 is 0.5 · d · ∇log π: a pull of −0.5 d, over 4 sequences
    assert torch.allclose(policy.logits.grad, pull(policy, [[-0.5 * d / 4 for d in row] for row in gaps]), atol=1e-6)


def test_the_reference_enters_the_reward() -> None:
    policy, reference = Table(), Table(seed=1)
    kl = {"coefficient": 0.5, "estimator": "k1", "place": "reward"}
    batch, _ = prepared(policy, config_of({"preset": "reinforce", "kl": kl}), reference)
    gap = sum(logprob(policy, a, b) - logprob(reference, a, b) for a, b in ((1, 2), (2, 2), (2, 0)))
    assert batch.advantages[2].tolist() == pytest.approx([0] + [0.25 - 0.5 * gap] * 3, rel=1e-5)


def test_the_entropy_is_that_of_the_choices() -> None:
    policy, config = Table(), config_of({"preset": "grpo"})
    batch, _ = prepared(policy, config)
    entropies = torch.distributions.Categorical(logits=policy.logits.detach()).entropy()
    before = [0, 1, 0, 1, 2, 2, 1]  # the token before each of the seven choices
    assert follow(policy, batch, config)["entropy"] == pytest.approx(float(entropies[before].mean()), rel=1e-5)


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (1, 2), (3, 2)])
def test_epochs_times_minibatches_updates(epochs: int, minibatches: int) -> None:
    policy, config = Table(), config_of({"preset": "grpo"}, epochs=epochs, minibatches=minibatches)
    optimizer = make_optimizer(policy, config.optimizer)
    batch, _ = prepared(policy, config)
    follow(policy, batch, config, optimizer)
    (state,) = optimizer.state.values()
    assert int(state["step"]) == epochs * minibatches


def test_the_mismatch_is_measured_and_limited() -> None:
    policy = Table()
    _, agreement = prepared(policy, config_of({"preset": "grpo"}), error=0.05)
    assert agreement == pytest.approx({"mismatch/mean": 0.05, "mismatch/max": 0.05}, rel=1e-4)
    with pytest.raises(
        RunFailed, match=r"disagree by 0.2 nats .* \(limit 0.1\): the engine's weights are not version 3"
    ):
        prepared(policy, config_of({"preset": "grpo"}), error=0.2)
