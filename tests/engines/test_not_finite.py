"""Logits that are no distribution end the sampling, greedy too, with the token, the prompt and the damaged weight."""

import math

import pytest
import torch

from tests.engines import decode_plain
from tests.small import small_model
from whet.engines.native.cuda import CudaSampler
from whet.engines.native.native_engine import NativeEngine, draw
from whet.errors import RunFailed
from whet.models.load import load_model
from whet.models.logprobs import log_distribution, token_logprobs
from whet.records import Prompt, Sampling
from whet.streams import stream_key

SAMPLINGS = [
    Sampling(max_tokens=8, temperature=0.0),
    Sampling(max_tokens=8),
    Sampling(max_tokens=8, temperature=0.7, top_k=5),
    Sampling(max_tokens=8, top_p=0.8),
    Sampling(max_tokens=8, min_p=0.1),
    Sampling(max_tokens=8, top_k=5, top_p=0.8, min_p=0.1),
]
PROMPTS = [Prompt(tokens=(3, 4), stream=(0, 0)), Prompt(tokens=(5,), stream=(0, 1))]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("place", "sampling"),
    [("graphs", one) for one in SAMPLINGS if one.is_whole] + [("plain", one) for one in SAMPLINGS],
)
def test_a_damaged_weight_is_named(value, sampling, place):
    model, tokenizer = small_model()
    weight = model.state_dict()["model.layers.1.mlp.down_proj.weight"]
    weight[3, 5] = value
    told = (
        r"the model's logits are not finite at token 1 of its completion of prompt 1: 1 of the \d+ numbers of its "
        rf"weight model\.layers\.1\.mlp\.down_proj\.weight are not finite \(the first is {value}\)"
    )
    graphs, plain = (
        CudaSampler(model, tokenizer.stops, max_slots=4, dtype=torch.float32, ops=decode_plain),
        NativeEngine(model, tokenizer),
    )
    with pytest.raises(RunFailed, match=told):
        (graphs.sample if place == "graphs" else plain.generate)(PROMPTS, sampling, count=2)


def test_nothing_is_sampled_after_it_was_seen():
    # One id of the vocabulary is damaged: of two prompts the second holds it.
    model, tokenizer = small_model(context=512)
    model.state_dict()["model.embed_tokens.weight"][5] = math.nan
    model.extend = None  # would be called for a second token
    with pytest.raises(RunFailed, match=r"at token 1 of its completion of prompt 2: .*model\.embed_tokens\.weight"):
        NativeEngine(model, tokenizer).generate(PROMPTS, Sampling(max_tokens=500))


def test_a_long_sequence_in_a_slot_is_not_waited_for():
    model, _ = small_model(context=4096)
    model.state_dict()["model.embed_tokens.weight"][5] = math.nan
    sampler = CudaSampler(model, {10**6}, max_slots=2, dtype=torch.float32, ops=decode_plain)
    with pytest.raises(RunFailed, match="at token 1 of its completion of prompt 1"):
        sampler.sample(PROMPTS[1:], Sampling(max_tokens=4000), count=1)
    assert sampler._loop is not None
    assert int(sampler._loop.rows.steps.max()) <= 17  # the first token, and one look of the host


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("vocabulary", [50, 5000])  # the definition, and the quick way to it
def test_one_bad_logit_is_enough_and_masked_ones_are_none(sampling, vocabulary):
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, 7] = -math.inf  # a model may forbid a token
    keys = torch.tensor([stream_key((0, row)) for row in range(3)])
    _, sound = draw(logits, sampling, keys, torch.zeros(3, dtype=torch.int64))
    assert bool(sound.isfinite().all())
    for value in (math.nan, math.inf):
        spoilt = logits.clone()
        spoilt[1, 20] = value
        _, logprobs = draw(spoilt, sampling, keys, torch.zeros(3, dtype=torch.int64))
        assert logprobs.isfinite().tolist() == [True, False, True]
        assert torch.equal(logprobs[[0, 2]], sound[[0, 2]])
    empty = logits.clone()
    empty[2] = -math.inf
    assert draw(empty, sampling, keys, torch.zeros(3, dtype=torch.int64))[1].isfinite().tolist() == [True, True, False]


@pytest.mark.parametrize("sampling", [one for one in SAMPLINGS if one.temperature])
def test_the_trainers_log_probs_do_not_hide_it_either(sampling):
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    logits[1, 20] = math.nan
    target = torch.tensor([3, 4])  # sound themselves
    own = log_distribution(logits, sampling, keep=target).gather(-1, target[:, None])[:, 0]
    assert own.isfinite().tolist() == [True, False]
    model, _ = small_model()
    model.state_dict()["lm_head.weight"][9] = math.nan
    tokens = torch.tensor([[3, 4, 5]])
    logprobs, _ = token_logprobs(model, tokens, torch.tensor([3]), torch.tensor([[False, True, True]]), sampling)
    assert logprobs[0, 1:].isnan().all()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("place", ["graphs", "plain"])
def test_an_infinite_number_of_the_head_is_not_taken_for_a_forbidden_token(value, sampling, place):
    if place == "graphs" and not sampling.is_whole:
        return
    model, tokenizer = small_model()
    graphs = CudaSampler(model, tokenizer.stops, max_slots=4, dtype=torch.float32, ops=decode_plain)
    model.state_dict()["lm_head.weight"][9, 3] = value
    sample = graphs.sample if place == "graphs" else NativeEngine(model, tokenizer).generate
    with pytest.raises(
        RunFailed, match=r"at token 1 of its completion of prompt 1: 1 of the .* lm_head\.weight are not"
    ):
        sample(PROMPTS, sampling, count=2)


def test_a_head_with_infinite_numbers_is_not_loaded(tmp_path):
    model, _ = small_model(layers=1)
    model.state_dict()["lm_head.weight"][9, 3] = -math.inf
    model.save(tmp_path)
    with pytest.raises(RunFailed, match=rf"{tmp_path}: the model's logits are not finite: .*lm_head\.weight"):
        load_model(tmp_path)


def test_what_a_slot_draws_after_its_end_is_nobodys_concern():
    model, tokenizer = small_model()
    short = Prompt(tokens=(3, 4), stream=(0, 0), limit=1)
    sampler = CudaSampler(model, tokenizer.stops, max_slots=1, dtype=torch.float32, ops=decode_plain)
    (first,) = sampler.sample([short], Sampling(max_tokens=8), count=1)
    model.state_dict()["model.embed_tokens.weight"][first.tokens[0]] = math.nan  # read only for a second token
    assert sampler.sample([short], Sampling(max_tokens=8), count=1) == [first]


def test_sound_weights_that_overflow_are_told_apart():
    model, tokenizer = small_model()
    with torch.no_grad():
        model.state_dict()["lm_head.weight"].mul_(1e38)
        model.state_dict()["model.norm.weight"].mul_(1e6)
    with pytest.raises(RunFailed, match="all of its weights are finite, so the arithmetic overflows"):
        NativeEngine(model, tokenizer).generate(PROMPTS, Sampling(max_tokens=2, temperature=0.0))


def test_greedy_log_probs_are_still_zero():
    model, tokenizer = small_model()
    greedy = Sampling(max_tokens=4, temperature=0.0)
    values = [
        x for group in NativeEngine(model, tokenizer).generate(PROMPTS, greedy) for c in group for x in c.logprobs
    ]
    assert [str(value) for value in values] == ["0.0"] * len(values)  # and not −0, which is written differently


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "value"), [("lm_head.weight", math.nan), ("model.layers.1.mlp.down_proj.weight", math.inf)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_on_a_gpu_see_it_too(name, value, temperature, dtype):
    device = torch.device("cuda")
    model, tokenizer = small_model(context=512, width=64)
    engine = NativeEngine(model.to(device), tokenizer, device=device, dtype=dtype)
    sampling = Sampling(max_tokens=400, temperature=temperature)
    sound = engine.generate(PROMPTS, sampling, count=2)
    assert all(math.isfinite(x) for group in sound for completion in group for x in completion.logprobs)
    model.state_dict()[name][9, 3] = value  # of the head, one id is enough
    with pytest.raises(RunFailed, match=f"at token 1 of its completion of prompt 1: .*{name}"):
        engine.generate(PROMPTS, sampling, count=2)
