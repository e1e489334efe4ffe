"""Fused blocks on CUDA: as near to fp32 as the blocks that are written out, whatever becomes of the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from whet.models.decoder import decoder as decoder_module
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import autocast
from whet.models.layers.packing import Packing, pack
from whet.models.load import new_model
from whet.models.logprobs import read_tokens
from whet.models.sizes.pass_bytes import saved_by_model
from whet.records import Sampling

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
SAMPLING = Sampling(max_tokens=1, temperature=0.9)
SHAPES: dict[str, dict[str, int]] = {
    "llama": {"heads": 6, "kv_heads": 2, "width": 96},
    "qwen2": {"heads": 4, "kv_heads": 4, "width": 128},  # biases
    "qwen3": {"heads": 8, "kv_heads": 2, "width": 256},  # norms of heads
}
VOCABULARY, WIDTH = 301, 90
LENGTHS = [90, 50, 40, 33, 70, 61, 5, 90, 12, 80]
PROMPTS = [20, 20, 20, 7, 7, 7, 3, 3, 11, 11]
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])


def model_of(family: str, layers: int = 3) -> Decoder:
    """Sharp, with norms that are not 1 and biases that are not 0, so that a forgotten one shows."""
    model = new_model(family, vocab_size=VOCABULARY, layers=layers, context=200, seed=3, **SHAPES[family])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.mul_(3.0)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.mul_(1 + 0.3 * noise)
    return model.to(CUDA)


def rows() -> tuple[Tensor, Tensor, Tensor]:
    """Ids, lengths and mask of ten rows in four groups."""
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), WIDTH), generator=torch.Generator().manual_seed(1))
    for row, prompt in enumerate(PROMPTS):
        tokens[row, :prompt] = tokens[GROUPS.tolist().index(int(GROUPS[row])), :prompt]
    lengths, columns = torch.tensor(LENGTHS), torch.arange(WIDTH)
    mask = (columns >= torch.tensor(PROMPTS)[:, None]) & (columns < lengths[:, None])
    mask[8] = False  # cut off, and left out
    return tokens.to(CUDA), lengths.to(CUDA), mask.to(CUDA)


Found = tuple[Tensor, dict[str, Tensor]]  # log-probs, and the gradient of every parameter


def packing_of(shared: bool) -> Packing:
    tokens, _, mask = rows()
    return pack(tokens, mask, GROUPS.to(CUDA) if shared else None)


def read(model: Decoder, packing: Packing | None) -> Tensor:
    """In bf16 by a packing; in fp32 without one."""
    tokens, lengths, mask = rows()
    if packing is None:
        return read_tokens(model, tokens, lengths, mask, SAMPLING).logprobs
    with autocast(CUDA):
        return read_tokens(model, tokens, lengths, mask, SAMPLING, packing=packing).logprobs


def gradient(model: Decoder, packing: Packing | None) -> Found:
    model.zero_grad()
    logprobs = read(model, packing)
    weights = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(2)).to(CUDA)
    (logprobs * weights).sum().backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Decoder, Packing], Found]:
    """The same by the blocks as they are written, under autocast."""

    def compute(model: Decoder, packing: Packing) -> Found:
        with monkeypatch.context() as patch:
            patch.setattr(decoder_module, "fits_fused", lambda trunk: False)
            return gradient(model, packing)

    return compute


def spread(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """How far each parameter's gradient is from the exact one, relative to it.

    A shift of all keys moves no softmax but for their positions: the gradient of a key's bias is a small difference of
    large numbers, so it is measured by that of the queries' bias.
    """
    scales = {name: exact[name.replace("k_proj.bias", "q_proj.bias")].norm() for name in exact}
    return {name: float((found[name] - exact[name]).norm() / scales[name]) for name in exact}


def whole(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """The same for all parameters as one vector."""
    one, two = (torch.cat([gradients[name].flatten() for name in exact]) for gradients in (found, exact))
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("shared", [False, True])
def test_a_fused_block_is_as_near_to_fp32_as_the_plain_one(family: str, shared: bool, plainly: Any) -> None:
    model, packing = model_of(family), packing_of(shared)
    exact, plain, fused = gradient(model, None), plainly(model, packing), gradient(model, packing)
    assert fused[1].keys() == exact[1].keys()
    noise = float((plain[0] - exact[0]).abs().mean())
    assert float((fused[0] - exact[0]).abs().mean()) < 1.5 * noise < 0.05
    assert whole(fused[1], exact[1]) < 1.3 * whole(plain[1], exact[1]) + 2e-3 < 0.06
    apart, usual = spread(fused[1], exact[1]), spread(plain[1], exact[1])
    assert {name for name in apart if apart[name] > 2 * usual[name] + 0.02} == set()


@pytest.mark.parametrize("family", SHAPES)
def test_it_is_the_fused_block_that_was_measured(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without autocast, or with a shape that the kernels do not have, the plain one runs."""
    calls = []
    original = decoder_module.fused_trunk
    monkeypatch.setattr(
        decoder_module, "fused_trunk", lambda *given, **more: calls.append(1) or original(*given, **more)
    )
    model, packing = model_of(family), packing_of(True)
    read(model, packing)
    assert calls == [1]
    model.hidden_packed(packing)
    assert calls == [1]
    odd = new_model("llama", vocab_size=VOCABULARY, layers=1, heads=4, width=48, context=200, seed=0).to(CUDA)
    assert bool(read(odd, packing).isfinite().all())  # heads of 12
    assert calls == [1]


@pytest.mark.parametrize("family", SHAPES)
def test_a_broken_kernel_is_caught(family: str, plainly: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned the wrong way in the backward pass, the gradient leaves the noise."""
    from whet.models.kernels import block_kernels

    original = block_kernels.turn_back

    def wrong(qkv: Tensor, angles: tuple[Tensor, Tensor], *rest: Any) -> Any:
        return original(qkv, (angles[0], -angles[1]), *rest)

    monkeypatch.setattr(block_kernels, "turn_back", wrong)
    model, packing = model_of(family), packing_of(True)
    exact = gradient(model, None)
    assert whole(gradient(model, packing)[1], exact[1]) > 2 * whole(plainly(model, packing)[1], exact[1]) + 2e-3


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize("shared", [False, True])
def test_computing_blocks_again_changes_nothing(family: str, shared: bool) -> None:
    model, packing = model_of(family), packing_of(shared)
    kept = gradient(model, packing)
    model.gradient_checkpointing = True
    again = gradient(model, packing)
    assert torch.equal(kept[0], again[0])
    assert whole(again[1], kept[1]) < 5e-3  # the flash kernel adds up the queries' gradient in any order


@pytest.mark.parametrize("family", SHAPES)
def test_a_frozen_policy_says_the_same(family: str) -> None:
    model, packing = model_of(family), packing_of(True)
    wanted, gradients = gradient(model, packing)
    with torch.no_grad():
        assert torch.equal(read(model, packing), wanted)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    frozen = read(model, packing)
    assert torch.equal(frozen, wanted)
    assert not frozen.requires_grad
    name = "model.layers.1.mlp.down_proj.weight"
    dict(model.named_parameters())[name].requires_grad_()
    _, alone = gradient(model, packing)
    assert alone.keys() == {name}
    assert float((alone[name] - gradients[name]).norm() / gradients[name].norm()) < 5e-3


def test_a_block_has_one_backward_pass() -> None:
    """Its gradient takes the place of what was kept: a second one would be wrong without a word."""
    model, packing = model_of("llama"), packing_of(True)
    loss = read(model, packing).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="one backward pass"):
        loss.backward()


def step(model: Decoder, kind: type[torch.optim.Optimizer], **options: Any) -> None:
    gradient(model, packing_of(True))
    kind(model.parameters(), lr=0.01, **options).step()  # type: ignore[call-arg]


@torch.no_grad()
def lerp(model: Decoder) -> None:
    for parameter in model.parameters():
        parameter.lerp_(torch.ones_like(parameter) * 0.1, 0.3)


CHANGES: dict[str, Callable[[Decoder], Any]] = {
    "fused AdamW": lambda model: step(model, torch.optim.AdamW, fused=True),
    "AdamW": lambda model: step(model, torch.optim.AdamW),
    "SGD": lambda model: step(model, torch.optim.SGD),
    "load_state_dict": lambda model: model.load_state_dict(
        {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
    ),
    "lerp": lerp,
    "there and back": lambda model: lerp(model.cpu()) or model.to(CUDA),
}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_bf16_copies_follow_the_weights(change: Callable[[Decoder], Any], copied: bool) -> None:
    model, packing = model_of("qwen2"), packing_of(True)
    before = read(model, packing).detach()
    if copied:
        model = copy.deepcopy(model)
    change(model)
    fresh = model_of("qwen2")
    fresh.load_state_dict(model.state_dict())
    after = read(model, packing).detach()
    assert torch.equal(after, read(fresh, packing).detach())
    assert float((after - before).abs().max()) > 1e-2


@pytest.mark.parametrize("family", SHAPES)
def test_what_a_pass_keeps_is_what_was_counted(family: str) -> None:
    model = model_of(family, layers=6)
    tokens = torch.randint(0, VOCABULARY, (40, 190), generator=torch.Generator().manual_seed(1)).to(CUDA)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :30] = False
    tokens[:, :30] = tokens[0, :30]
    packing = pack(tokens, mask, torch.zeros(40, dtype=torch.int64, device=CUDA))
    with autocast(CUDA):
        model.hidden_packed(packing)  # what stays after the first pass: copies of weights, angles
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        states = model.hidden_packed(packing)
        kept = torch.cuda.memory_allocated() - before
    assert states.requires_grad
    assert 0.9 < kept / (saved_by_model(model.config) * len(packing.tokens)) < 1.15
