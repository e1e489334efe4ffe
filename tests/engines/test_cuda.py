"""The graphs of the CUDA engine: their tokens, log-probs, ends and weights, against the trainer and plain torch."""

import gc

import pytest
import torch

from whet.batching import pad
from whet.models.layers.decoder_config import autocast, is_served
from whet.models.load import new_model
from whet.models.logprobs import token_logprobs
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


def cuda_sampler(policy, stops, **options):
    from whet.engines.native import decode_kernels
    from whet.engines.native.cuda import CudaSampler

    return CudaSampler(policy, stops, ops=decode_kernels, **options)


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

    policy, sampling = model(family), Sampling(max_tokens=70, temperature=0.8)
    assert is_served(policy.config)
    sampler = cuda_sampler(policy, [7], max_slots=slots)
    for step in range(2):  # the second time with other weights, in the same graphs
        drawn = sampler.sample(prompts(), sampling, count=3)
        said = torch.tensor([x for one in drawn for x in one.logprobs], device=CUDA)
        difference = (trainers_logprobs(policy, prompts(), drawn, 3, sampling) - said).abs()
        assert float(difference.mean()) < 0.01, step
        assert float(said.min()) < -1
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)


def test_graphs_are_captured_again_when_the_weights_have_moved():
    policy, sampling = model(), Sampling(max_tokens=30, temperature=0.0)
    sampler = cuda_sampler(policy, [], max_slots=64)
    sampler.sample(prompts(), sampling, count=2)
    policy.model.joined.clear()
    for parameter in policy.parameters():
        parameter.data = parameter.data * 1.1
    moved = sampler.sample(prompts(), sampling, count=2)
    assert moved == cuda_sampler(policy, [], max_slots=64).sample(prompts(), sampling, count=2)


def test_a_sequence_ends_at_a_stop_or_at_its_limit():

    policy = model()
    free = cuda_sampler(policy, [], max_slots=8).sample(prompts(), Sampling(max_tokens=40), count=4)
    assert {len(one.tokens) for one in free} == {40}
    drawn = cuda_sampler(policy, range(0, 301, 10), max_slots=8).sample(prompts(), Sampling(max_tokens=40), count=4)
    for one in drawn:
        assert all(token % 10 for token in one.tokens[:-1])
        assert len(one.tokens) == 40 or one.tokens[-1] % 10 == 0
    assert len({len(one.tokens) for one in drawn}) > 3
    short = cuda_sampler(policy, [], max_slots=8).sample(prompts(), Sampling(max_tokens=250), count=1)
    assert [len(one.tokens) for one in short] == [min(250, 300 - length) for length in LENGTHS]


def test_tokens_follow_their_distribution():

    policy, asked = model(), prompts()[3]
    count = 20_000
    drawn = cuda_sampler(policy, [], max_slots=4096).sample(
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


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_in_fp32_log_probs_are_exact_and_no_text_depends_on_its_batch(family):

    policy, sampling, asked = model(family), Sampling(max_tokens=60, temperature=0.9), prompts()
    sampler = cuda_sampler(policy, [7], max_slots=64, dtype=torch.float32)
    drawn = sampler.sample(asked, sampling, count=5)
    rows = [list(asked[index // 5].tokens) + one.tokens for index, one in enumerate(drawn)]
    tokens, lengths = pad(rows, torch.int64).to(CUDA), torch.tensor([len(row) for row in rows], device=CUDA)
    mask = torch.zeros(tokens.shape, dtype=torch.bool, device=CUDA)
    for index, row in enumerate(rows):
        mask[index, len(row) - len(drawn[index].tokens) : len(row)] = True
    with torch.no_grad():
        expected = token_logprobs(policy, tokens, lengths, mask, sampling)[0][mask]
    said = torch.tensor([x for one in drawn for x in one.logprobs], device=CUDA)
    assert float((expected - said).abs().max()) < 1e-3
    for slots in (1, 3, 40):
        again = cuda_sampler(policy, [7], max_slots=slots, dtype=torch.float32).sample(asked, sampling, count=5)
        assert [one.tokens for one in again] == [one.tokens for one in drawn], slots
    alone = [cuda_sampler(policy, [7], max_slots=9, dtype=torch.float32).sample([p], sampling, count=5) for p in asked]
    assert [one.tokens for group in alone for one in group] == [one.tokens for one in drawn]


def test_the_memory_of_the_cache_is_given_back_and_the_graphs_still_work():

    policy, sampling = model(), Sampling(max_tokens=200)
    sampler = cuda_sampler(policy, [], max_slots=64)
    first = sampler.sample(prompts(), sampling, count=9)
    loop = sampler._loop
    before = loop.cache.table.tolist()
    assert loop.cache.keys is None
    held = [torch.empty(loop.cache.shape, dtype=torch.bfloat16, device=CUDA) for _ in range(2)]  # others take the place
    second = sampler.sample(prompts(), sampling, count=9)
    assert sampler._loop is loop
    assert loop.cache.table.tolist() != before
    assert second == first
    del held


def test_out_of_memory_halves_the_slots_and_says_so(monkeypatch, caplog):
    from whet.engines.native.decode import DecodeLoop

    policy, sampling = model(), Sampling(max_tokens=40, temperature=0.0)
    whole = cuda_sampler(policy, [7], max_slots=16).sample(prompts(), sampling, count=4)
    original, asked = DecodeLoop.run, []

    def short(self, steps, *, count):
        asked.append(self.slots)
        if self.slots > 4 and len(asked) > 1:
            raise torch.cuda.OutOfMemoryError("pretended")
        original(self, steps, count=count)

    monkeypatch.setattr(DecodeLoop, "run", short)
    sampler = cuda_sampler(policy, [7], max_slots=16)
    found = sampler.sample(prompts(), sampling, count=4)
    assert [len(one.tokens) for one in found] == [len(one.tokens) for one in whole]
    assert set(asked) == {16, 8, 4}
    assert "4 sequences at a time from now on instead of 16" in caplog.text
    monkeypatch.setattr(DecodeLoop, "run", lambda *_, **__: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError("again")))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        cuda_sampler(policy, [7], max_slots=16).sample(prompts(), sampling, count=4)


@pytest.fixture
def limited():
    """Sets the most memory that torch may take, in bytes beyond what it holds now; lifted at the end."""
    total = torch.cuda.get_device_properties(CUDA).total_memory

    def limit(more):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved(CUDA) + more) / total), CUDA)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0, CUDA)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.6, 0.3, 0.1])
def test_memory_that_truly_runs_out(limited, caplog, share, dtype):
    """The device has more free memory than torch may take, so the estimate of the slots is too high.

    Whether the KV cache, the prefill or the capture of a graph is first to fail depends on the limit. In fp32 the
    tokens do not depend on the number of slots.
    """
    policy = model(layers=4, heads=16, kv_heads=16, width=512, context=2200)
    sampling, count = Sampling(max_tokens=2000), 16
    whole = cuda_sampler(policy, [7], max_slots=112, dtype=dtype)
    expected = whole.sample(prompts(), sampling, count=count)
    before = whole._loop.slots
    assert before == 112
    shape = whole._loop.cache.shape
    cache = 2 * dtype.itemsize * torch.Size(shape).numel()
    del whole
    limited(int(share * cache))
    sampler = cuda_sampler(policy, [7], max_slots=112, dtype=dtype)
    found = sampler.sample(prompts(), sampling, count=count)
    assert sampler.max_slots < before * share * 2
    assert len(caplog.records) == 1
    assert f"{sampler.max_slots} sequences at a time from now on instead of 112" in caplog.text
    assert [len(one.tokens) == 2000 or one.is_stopped for one in found] == [True] * len(found)
    if dtype is torch.float32:
        assert [one.tokens for one in found] == [one.tokens for one in expected]
    again = sampler.sample(prompts(), sampling, count=count)  # the slots that are left do fit
    assert len(caplog.records) == 1
    assert len(again) == len(found)


def test_memory_for_not_even_one_sequence_ends_in_an_error(limited):
    from whet.models.memory_errors import NoRoomToSample

    policy = model(layers=4, heads=16, kv_heads=16, width=512, context=20_000)
    policy.model.joined.refreshed(list(policy.model.layers), torch.bfloat16)
    limited(2**20)
    with pytest.raises(NoRoomToSample):
        cuda_sampler(policy, [7], max_slots=64).sample(prompts(), Sampling(max_tokens=19_000), count=16)
    limited(2**40)
    assert len(cuda_sampler(policy, [7], max_slots=64).sample(prompts(), Sampling(max_tokens=20), count=2)) == 14


def test_models_without_graphs_are_sampled_in_smaller_batches(limited, caplog):
    """Top-p is sampled by the plain loop, whose KV cache grows as it goes."""
    from tests.small import small_model
    from whet.engines.native.native_engine import NativeEngine

    tokenizer = small_model()[1]
    policy = model(layers=4, heads=16, kv_heads=16, width=512, context=2200, vocab_size=tokenizer.vocab_size)
    sampling = Sampling(max_tokens=1000, top_p=0.99)
    asked = [Prompt(tokens=(3, 4, 5), stream=(index,)) for index in range(7)]
    engine = NativeEngine(policy, tokenizer)
    engine.generate(asked[:1], sampling, count=8)
    torch.cuda.reset_peak_memory_stats()
    engine.generate(asked, sampling, count=8)
    taken = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    limited(taken // 2)
    found = NativeEngine(policy, tokenizer).generate(asked, sampling, count=8)
    assert [len(group) for group in found] == [8] * len(asked)
    assert "sequences at a time from now on instead of 56" in caplog.text
