"""Surrogates by hand, and their gradients against central differences in float64."""

import numpy as np
import pytest
import torch

from whet.algorithms.surrogates import clip, reinforce
from whet.algorithms.weightings import budget_mean, sequence_mean, sequence_sum, token_mean


def test_reinforce_by_hand():
    assert float(reinforce(torch.tensor(-2.0), torch.tensor(3.0))) == 6.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),  # on policy: −A
        (1.5, 1.0, -1.2),  # pushed up beyond 1 + high: held at 1.2
        (0.5, 1.0, -0.5),  # a good token that became rarer: no clip, it may come back
        (0.5, -1.0, 0.8),  # pushed down beyond 1 − low: held at 0.8
        (1.5, -1.0, 1.5),  # a bad token that became likelier: no clip
    ],
)
def test_clip_by_hand(ratio, advantage, expected):
    value = clip(torch.tensor(ratio).log(), torch.tensor(0.0), torch.tensor(advantage))
    assert float(value) == pytest.approx(expected)


def test_clip_options_move_their_own_side():
    up = clip(torch.tensor(2.0).log(), torch.tensor(0.0), torch.tensor(1.0), low=0.1, high=0.28)
    down = clip(torch.tensor(0.1).log(), torch.tensor(0.0), torch.tensor(-1.0), low=0.1, high=0.28)
    assert (float(up), float(down)) == (pytest.approx(-1.28), pytest.approx(0.9))


def oracle(logprobs, old, advantages, mask, surrogate, weighting, max_tokens):
    """The loss with loops, straight from the formulas, in plain Python."""
    rows = [[t for t in range(mask.shape[1]) if mask[b, t]] for b in range(mask.shape[0])]
    sequences, tokens = sum(bool(row) for row in rows), sum(len(row) for row in rows)
    total = 0.0
    for b, row in enumerate(rows):
        for t in row:
            ratio, a = np.exp(logprobs[b, t] - old[b, t]), advantages[b, t]
            loss = {
                "reinforce": -a * logprobs[b, t],
                "clip": -min(ratio * a, min(max(ratio, 0.8), 1.2) * a),
            }[surrogate]
            total += {
                "token_mean": loss / tokens,
                "sequence_mean": loss / len(row) / sequences,
                "sequence_sum": loss / sequences,
                "budget_mean": loss / max_tokens / sequences,
            }[weighting]
    return total


WEIGHTINGS = {"token_mean": token_mean, "sequence_mean": sequence_mean, "sequence_sum": sequence_sum}


@pytest.mark.parametrize("weighting", [*WEIGHTINGS, "budget_mean"])
@pytest.mark.parametrize("surrogate", ["reinforce", "clip"])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_against_the_oracle(surrogate, weighting, seed):
    rng = np.random.default_rng(seed)
    lengths, width, max_tokens = [5, 1, 3, 0], 6, 5  # ragged, one token, and a row that trains nothing
    mask = np.array([[0 < t <= length for t in range(width)] for length in lengths])
    logprobs, old = rng.normal(-1, 0.5, mask.shape), rng.normal(-1, 0.5, mask.shape)
    advantages = rng.normal(0, 1, mask.shape)

    def ours(values):
        tensor, tmask = torch.tensor(values, requires_grad=True), torch.tensor(mask)
        weights, count = budget_mean(tmask, max_tokens) if weighting == "budget_mean" else WEIGHTINGS[weighting](tmask)
        per_token = (
            reinforce(tensor, torch.tensor(advantages))
            if surrogate == "reinforce"
            else clip(tensor, torch.tensor(old), torch.tensor(advantages))
        )
        loss = (per_token * weights.double()).sum() / count
        return loss, tensor

    loss, tensor = ours(logprobs)
    args = (old, advantages, mask, surrogate, weighting, max_tokens)
    assert loss.item() == pytest.approx(oracle(logprobs, *args), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, tensor)
    step = 1e-6
    for b, t in zip(*np.nonzero(mask), strict=True):
        up, down = logprobs.copy(), logprobs.copy()
        up[b, t] += step
        down[b, t] -= step
        numeric = (oracle(up, *args) - oracle(down, *args)) / (2 * step)
        assert float(gradient[b, t]) == pytest.approx(numeric, abs=1e-5)
    assert not gradient[~torch.tensor(mask)].any()
