"""The head's kernels on CUDA: log-probs, entropies and their gradient against fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from whet.models import logprobs as chosen_module
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import chosen_logprobs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("vocabulary", [301, 49152])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("weights", [(1, 0), (0, 1), (1, 1)], ids=["log-probs", "entropies", "both"])
@pytest.mark.parametrize("way", ["whole", "chunks"])
def test_the_head_s_kernels_against_fp64(
    vocabulary: int, temperature: float, weights: tuple[int, int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of states and weights that are bf16 numbers: only sums and the gradient in the logits are rounded."""
    if way == "chunks":
        monkeypatch.setattr(chosen_module, "CUDA_CHUNK", 16 * vocabulary)
        monkeypatch.setattr(chosen_module, "LEAST_ROWS", 1)
    generator = torch.Generator().manual_seed(4)
    count, width = 37, 64  # 16 + 16 + 5 rows
    states = torch.randn(count, width, generator=generator).bfloat16().float().to(CUDA).requires_grad_()
    head = (0.4 * torch.randn(vocabulary, width, generator=generator)).bfloat16().float().to(CUDA).requires_grad_()
    targets = torch.randint(0, vocabulary, (count,), generator=generator).to(CUDA)
    targets[0], targets[1] = 0, vocabulary - 1
    slopes = torch.randn(2, count, generator=generator).to(CUDA)

    def loss(logprobs: Tensor, entropies: Tensor) -> Tensor:
        return sum((w * (s * x).sum() for w, s, x in zip(weights, slopes, (logprobs, entropies), strict=True) if w))

    with autocast(CUDA):
        found = chosen_logprobs(states, head, targets, temperature)
    gradients = torch.autograd.grad(loss(*found), (states, head))
    x, w = (t.detach().double().requires_grad_() for t in (states, head))
    logs = nn.functional.log_softmax(x @ w.T / temperature, dim=-1)
    wanted = (logs.gather(-1, targets[:, None])[:, 0], -(logs.exp() * logs).sum(dim=-1))
    exact = torch.autograd.grad(loss(*wanted), (x, w))
    for one, two in zip(found, wanted, strict=True):
        assert one.dtype is torch.float32
        assert float((one - two).detach().abs().max()) < 1e-4
    for one, two in zip(gradients, exact, strict=True):
        assert one.dtype is torch.float32
        assert float((one - two).norm() / two.norm()) < 0.01


def test_the_head_in_fp32_on_cuda_is_that_of_the_cpu() -> None:
    generator = torch.Generator().manual_seed(4)
    states, head = torch.randn(37, 64, generator=generator), torch.randn(301, 64, generator=generator)
    targets, results = torch.randint(0, 301, (37,), generator=generator), []
    for device in ("cpu", CUDA):
        x, w = (t.to(device).requires_grad_() for t in (states, head))
        logprobs, entropies = chosen_logprobs(x, w, targets.to(device), 0.7)
        gradients = torch.autograd.grad((logprobs + 0.5 * entropies).sum(), (x, w))
        results.append([t.detach().cpu() for t in (logprobs, entropies, *gradients)])
    for one, two in zip(*results, strict=True):
        assert float((one - two).norm() / two.norm()) < 1e-5
