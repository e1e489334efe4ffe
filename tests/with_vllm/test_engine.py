"""vLLM in this process: exact ids, log-probs of the sampling distribution, and weights that are proved."""

import pytest
import torch

from tests.with_vllm.conftest import tiny
from whet.engines.check_engine import check_engine, differences
from whet.engines.native.native_engine import NativeEngine
from whet.engines.vllm.vllm_engine import VllmEngine
from whet.engines.vllm.weights import NOT_SERVED
from whet.errors import RunFailed, UserError
from whet.models.decoder.families import FAMILIES
from whet.records import Prompt, Sampling

pytestmark = pytest.mark.vllm

TEXTS = ("12+", "a", "77+12=", "abcdefgh>")


def pose(tokenizer, *texts):
    return [Prompt(tokens=tuple(tokenizer.encode(text)), stream=(3, i)) for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def made():
    model, tokenizer = tiny()
    engine = VllmEngine(model, tokenizer, max_sequences=16)
    engine.sync(model, version=0)
    yield engine, model, tokenizer
    engine.close()
    engine.close()  # nothing happens


SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=24, temperature=0.6),
    Sampling(max_tokens=24, temperature=1.4, top_k=5),
    Sampling(max_tokens=24, top_p=0.8),
    Sampling(max_tokens=24, min_p=0.1),
    Sampling(max_tokens=24, temperature=0.7, top_k=8, top_p=0.9),
    Sampling(max_tokens=24, temperature=0.7, top_k=8, min_p=0.02),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_are_those_of_the_sampling_distribution(made, sampling):
    engine, model, tokenizer = made
    prompts = pose(tokenizer, *TEXTS)
    groups = engine.generate(prompts, sampling, count=4)
    assert float(differences(model, prompts, groups, sampling).max()) < 1e-4
    assert len({c.tokens for group in groups for c in group}) > 8
    assert [[c.text for c in g] for g in groups] == [[tokenizer.decode(c.tokens) for c in g] for g in groups]


def test_samples_follow_the_distribution(made):
    engine, model, tokenizer = made
    (prompt,) = pose(tokenizer, "12+")
    count = 2000
    drawn = engine.generate([prompt], Sampling(max_tokens=1), count=count)[0]
    seen = torch.bincount(torch.tensor([c.tokens[0] for c in drawn]), minlength=model.vocab_size) / count
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([prompt.tokens]), torch.tensor([len(prompt.tokens)]))[0, -1]
        expected = model.head(hidden).softmax(-1)
    deviation = (expected * (1 - expected) / count).sqrt()
    assert bool(((seen - expected).abs() < 4.5 * deviation + 1e-9).all())


def test_greedy_is_the_native_engines_with_logprob_0(made):
    engine, model, tokenizer = made
    greedy = Sampling(max_tokens=20, temperature=0)
    prompts = pose(tokenizer, *TEXTS)
    groups = engine.generate(prompts, greedy)
    assert groups == NativeEngine(model, tokenizer).generate(prompts, greedy)
    assert {logprob for group in groups for logprob in group[0].logprobs} == {0.0}


def test_stop_strings_end_a_completion_and_stay(made):
    engine, _, tokenizer = made
    prompts = pose(tokenizer, *["1+"] * 8)
    free = [group[0] for group in engine.generate(prompts, Sampling(max_tokens=20))]
    stop = max((c.text for c in free), key=len)[3:5]
    hit = 0
    for before, (after,) in zip(free, engine.generate(prompts, Sampling(max_tokens=20, stop=(stop,))), strict=True):
        assert after.tokens == before.tokens[: len(after.tokens)]
        if stop in before.text:
            hit += 1
            assert after.text == before.text[: before.text.index(stop) + len(stop)]
            assert after.finish == "stop"
        else:
            assert after.text == before.text
    assert hit


def test_ends_and_limits(made):
    engine, _, tokenizer = made
    (prompt,) = pose(tokenizer, "12+")
    completions = engine.generate([prompt], Sampling(max_tokens=30), count=24)[0]
    ended = [c for c in completions if c.finish == "stop"]
    assert ended
    assert all(c.tokens[-1] == tokenizer.eos and tokenizer.eos not in c.tokens[:-1] for c in ended)
    assert all(len(c.tokens) == 30 for c in completions if c.finish == "length")
    long = Prompt(tokens=tuple(tokenizer.encode("1+" * 126)), stream=(0,))
    assert all(len(c.tokens) <= 4 for c in engine.generate([long], Sampling(max_tokens=30), count=4)[0])
    few = Prompt(tokens=prompt.tokens, stream=prompt.stream, limit=2)
    assert all(len(c.tokens) <= 2 for c in engine.generate([few], Sampling(max_tokens=30), count=4)[0])
    with pytest.raises(UserError, match="256 tokens and the model's context is 256"):
        engine.generate([Prompt(tokens=(1,) * 256, stream=(0,))], Sampling(max_tokens=1))


def moved(model, by):
    other, _ = tiny(seed=0)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs + by)
    return other


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        ("layers.1.mlp.up_proj", r"stale weights: 'model.layers.1.mlp.up_proj.weight' is not the policy's"),
        ("layers.0.self_attn.q_proj", r"stale weights: 'model.layers.0.self_attn.q_proj.weight' is not"),
        ("post_attention_layernorm", r"stale weights: 'model.layers.0.post_attention_layernorm.weight' and 1 more"),
        ("", r"stale weights: 'lm_head.weight' and \d+ more"),
    ],
)
def test_stale_weights_are_caught_in_the_worker(made, monkeypatch, kept, sentence):
    """A step of 1e-6 changes no log-prob that anybody could see; the checksum sees it."""
    from whet.engines.vllm.worker_extension import Worker

    engine, model, _ = made
    take = Worker.whet_take
    some = lambda worker, weights: take(worker, [(n, t) for n, t in weights if kept not in n])  # noqa: E731
    monkeypatch.setattr(Worker, "whet_take", some)
    with pytest.raises(RunFailed, match=sentence):
        engine.sync(moved(model, 1e-6), version=1)
    monkeypatch.undo()
    engine.sync(model, version=2)


def test_a_worker_that_lies_about_its_weights_is_caught_by_the_canary(made, monkeypatch):
    from whet.engines.vllm.weights import policy_checksums
    from whet.engines.vllm.worker_extension import Worker

    engine, model, _ = made
    other = moved(model, 0.02)
    told = iter([{}, policy_checksums(other, torch.float32)])
    monkeypatch.setattr(Worker, "whet_take", lambda worker, weights: None)
    monkeypatch.setattr(Worker, "whet_checksums", lambda worker: next(told))
    with pytest.raises(RunFailed, match=r"canary prompt differ from the trainer's by .* nats a token"):
        engine.sync(other, version=1)
    monkeypatch.undo()
    engine.sync(model, version=2)


def test_a_cache_of_the_old_weights_is_caught_by_the_canary(made, monkeypatch):
    engine, model, _ = made
    monkeypatch.setattr(engine, "forget", lambda: None)
    with pytest.raises(RunFailed, match="canary prompt differ"):
        engine.sync(moved(model, 0.02), version=1)
    monkeypatch.undo()
    engine.sync(model, version=2)
    engine.forget()


# Last: closing an engine ends what others of this process share with it.
@pytest.mark.parametrize("family", [n for n, row in FAMILIES.items() if not row.usual_latent and n not in NOT_SERVED])
def test_conformance(family):
    model, tokenizer = tiny(family)
    engine = VllmEngine(model, tokenizer, max_sequences=16)
    try:
        prompts = [tokenizer.encode(text) for text in TEXTS]
        check_engine(engine, model, tokenizer, prompts, level="seeded", tolerance=1e-4)
    finally:
        engine.close()


def test_a_shape_that_vllm_has_no_kernel_for():
    model, tokenizer = tiny(width=16)
    with pytest.raises(UserError, match="vLLM cannot serve this llama model with heads of 4: "):
        VllmEngine(model, tokenizer, max_sequences=4)
