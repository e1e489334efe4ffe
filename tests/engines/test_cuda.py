"""The graphs of the CUDA engine: their tokens, log-probs, ends and weights, against the trainer and plain torch."""

import pytest
import torch
import torch.nn.functional as F

from whet.batching import pad
from whet.engines.shapes import is_served
from whet.models.load import new_model
from whet.models.logprobs import token_logprobs
from whet.models.precision import autocast
from whet.records import Prompt, Sampling

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
LENGTHS = (1, 3, 17, 64, 65, 5, 128)


def model(family="llama", **changes):
    shape = {"vocab_size": 301, "layers": 3, "heads": 6, "kv_heads": 2, "width": 96, "context": 300, "seed": 3}
    made = new_model(family, **{**shape, **changes}).to(CUDA)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)  # sharper than a new model's, so that errors show
    return made


def prompts(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Prompt(tokens=tuple(torch.randint(0, 301, (length,), generator=generator).tolist()), stream=(seed, index))
        for index, length in enumerate(LENGTHS)
    ]


def trainers_logprobs(policy, asked, drawn, count, sampling):
    rows = [list(asked[index // count].tokens) + one.tokens for index, one in enumerate(drawn)]
    tokens, lengths = pad(rows, torch.int64).to(CUDA), torch.tensor([len(row) for row in rows], device=CUDA)
    mask = torch.zeros(tokens.shape, dtype=torch.bool, device=CUDA)
    for index, row in enumerate(rows):
        mask[index, len(row) - len(drawn[index].tokens) : len(row)] = True
    with torch.no_grad(), autocast(CUDA):
        return token_logprobs(policy, tokens, lengths, mask, sampling)[0][mask]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("slots", [4, 64])
def test_log_probs_are_those_of_the_trainer(family, slots):
    from whet.engines.cuda import CudaSampler

    policy, sampling = model(family), Sampling(max_tokens=70, temperature=0.8)
    assert is_served(policy.config)
    sampler = CudaSampler(policy, [7], max_slots=slots)
    for step in range(2):  # the second time with other weights, in the same graphs
        drawn = sampler.sample(prompts(), sampling, count=3)
        said = torch.tensor([x for one in drawn for x in one.logprobs], device=CUDA)
        difference = (trainers_logprobs(policy, prompts(), drawn, 3, sampling) - said).abs()
        assert float(difference.mean()) < 0.01, step
        assert float(said.min()) < -1
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)


def test_a_sequence_ends_at_a_stop_or_at_its_limit():
    from whet.engines.cuda import CudaSampler

    policy = model()
    free = CudaSampler(policy, [], max_slots=8).sample(prompts(), Sampling(max_tokens=40), count=4)
    assert {len(one.tokens) for one in free} == {40}
    drawn = CudaSampler(policy, range(0, 301, 10), max_slots=8).sample(prompts(), Sampling(max_tokens=40), count=4)
    for one in drawn:
        assert all(token % 10 for token in one.tokens[:-1])
        assert len(one.tokens) == 40 or one.tokens[-1] % 10 == 0
    assert len({len(one.tokens) for one in drawn}) > 3
    short = CudaSampler(policy, [], max_slots=8).sample(prompts(), Sampling(max_tokens=250), count=1)
    assert [len(one.tokens) for one in short] == [min(250, 300 - length) for length in LENGTHS]


def test_tokens_follow_their_distribution():
    from whet.engines.cuda import CudaSampler

    policy, asked = model(), prompts()[3]
    count = 20_000
    drawn = CudaSampler(policy, [], max_slots=4096).sample(
        [asked], Sampling(max_tokens=1, temperature=1.5), count=count
    )
    with torch.no_grad(), autocast(CUDA):
        tokens = torch.tensor([asked.tokens], device=CUDA)
        logits = policy(tokens, torch.tensor([len(asked.tokens)], device=CUDA))[0, -1]
    expected = (logits.float() / 1.5).softmax(-1).cpu() * count
    seen = torch.bincount(torch.tensor([one.tokens[0] for one in drawn]), minlength=301)
    often = expected > 50
    spread = ((seen - expected).square() / expected)[often]
    assert float(spread.mean()) == pytest.approx(1.0, abs=0.6)  # chi-square of that many cells


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(1, 1, 16), (6, 2, 64), (9, 3, 64), (16, 1, 128), (40, 2, 32)])
def test_attention_reads_the_live_part_only(heads, kv_heads, dim):
    from whet.engines import kernels

    positions = torch.tensor([0, 1, 62, 63, 64, 129, 255], device=CUDA, dtype=torch.int32)
    rows, capacity = len(positions), 256
    keys, values = (torch.randn(rows, kv_heads, capacity, dim, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    queries = torch.randn(rows, heads, dim, device=CUDA, dtype=torch.bfloat16)
    out = torch.empty_like(queries)
    beyond = torch.arange(capacity, device=CUDA) > positions[:, None]
    junk = torch.where(beyond[:, None, :, None], torch.full_like(keys, 9e3), keys)
    kernels.attend(queries, junk, values, positions, out)
    visible = ~beyond[:, None, None, :]
    wide = [t.repeat_interleave(heads // kv_heads, dim=1).float() for t in (keys, values)]
    expected = F.scaled_dot_product_attention(queries.float()[:, :, None], *wide, attn_mask=visible)[:, :, 0]
    assert torch.allclose(out.float(), expected, atol=2e-2)
