"""How far sampler and trainer are apart: by hand, over ranks, and what ends a run."""

import math

import pytest
import torch
from torch import Tensor

from whet.distributed.world import World
from whet.errors import RunFailed
from whet.train.online.old_logprobs import Agreement

ALONE = World.alone()


def test_ranks_measure_together() -> None:
    """The mean over all ranks decides, so that none goes on while another stops."""

    class Beside(World):
        """Another rank has six tokens, and agrees on all of them but one, by 0.9 nats."""

        def sum(self, tensor: Tensor) -> Tensor:
            return tensor + torch.tensor([0.9, 0.0, 6.0], dtype=tensor.dtype)

        def max(self, value: float) -> float:
            return max(value, 0.9)

    agreement = Agreement(torch.device("cpu"))
    mask = torch.tensor([[False, True, True]])
    agreement.add(torch.tensor([[9.0, -1.0, -2.0]]), torch.tensor([[0.0, -1.5, -2.25]]), mask)
    found = agreement.metrics(ALONE, limit=0.4)
    estimates = [math.exp(d) - 1 - d for d in (0.5, 0.25)]  # of KL(sampler ‖ trainer): d is trainer − sampler
    expected = {"mismatch/mean": 0.375, "mismatch/max": 0.5, "mismatch/kl": sum(estimates) / 2}
    assert found == pytest.approx(expected, rel=1e-5)
    beside = Beside(rank=0, size=1, device=torch.device("cpu"))
    metrics = agreement.metrics(beside, limit=0.3)  # alone it would stop here
    assert metrics["mismatch/mean"] == pytest.approx((0.75 + 0.9) / 8)
    assert metrics["mismatch/max"] == pytest.approx(0.9)
    with pytest.raises(RunFailed, match=r"disagree by 0\.206 nats"):
        agreement.metrics(beside, limit=0.2)


def test_log_probs_that_are_no_numbers_stop_the_run() -> None:
    """A loss that reads the trainer's own numbers only would not notice."""
    agreement = Agreement(torch.device("cpu"))
    agreement.add(torch.zeros(1, 2), torch.tensor([[0.0, float("nan")]]), torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(RunFailed, match="log-probs, or the trainer's, are no numbers"):
        agreement.metrics(World.alone(), limit=0.1)


def token(trained: float, sampled: float, agreement: Agreement) -> None:
    agreement.add(torch.tensor([[trained]]), torch.tensor([[sampled]]), torch.tensor([[True]]))


def test_one_token_below_and_at_the_limit() -> None:
    """Log-probs of the trainer that are lower count as much as higher ones; a limit that is reached is not passed."""
    agreement = Agreement(ALONE.device)
    token(-1.5, -1.0, agreement)
    found = agreement.metrics(ALONE, limit=0.5)
    assert found == pytest.approx(
        {"mismatch/mean": 0.5, "mismatch/max": 0.5, "mismatch/kl": math.exp(-0.5) - 1 + 0.5}, rel=1e-6
    )
    with pytest.raises(RunFailed, match=r"by 0\.5 nats a token on average \(limit 0\.49\)"):
        agreement.metrics(ALONE, limit=0.49)


def test_a_rank_without_rollouts_has_nothing_to_compare() -> None:
    agreement = Agreement(ALONE.device)
    agreement.add(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool))
    assert agreement.metrics(ALONE, limit=0.0) == {"mismatch/mean": 0.0, "mismatch/max": 0.0, "mismatch/kl": 0.0}


def test_sums_are_exact_over_many_micro_batches_and_keep_no_graph() -> None:
    """2²⁴ + 1 is no float32; and a graph that is kept is the memory of a micro-batch that is never given back."""
    agreement = Agreement(ALONE.device)
    trained = torch.tensor([[-(2.0**24)]], requires_grad=True)
    agreement.add(trained, torch.tensor([[0.0]]), torch.tensor([[True]]))
    token(1.0, 0.0, agreement)
    assert not agreement._sums.requires_grad
    assert not agreement._worst.requires_grad
    found = agreement.metrics(ALONE, limit=1e9)
    assert found["mismatch/mean"] == (2**24 + 1) / 2
    assert found["mismatch/max"] == 2**24
