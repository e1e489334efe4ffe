"""The table: rows compose, print themselves, and estimate the true policy gradient where they promise to."""

from itertools import product

import pytest
import torch

from whet.algorithms.cells import bind, formula, name, options, terms
from whet.algorithms.surrogates import clip
from whet.algorithms.table import ALGORITHMS, Algorithm, describe, token_loss


def test_the_first_rows():
    cells = {key: (name(row.advantage), name(row.surrogate), name(row.weighting)) for key, row in ALGORITHMS.items()}
    assert cells["reinforce"] == ("raw", "reinforce", "sequence_sum")
    assert cells["rloo"] == ("leave_one_out", "reinforce", "sequence_sum")
    assert cells["grpo"] == ("standardize", "clip", "sequence_mean")
    # Dr. GRPO drops both biases: the deviation in the advantage and the length in the weights.
    assert cells["dr_grpo"] == ("center", "clip", "budget_mean")


def test_terms_and_options_come_from_the_signature():
    assert terms(clip) == ("logprobs", "logprobs_old", "advantages")
    assert options(clip) == {"low": 0.2, "high": 0.2}
    assert options(bind(clip, {"high": 0.28})) == {"low": 0.2, "high": 0.28}
    assert terms(bind(clip, {"high": 0.28})) == terms(clip)


@pytest.mark.parametrize("row", ALGORITHMS)
def test_a_row_prints_itself(row):
    lines = describe(ALGORITHMS[row])
    assert formula(ALGORITHMS[row].surrogate) in lines["surrogate"]
    assert "no reference model" in lines["kl"]
    assert lines["paper"]


def test_kl_is_added_to_the_loss_or_left_to_the_reward():
    supply = {
        "logprobs": torch.tensor([[0.0, -1.0]]),
        "logprobs_old": torch.tensor([[0.0, -1.0]]),
        "logprobs_ref": torch.tensor([[0.0, -1.5]]),
        "advantages": torch.zeros(1, 2),
    }

    def algorithm(place):
        row = ALGORITHMS["grpo"]
        return Algorithm(
            advantage=row.advantage,
            surrogate=row.surrogate,
            weighting=row.weighting,
            kl_coefficient=0.1,
            kl_place=place,
            paper="",
        )

    d = 0.5
    expected = 0.1 * (torch.exp(torch.tensor(-d)) - 1 + d)
    assert float(token_loss(algorithm("loss"), supply)[0, 1]) == pytest.approx(float(expected), rel=1e-5)
    assert float(token_loss(algorithm("reward"), supply)[0, 1]) == 0.0
    assert algorithm("reward").needs_reference
    assert not ALGORITHMS["grpo"].needs_reference


@pytest.mark.parametrize("row", ["reinforce", "rloo", "dr_grpo"])
def test_expected_gradient_is_the_true_gradient_by_enumeration(row):
    """A tabular policy over two tokens of two letters; every group of two sequences is listed with its probability.

    `dr_grpo` at ratio 1 equals the true gradient up to its constant: (G−1)/G from the own reward in the mean, and
    1/max_tokens.
    """
    logits = torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.float64, requires_grad=True)
    sequences = list(product(range(2), repeat=2))
    reward = {s: float(i) - 0.7 for i, s in enumerate(sequences)}

    def logprob(sequence):
        return torch.stack([logits[t].log_softmax(0)[token] for t, token in enumerate(sequence)])

    expected_reward = sum(logprob(s).sum().exp() * reward[s] for s in sequences)
    (true,) = torch.autograd.grad(expected_reward, logits)

    algorithm = ALGORITHMS[row]
    estimate = torch.zeros_like(true)
    for group in product(sequences, repeat=2):
        logprobs = torch.stack([logprob(s) for s in group])
        chance = logprobs.detach().sum().exp()
        advantages = algorithm.advantage(torch.tensor([[reward[s] for s in group]], dtype=torch.float64))
        supply = {
            "logprobs": logprobs,
            "logprobs_old": logprobs.detach(),
            "logprobs_ref": None,
            "advantages": advantages.view(2, 1).expand(2, 2),
        }
        mask = torch.ones(2, 2, dtype=torch.bool)
        weights, count = algorithm.weighting(mask, 2) if row == "dr_grpo" else algorithm.weighting(mask)
        loss = (token_loss(algorithm, supply) * weights.double()).sum() / count
        estimate += chance * torch.autograd.grad(loss, logits)[0]
    constant = (1 / 2) * (1 / 2) if row == "dr_grpo" else 1.0
    assert torch.allclose(-estimate, true * constant, atol=1e-12)
