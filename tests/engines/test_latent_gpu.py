"""Latent attention on CUDA: the plain loop of the native engine, against the trainer's packed pass."""

import pytest
import torch

from tests.small import small_model
from whet.batching import pad
from whet.engines.native.native_engine import NativeEngine
from whet.models.decoder.kv_cache import LatentCache
from whet.models.layers.decoder_config import autocast, kv_bytes_per_token
from whet.models.layers.packing import pack
from whet.models.logprobs import read_tokens
from whet.records import Prompt, Sampling

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
SAMPLING = Sampling(max_tokens=40, temperature=0.8)
COUNT = 4


def asked():
    generator = torch.Generator().manual_seed(1)
    rows = (torch.randint(1, 20, (length,), generator=generator).tolist() for length in (1, 3, 17, 9, 20))
    return [Prompt(tokens=tuple(row), stream=(0, index)) for index, row in enumerate(rows)]


def trainers_logprobs(model, prompts, groups, *, packed):
    """Of all sampled tokens, in order."""
    both = [(prompt.tokens, one.tokens) for prompt, group in zip(prompts, groups, strict=True) for one in group]
    rows = [[*prompt, *tokens] for prompt, tokens in both]
    tokens, lengths = pad(rows, torch.int64).to(CUDA), torch.tensor([len(row) for row in rows], device=CUDA)
    columns = torch.arange(tokens.shape[1], device=CUDA)
    begins = torch.tensor([len(prompt) for prompt, _ in both], device=CUDA)
    mask = (columns >= begins[:, None]) & (columns < lengths[:, None])
    owners = torch.arange(len(prompts), device=CUDA).repeat_interleave(COUNT)
    packing = pack(tokens, mask, owners) if packed else None
    with torch.no_grad(), autocast(CUDA):
        return read_tokens(model, tokens, lengths, mask, SAMPLING, packing=packing).logprobs[mask]


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_log_probs_are_those_of_the_trainer(family):
    model, tokenizer = small_model(family, width=128, sharp=3.0)
    model = model.to(CUDA)
    engine = NativeEngine(model, tokenizer)
    assert not engine._is_fast(SAMPLING, [])
    prompts = asked()
    groups = engine.generate(prompts, SAMPLING, count=COUNT)
    said = torch.tensor([x for group in groups for one in group for x in one.logprobs], device=CUDA)
    assert float(said.min()) < -1
    for packed in (False, True):
        difference = (trainers_logprobs(model, prompts, groups, packed=packed) - said).abs()
        assert float(difference.mean()) < 0.02, packed


@torch.no_grad()
def test_latents_are_cached_in_bf16():
    model, _ = small_model("deepseek_v3")
    model = model.to(CUDA)
    tokens = torch.randint(0, 20, (3, 9), device=CUDA)
    with autocast(CUDA):
        _, cache = model.begin(tokens, torch.tensor([9, 4, 1]), room=4)
        model.extend(tokens[:, 0], cache)
    assert isinstance(cache, LatentCache)
    size = cache.latents.numel() * cache.latents.element_size()
    assert size == 3 * 10 * kv_bytes_per_token(model.config, torch.bfloat16)
