"""The fused block on a CPU: what the plain block computes, with every gradient, shared prompts and ragged lengths."""

import pytest
import torch

import whet.models.decoder.decoder as decoder_module
from whet.models.kernels import block_plain
from whet.models.layers.packing import pack
from whet.models.load import new_model
from whet.models.logprobs import read_tokens
from whet.records import Sampling

PROMPTS = torch.tensor([5, 5, 5, 2, 2, 7])
LENGTHS = torch.tensor([14, 9, 6, 12, 3, 14])
GROUPS = torch.tensor([0, 0, 0, 1, 1, 2])


def rows(seed=0):
    tokens = torch.randint(0, 50, (6, 14), generator=torch.Generator().manual_seed(seed))
    for row, group in enumerate(GROUPS.tolist()):
        first = GROUPS.tolist().index(group)
        tokens[row, : PROMPTS[row]] = tokens[first, : PROMPTS[row]]
    columns = torch.arange(14)
    return tokens, (columns >= PROMPTS[:, None]) & (columns < LENGTHS[:, None])


def model_of(family, **changes):
    shape = {"vocab_size": 50, "layers": 2, "heads": 6, "kv_heads": 2, "width": 48, "context": 20, "seed": 1}
    model = new_model(family, **{**shape, **changes})
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():  # norms and biases that are not 1 and 0, and sharp distributions
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(0.3 * noise)
    return model


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("even", [False, True])
def test_log_probs_and_every_gradient(family, shared, recompute, even, monkeypatch):
    model = model_of(family)
    model.gradient_checkpointing = recompute
    tokens, mask = rows()
    lengths, groups = LENGTHS, GROUPS
    if even:  # equal lengths and groups of equal size take the way without copies
        tokens, groups = tokens[[0, 0, 5, 5]].clone(), torch.tensor([0, 0, 1, 1])
        tokens[1, 7:], tokens[3, 7:] = 3, 4
        mask = (torch.arange(14) >= 7).expand(4, -1)
        lengths = torch.full((4,), 14)
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(3))

    def read(fused):
        monkeypatch.setattr(decoder_module, "fits_fused", lambda trunk: fused)
        model.zero_grad()
        packing = pack(tokens, mask, groups if shared else None)
        logprobs = read_tokens(model, tokens, lengths, mask, Sampling(max_tokens=1), packing=packing).logprobs
        (logprobs * weights).sum().backward()
        return logprobs.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    (one, expected), (two, found) = read(False), read(True)
    assert torch.allclose(one, two, atol=1e-5)
    assert float(one.min()) < -3
    for name, grad in expected.items():
        # A key's bias moves all scores of a query alike, so its gradient is 0 but for rounding.
        scale = float(grad.norm()) if "k_proj.bias" not in name else 1.0
        assert float((found[name] - grad).norm()) < 2e-5 * scale, name


@pytest.mark.parametrize("has_added", [False, True])
def test_the_norm_and_its_gradient_in_double_precision(has_added):
    generator = torch.Generator().manual_seed(0)
    states, added, of_out, of_total = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(4))
    weight = torch.randn(7, generator=generator, dtype=torch.float64).requires_grad_()
    total, normed, scales = block_plain.norm(states, added if has_added else None, weight.detach(), 1e-5)
    x = (states + (added if has_added else 0)).requires_grad_()
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    assert torch.allclose(total, x.detach())
    assert torch.allclose(normed, expected.detach())
    wanted = torch.autograd.grad((expected * of_out).sum() + (x * of_total).sum(), (x, weight))
    grad, again, normed_again, of_weight = block_plain.norm_back(total, scales, weight.detach(), of_out, of_total)
    assert torch.allclose(grad, wanted[0])
    assert torch.equal(grad, again)
    assert torch.allclose(normed_again, normed)
    assert torch.allclose(of_weight, wanted[1])


def test_the_gate_and_its_gradient_in_double_precision():
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(5, 12, generator=generator, dtype=torch.float64).requires_grad_()
    pull = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    expected = both[:, :6] / (1 + (-both[:, :6]).exp()) * both[:, 6:]
    (wanted,) = torch.autograd.grad((expected * pull).sum(), both)
    held = both.detach().clone()
    assert torch.allclose(block_plain.gate(held), expected.detach())
    assert torch.allclose(block_plain.gate_back(held, pull), expected.detach())
    assert torch.allclose(held, wanted)
