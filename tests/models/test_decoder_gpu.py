"""The decoder on a CUDA device, in the precision that training and sampling use there."""

from __future__ import annotations

import pytest
import torch

from tests.models.test_decoder import GROUPED
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES
from whet.models.layers.decoder_config import autocast
from whet.models.load import new_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
LENGTHS = torch.tensor([40, 17, 1, 33])
TOKENS = torch.randint(0, 97, (4, 40), generator=torch.Generator().manual_seed(5))


def small(family: str) -> Decoder:
    kv_heads = 2 if family in GROUPED else 8
    return new_model(family, vocab_size=97, layers=3, heads=8, width=512, context=96, kv_heads=kv_heads, seed=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_fp32_states_and_gradients_are_those_of_the_cpu(family):
    results = []
    for device in ("cpu", "cuda"):
        model = small(family).to(device)
        states = model.hidden(TOKENS.to(device), LENGTHS)
        kept = torch.arange(40) < LENGTHS[:, None]
        model.head(states[kept.to(device)]).logsumexp(-1).mean().backward()
        attention = model.model.layers[0].self_attn
        gradient = (attention.k_proj if model.config.latent is None else attention.kv_b_proj).weight.grad
        assert gradient is not None
        results.append((states.detach().cpu()[kept], gradient.cpu()))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-3
    assert torch.allclose(results[0][1], results[1][1], atol=1e-5, rtol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bf16", [False, True])
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward_pass(family, bf16):
    model = small(family).to(CUDA)
    if bf16 and model.config.experts is not None:
        pytest.skip("rounded states may choose another expert")
    tolerance = 0.06 if bf16 else 1e-4
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bf16):
        _, cache = model.begin(TOKENS.to(CUDA), LENGTHS.to(CUDA), room=20)
        rows = torch.tensor([0, 1, 1, 2, 3, 3], device=CUDA)
        cache.select(rows)
        sequences = [TOKENS[i, : LENGTHS[i]].tolist() for i in rows.tolist()]
        for step in range(20):
            new = torch.randint(0, 97, (len(sequences),), generator=torch.Generator().manual_seed(step))
            states = model.extend(new.to(CUDA), cache)
            for sequence, token in zip(sequences, new.tolist(), strict=True):
                sequence.append(token)
        for sequence, state in zip(sequences, states, strict=True):
            alone = model.hidden(torch.tensor([sequence], device=CUDA), torch.tensor([len(sequence)]))[0, -1]
            assert (state - alone).abs().max() < tolerance * alone.abs().max()


def test_bf16_training_keeps_fp32_weights_and_gradients():
    model = small("llama").to(CUDA)
    model.gradient_checkpointing = True
    with autocast(CUDA):
        logits = model(TOKENS.to(CUDA), LENGTHS.to(CUDA))
    assert logits.dtype == torch.float32  # the head is not rounded
    logits.float().logsumexp(-1).mean().backward()
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
