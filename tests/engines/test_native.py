"""The native engine: exact log-probs, one text per stream whatever the batch, stops, limits."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from tests.small import small_model, train_bpe
from whet.engines.check_engine import EngineProblem, check_engine, differences
from whet.engines.engine_protocol import up_to_stop
from whet.engines.native.native_engine import NativeEngine, _closed_up, draw
from whet.errors import UserError
from whet.models.decoder.families import FAMILIES
from whet.records import Prompt, Sampling


def prompt(tokenizer, text, *stream):
    return Prompt(tokens=tuple(tokenizer.encode(text)), stream=stream)


@pytest.mark.parametrize("family", FAMILIES)
def test_conformance(family):
    model, tokenizer = small_model(family)
    engine = NativeEngine(model, tokenizer)
    check_engine(engine, model, tokenizer, [tokenizer.encode(text) for text in ("12+7=", "a", "abcdefgh>")])


SAMPLINGS = [
    Sampling(max_tokens=24),
    Sampling(max_tokens=24, temperature=0.6),
    Sampling(max_tokens=24, temperature=1.4, top_k=5),
    Sampling(max_tokens=24, top_p=0.8),
    Sampling(max_tokens=24, min_p=0.1),
    Sampling(max_tokens=24, temperature=0.7, top_k=8, top_p=0.9, min_p=0.02),
    Sampling(max_tokens=24, min_tokens=9),
    Sampling(max_tokens=24, repetition_penalty=1.7),
    Sampling(max_tokens=24, temperature=0.7, top_p=0.9, min_tokens=4, repetition_penalty=0.6),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_equal_the_trainers(sampling):
    model, tokenizer = small_model()
    prompts = [prompt(tokenizer, text, 0, i) for i, text in enumerate(("1+", "abc>", "77+12="))]
    groups = NativeEngine(model, tokenizer).generate(prompts, sampling, count=6)
    assert float(differences(model, prompts, groups, sampling.ended_by(tokenizer.stops)).max()) < 1e-5
    if sampling.has_memory:  # or the comparison shows nothing
        assert (
            float(differences(model, prompts, groups, replace(sampling, min_tokens=0, repetition_penalty=1.0)).max())
            > 0.01
        )
    assert len({c.tokens for group in groups for c in group}) > 6  # it does sample


def test_no_completion_ends_before_min_tokens_and_some_do_after():
    model, tokenizer = small_model()
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos] += 0.1 * model.lm_head.weight.sum(0).sign()
    prompts = [prompt(tokenizer, text, 0, i) for i, text in enumerate(("1+", "abc>"))]
    lengths = {}
    for least in (0, 7):
        sampling = Sampling(max_tokens=20, temperature=2.0, min_tokens=least)
        groups = NativeEngine(model, tokenizer).generate(prompts, sampling, count=40)
        lengths[least] = [len(c.tokens) for group in groups for c in group if c.finish == "stop"]
    assert min(lengths[0]) < 7
    assert min(lengths[7]) > 7  # the token that ends it comes after them


def test_penalties_are_those_of_transformers_at_every_token():
    """transformers' processors, given the tokens so far, are the oracle; greedy, so that one token differs from all."""
    model, tokenizer = small_model()
    asked = prompt(tokenizer, "77+1", 0)
    for penalty in (1.8, 0.5):
        sampling = Sampling(max_tokens=12, temperature=0.0, min_tokens=6, repetition_penalty=penalty)
        ((found,),) = NativeEngine(model, tokenizer).generate([asked], sampling)
        least = MinNewTokensLengthLogitsProcessor(len(asked.tokens), 6, sorted(tokenizer.stops))
        processors = [RepetitionPenaltyLogitsProcessor(penalty), least]
        tokens = list(asked.tokens)
        for chosen in found.tokens:
            ids = torch.tensor([tokens])
            with torch.no_grad():
                scores = model.head(model.hidden(ids, torch.tensor([len(tokens)]))[:, -1])
            for processor in processors:
                scores = processor(ids, scores)
            assert chosen == int(scores.argmax())
            tokens.append(chosen)


def test_text_is_the_same_alone_and_in_a_batch_of_64():
    model, tokenizer = small_model()
    texts = [f"{i}+{i * 7 % 64}=" for i in range(64)]
    prompts = [prompt(tokenizer, text, 5, i) for i, text in enumerate(texts)]
    sampling = Sampling(max_tokens=20)
    together = NativeEngine(model, tokenizer).generate(prompts, sampling, count=2)
    alone = [NativeEngine(model, tokenizer).generate([p], sampling, count=2)[0] for p in prompts]
    waves = NativeEngine(model, tokenizer, max_sequences=10).generate(prompts, sampling, count=2)
    for batched, single, waved in zip(together, alone, waves, strict=True):
        assert [c.tokens for c in batched] == [c.tokens for c in single] == [c.tokens for c in waved]
        for a, b in zip(batched, single, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_a_prompt_is_read_once_for_its_group(monkeypatch):
    model, tokenizer = small_model()
    begun = []
    original = type(model).begin
    monkeypatch.setattr(
        type(model),
        "begin",
        lambda self, t, n, *, room: begun.append(tuple(t.shape)) or original(self, t, n, room=room),
    )
    prompts = [prompt(tokenizer, "12+3=", 0, i) for i in range(4)]
    NativeEngine(model, tokenizer, max_sequences=16).generate(prompts, Sampling(max_tokens=3), count=8)
    assert begun == [(2, 5), (2, 5)]  # two waves of two whole groups


def test_finished_sequences_leave_the_batch(monkeypatch):
    model, tokenizer = small_model()
    sizes = []
    original = type(model).extend
    monkeypatch.setattr(type(model), "extend", lambda self, t, cache: sizes.append(len(t)) or original(self, t, cache))
    prompts = [prompt(tokenizer, f"{i}+", 1, i) for i in range(40)]
    groups = NativeEngine(model, tokenizer).generate(prompts, Sampling(max_tokens=30))
    lengths = [len(group[0].tokens) for group in groups]
    assert sizes == [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert sizes[-1] < sizes[0]  # the case is not empty: some did finish early


def test_samples_follow_the_distribution():
    model, tokenizer = small_model()
    tokens = tokenizer.encode("12+")
    count = 4000
    groups = NativeEngine(model, tokenizer, max_sequences=4000).generate(
        [Prompt(tokens=tuple(tokens), stream=(9,))], Sampling(max_tokens=1), count=count
    )
    seen = torch.bincount(torch.tensor([c.tokens[0] for c in groups[0]]), minlength=model.vocab_size) / count
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([tokens]), torch.tensor([len(tokens)]))[0, -1]
        expected = model.head(hidden).softmax(-1)
    deviation = (expected * (1 - expected) / count).sqrt()
    assert bool(((seen - expected).abs() < 4.5 * deviation + 1e-9).all())


def test_greedy_takes_the_most_likely_token():
    logits = torch.tensor([[0.1, 2.0, -1.0]])
    chosen, logprobs = draw(logits, Sampling(max_tokens=1, temperature=0), torch.tensor([1]), torch.tensor([0]))
    assert (chosen.tolist(), logprobs.tolist()) == ([1], [0.0])


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[0.0, -math.inf, 0.0]]).expand(5000, 3)
    chosen, _ = draw(logits, Sampling(max_tokens=1), torch.arange(5000), torch.zeros(5000, dtype=torch.int64))
    assert set(chosen.tolist()) == {0, 2}


def test_stop_string_ends_a_completion_and_stays_in_the_text():
    model, tokenizer = small_model()
    free = NativeEngine(model, tokenizer).generate(
        [prompt(tokenizer, "1+", 0, i) for i in range(30)], Sampling(max_tokens=20)
    )
    text = max((group[0].text for group in free), key=len)
    stop = text[3:5]
    stopped = NativeEngine(model, tokenizer).generate(
        [prompt(tokenizer, "1+", 0, i) for i in range(30)], Sampling(max_tokens=20, stop=(stop,))
    )
    hit = 0
    for before, after in zip(free, stopped, strict=True):
        full = before[0].text
        if stop in full:
            hit += 1
            assert after[0].text == full[: full.index(stop) + len(stop)]
            assert after[0].finish == "stop"
            assert after[0].tokens == before[0].tokens[: len(after[0].tokens)]
        else:
            assert (after[0].tokens, after[0].text) == (before[0].tokens, full)
    assert hit


def test_the_context_cuts_a_completion_off():
    model, tokenizer = small_model(context=8)
    groups = NativeEngine(model, tokenizer).generate(
        [prompt(tokenizer, "12+3=", 0, i) for i in range(20)], Sampling(max_tokens=50)
    )
    assert max(len(group[0].tokens) for group in groups) == 3
    assert {group[0].finish for group in groups if len(group[0].tokens) == 3} >= {"length"}


def test_a_prompt_that_fills_the_context_is_refused():
    model, tokenizer = small_model(context=8)
    with pytest.raises(UserError, match=r"8 tokens.*context is 8"):
        NativeEngine(model, tokenizer).generate([prompt(tokenizer, "12345678", 0)], Sampling(max_tokens=5))
    with pytest.raises(UserError, match="empty"):
        NativeEngine(model, tokenizer).generate([Prompt(tokens=(), stream=(0,))], Sampling(max_tokens=5))


class Stale(NativeEngine):
    """Forgets to take new weights."""

    def sync(self, policy, *, version):
        pass


class Wrong(NativeEngine):
    """Reports log-probs that are off by one in a hundred."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        return [[replace(c, logprobs=tuple(x * 1.01 for x in c.logprobs)) for c in group] for group in groups]


class Mixed(NativeEngine):
    """Lets the batch decide what is drawn."""

    def generate(self, prompts, sampling, *, count=1):
        shifted = [Prompt(tokens=p.tokens, stream=(*p.stream, len(prompts))) for p in prompts]
        return super().generate(shifted, sampling, count=count)


@pytest.mark.parametrize(("broken", "sentence"), [(Stale, "stale"), (Wrong, "differ"), (Mixed, "batch")])
def test_check_engine_catches(broken, sentence):
    model, tokenizer = small_model()
    with pytest.raises(EngineProblem, match=sentence):
        check_engine(broken(model, tokenizer), model, tokenizer, [tokenizer.encode("12+"), tokenizer.encode("a")])


def test_rows_that_go_on_keep_their_places():
    is_done = torch.tensor([False, True, False, True, False, True, False])
    assert _closed_up(is_done).tolist() == [0, 4, 2, 6]
    assert _closed_up(torch.tensor([True, True])).tolist() == []
    assert _closed_up(torch.tensor([True, False, False])).tolist() == [2, 1]


def test_every_token_is_told_in_order_and_once():
    model, tokenizer = small_model()
    told: dict[tuple[int, int], list[int]] = {}
    engine = NativeEngine(
        model, tokenizer, max_sequences=6, on_token=lambda p, s, token: told.setdefault((p, s), []).append(token)
    )
    prompts = [prompt(tokenizer, f"{i}+", 3, i) for i in range(5)]
    groups = engine.generate(prompts, Sampling(max_tokens=20), count=3)
    assert told == {(p, s): list(c.tokens) for p, group in enumerate(groups) for s, c in enumerate(group)}
    assert len({len(tokens) for tokens in told.values()}) > 3
    silent = NativeEngine(model, tokenizer).generate(prompts, Sampling(max_tokens=20), count=3)
    assert [[c.tokens for c in group] for group in silent] == [[c.tokens for c in group] for group in groups]


def test_a_prompt_may_have_a_limit_of_its_own():
    model, tokenizer = small_model()
    prompts = [replace(prompt(tokenizer, "1+", 0, i), limit=limit) for i, limit in enumerate((1, 5, None))]
    free = NativeEngine(model, tokenizer).generate([replace(p, limit=None) for p in prompts], Sampling(max_tokens=9))
    bound = NativeEngine(model, tokenizer).generate(prompts, Sampling(max_tokens=9))
    assert [b[0].tokens for b in bound] == [f[0].tokens[:n] for f, n in zip(free, (1, 5, 9), strict=True)]
    assert bound[0][0].finish == ("stop" if bound[0][0].tokens[0] in tokenizer.stops else "length")


def test_a_large_vocabulary_is_sampled_alike_alone_and_in_a_batch():
    """Above 4,096 tokens the quick draw takes over; the trainer's log-probs and the texts must not notice."""
    model, tokenizer = small_model(vocab=6000, sharp=4.0)
    prompts = [prompt(tokenizer, f"{i}+", 4, i) for i in range(6)]
    sampling = Sampling(max_tokens=12, temperature=0.9)
    groups = NativeEngine(model, tokenizer).generate(prompts, sampling, count=2)
    alone = [NativeEngine(model, tokenizer).generate([p], sampling, count=2)[0] for p in prompts]
    assert [[c.tokens for c in g] for g in groups] == [[c.tokens for c in g] for g in alone]
    assert float(differences(model, prompts, groups, sampling).max()) < 1e-5


def test_a_limit_below_one_is_refused():
    model, tokenizer = small_model()
    with pytest.raises(UserError, match="a prompt's limit is 0: a completion has at least one token"):
        NativeEngine(model, tokenizer).generate([Prompt(tokens=(3,), stream=(0,), limit=0)], Sampling(max_tokens=3))


def test_text_ends_with_the_first_of_several_stop_strings():
    assert up_to_stop("a=b>c", ("b>", "=")) == "a="
    assert up_to_stop("a=b>c", ("=b>c", "=b")) == "a=b"
    assert up_to_stop("a", ("b>", "=")) == "a"


def test_the_longest_stop_string_is_heard_in_its_smallest_pieces():
    tokenizer = train_bpe([""], 257)  # a token for each byte
    engine = NativeEngine(small_model()[0], tokenizer)
    sampling = Sampling(max_tokens=99, stop=("x", "🙂🙃🙂"))
    rows = [tokenizer.encode(text) for text in ("a🙂🙃🙂", "a🙂🙃", "🙂x", "🙂🙃🙂a")]
    assert len(rows[0]) == 13
    assert engine._heard(rows, [0, 1, 2, 3], sampling, 1, 0).tolist() == [True, False, True, True]


def test_a_temperature_that_nothing_can_be_divided_by_is_refused():
    model, tokenizer = small_model()
    engine = NativeEngine(model, tokenizer)
    with pytest.raises(UserError, match=r"temperature 1e-40 is too low to compute with: use 0 .*, or 1e-06 and above"):
        engine.generate([prompt(tokenizer, "1+", 0)], Sampling(max_tokens=3, temperature=1e-40))
    coldest = engine.generate([prompt(tokenizer, "1+", 0)], Sampling(max_tokens=3, temperature=1e-6))
    greedy = engine.generate([prompt(tokenizer, "1+", 0)], Sampling(max_tokens=3, temperature=0.0))
    assert coldest[0][0].tokens == greedy[0][0].tokens


def test_each_group_is_told_of_when_its_last_completion_ends():
    """Once each, with the completions that are returned, and before those of longer groups and later batches."""
    model, tokenizer = small_model()
    prompts = [prompt(tokenizer, text, 0, i) for i, text in enumerate(("1+", "abc>", "77+12=", "5", "e>"))]
    told = []
    for sampling in (Sampling(max_tokens=24), Sampling(max_tokens=24, stop=("1",))):
        plain = NativeEngine(model, tokenizer, max_sequences=9).generate(prompts, sampling, count=3)
        told.clear()
        engine = NativeEngine(model, tokenizer, max_sequences=9)
        groups = engine.generate(prompts, sampling, count=3, on_group=lambda i, group: told.append((i, group)))
        assert groups == plain  # hearing of them changes nothing
        assert sorted(told, key=lambda one: one[0]) == list(enumerate(groups))
        longest = [max(len(one.tokens) for one in group) for _, group in told]
        numbers = [number for number, _ in told]
        assert sorted(numbers[:3]) == [0, 1, 2]  # three groups of three fill a batch of nine
        assert longest[:3] == sorted(longest[:3])
        assert longest[3:] == sorted(longest[3:])
