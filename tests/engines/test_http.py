"""The HTTP engine against a real server that samples from a real model: what it says is what the native engine says."""

import asyncio
import math

import pytest

from tests.engines.openai_server import MODEL, Served, serving
from tests.small import small_model
from whet.distributed.world import World
from whet.engines.check_engine import check_engine
from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.reply import UNKNOWN
from whet.engines.http.server_text import ServerText
from whet.engines.http.transport import Connection
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed, UserError
from whet.evaluate.evaluation import evaluate
from whet.records import Message, Prompt, Sampling
from whet.streams import stream_key
from whet.tasks.procedural import Sorting

TEXTS = ("12+7=", "a", "abcdefgh>", "77+12=")
GREEDY = Sampling(max_tokens=16, temperature=0.0)
PLAIN = Sampling(max_tokens=16)
SHAPED = Sampling(max_tokens=16, temperature=0.7, top_k=8, top_p=0.9, min_p=0.02)
QUICK = Connection(retries=2, backoff_seconds=0.01, timeout_seconds=20, concurrency=4)


def pose(tokenizer, *texts):
    return [Prompt(tokens=tuple(tokenizer.prompt(text)), stream=(3, i)) for i, text in enumerate(texts)]


def expected(native, prompts, sampling, count):
    """What the server must have sampled: its stream is the seed that names our stream."""
    return [
        [
            native.generate([Prompt(tokens=p.tokens, stream=(stream_key((*p.stream, j)) % 2**31,))], sampling, count=1)[
                0
            ][0]
            for j in range(count)
        ]
        for p in prompts
    ]


@pytest.mark.parametrize("gives_ids", ["field", "spelled"])
def test_greedy_equals_the_native_engine(native, served, gives_ids):
    served.gives_ids = gives_ids
    prompts = pose(native.tokenizer, *TEXTS)
    answers = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK).generate(prompts, GREEDY)
    assert answers == native.generate(prompts, GREEDY)
    assert set(served.paths) == {"/v1/completions"}
    assert sorted(r["prompt"] for r in served.requests) == sorted(list(p.tokens) for p in prompts)


def test_each_prompt_is_told_of_when_its_completions_are_there(native, served):
    prompts = pose(native.tokenizer, *TEXTS)
    engine, told = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK, choices=2), {}
    answers = engine.generate(prompts, PLAIN, count=3, on_group=told.__setitem__)
    assert told == dict(enumerate(answers))


@pytest.mark.parametrize(("sampling", "mode"), [(PLAIN, "raw"), (PLAIN, "processed"), (SHAPED, "processed")])
def test_samples_and_logprobs_equal_the_native_engines(native, served, sampling, mode):
    served.gives_logprobs = mode
    prompts = pose(native.tokenizer, *TEXTS)
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK, logprobs=mode)
    answers = engine.generate(prompts, sampling, count=3)
    for group, wanted in zip(answers, expected(native, prompts, sampling, 3), strict=True):
        assert [(c.tokens, c.text, c.finish) for c in group] == [(c.tokens, c.text, c.finish) for c in wanted]
        for a, b in zip(group, wanted, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            assert min(a.logprobs) < -1e-3
    assert len({c.tokens for group in answers for c in group}) > 6
    seeds = [request["seed"] for request in served.requests]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_raw_logprobs_of_a_shaped_distribution_are_not_passed_off(native, served):
    prompts = pose(native.tokenizer, *TEXTS)
    answers = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK).generate(prompts, SHAPED)
    assert all(math.isnan(value) for group in answers for c in group for value in c.logprobs)
    assert all(len(c.logprobs) == len(c.tokens) > 0 for group in answers for c in group)


class Trained(HttpEngine):
    """With a server in the same process, weights can be set behind its back: what a real trainer cannot do."""

    served: Served

    def sync(self, policy, *, version):
        self.served.engine.sync(policy, version=version)


def test_conformance_but_for_sync():
    model, tokenizer = small_model()
    with serving(Served(NativeEngine(model, tokenizer))) as served:
        engine = Trained(served.url, MODEL, tokenizer, connection=QUICK)
        engine.served = served
        check_engine(engine, model, tokenizer, [tokenizer.encode(text) for text in TEXTS[:3]])


def test_sync_is_refused(native, served):
    with pytest.raises(UserError, match=r"weights behind http://127.* are the server's own"):
        HttpEngine(served.url, MODEL).sync(native.policy, version=1)


@pytest.mark.parametrize("conversation", [False, True])
def test_text_alone_has_true_counts_and_unknown_ids(native, served, conversation):
    said = [(Message(role="user", content=text),) if conversation else text for text in TEXTS]
    engine = HttpEngine(served.url, MODEL, connection=QUICK, logprobs="none")
    answers = engine.generate(pose(engine.tokenizer, *said), PLAIN, count=2)
    wanted = expected(native, pose(native.tokenizer, *said), PLAIN, 2)
    for group, right in zip(answers, wanted, strict=True):
        assert [(c.text, c.finish, len(c.tokens)) for c in group] == [(c.text, c.finish, len(c.tokens)) for c in right]
        assert {token for c in group for token in c.tokens} == {UNKNOWN}
        assert all(math.isnan(value) for c in group for value in c.logprobs)
    assert set(served.paths) == {"/v1/chat/completions" if conversation else "/v1/completions"}
    # A hosted model refuses fields that it does not know.
    known = {"model", "max_tokens", "temperature", "top_p", "seed", "messages" if conversation else "prompt"}
    assert {key for request in served.requests for key in request} == known


@pytest.mark.parametrize("conversation", [False, True])
def test_text_alone_has_logprobs_where_the_server_tells(native, served, conversation):
    said = [(Message(role="user", content=text),) if conversation else text for text in TEXTS]
    engine = HttpEngine(served.url, MODEL, connection=QUICK)
    answers = engine.generate(pose(engine.tokenizer, *said), PLAIN)
    for group, right in zip(answers, expected(native, pose(native.tokenizer, *said), PLAIN, 1), strict=True):
        assert group[0].logprobs == pytest.approx(right[0].logprobs, abs=1e-5)
    served.gives_logprobs = ""
    again = engine.generate(pose(engine.tokenizer, *said), PLAIN)
    assert [g[0].text for g in again] == [g[0].text for g in answers]
    assert all(math.isnan(value) for group in again for value in group[0].logprobs)


def test_unknown_ids_and_logprobs_cannot_be_trained_on(native, served):
    """The point of UNKNOWN and NaN: a mistake ends in an error instead of in a wrong gradient."""
    import torch

    engine = HttpEngine(served.url, MODEL, connection=QUICK, logprobs="none")
    completion = engine.generate(pose(engine.tokenizer, "12+"), PLAIN)[0][0]
    tokens = torch.tensor([completion.tokens])
    with pytest.raises(IndexError):
        native.policy.hidden(tokens, torch.tensor([tokens.shape[1]]))
    assert math.isnan(sum(completion.logprobs))


def test_ids_are_never_made_from_text(native, served):
    served.gives_ids = ""
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK)
    with pytest.raises(UserError, match="does not return the ids"):
        engine.generate(pose(native.tokenizer, "12+"), PLAIN)


def test_several_choices_in_one_request(native, served):
    prompts = pose(native.tokenizer, *TEXTS[:2])
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK, choices=3)
    answers = engine.generate(prompts, PLAIN, count=5)
    assert sorted(request.get("n", 1) for request in served.requests) == [2, 2, 3, 3]
    seeds = [[stream_key((*p.stream, first)) % 2**31 for first in (0, 3)] for p in prompts]
    for prompt, group, (first, second) in zip(prompts, answers, seeds, strict=True):
        wanted = native.generate([Prompt(tokens=prompt.tokens, stream=(first,))], PLAIN, count=3)[0]
        wanted += native.generate([Prompt(tokens=prompt.tokens, stream=(second,))], PLAIN, count=2)[0]
        assert [c.tokens for c in group] == [c.tokens for c in wanted]


def test_choices_without_counts_are_refused(native, served):
    engine = HttpEngine(served.url, MODEL, connection=QUICK, choices=2, logprobs="none")
    with pytest.raises(RunFailed, match="the number of tokens of a choice is unknown"):
        engine.generate(pose(engine.tokenizer, "12+"), PLAIN, count=2)


@pytest.mark.parametrize("exact", [True, False])
def test_a_stop_string_stays_in_the_text(native, served, exact):
    prompts = pose(native.tokenizer, *[f"{i}+" for i in range(12)])
    stop = max((g[0].text for g in native.generate(prompts, GREEDY)), key=len)[3:5]
    sampling = Sampling(max_tokens=16, temperature=0.0, stop=(stop, "zz"))
    engine = HttpEngine(served.url, MODEL, native.tokenizer if exact else None, connection=QUICK)
    answers = engine.generate(pose(engine.tokenizer, *[f"{i}+" for i in range(12)]), sampling)
    wanted = native.generate(prompts, sampling)
    assert [(g[0].text, g[0].finish) for g in answers] == [(g[0].text, g[0].finish) for g in wanted]
    assert any(g[0].text.endswith(stop) for g in answers)
    assert all(request["stop"] == [stop, "zz"] for request in served.requests)


def test_extra_fields_replace_ours_and_none_drops_one(served):
    engine = HttpEngine(served.url, MODEL, connection=QUICK, extra={"top_k": 1, "user": "me", "stop": None})
    engine.generate(pose(engine.tokenizer, "1+"), Sampling(max_tokens=4, top_k=5, stop=("x",)))
    assert served.requests[0]["top_k"] == 1
    assert served.requests[0]["user"] == "me"
    assert "stop" not in served.requests[0]


def test_on_token_counts_what_arrives(native, served):
    seen = []
    engine = HttpEngine(
        served.url, MODEL, native.tokenizer, connection=QUICK, on_token=lambda *event: seen.append(event)
    )
    answers = engine.generate(pose(native.tokenizer, *TEXTS), PLAIN, count=2)
    wanted = [(i, j, t) for i, group in enumerate(answers) for j, c in enumerate(group) for t in c.tokens]
    assert sorted(seen) == sorted(wanted)


@pytest.mark.parametrize("exact", [True, False])
def test_an_evaluation_is_the_native_engines(exact):
    model, tokenizer = small_model()
    task, world = Sorting(level=1), World.init()
    measure = {"examples": 12, "sampling": Sampling(max_tokens=6), "seed": 0, "world": world}
    native = NativeEngine(model, tokenizer)
    with serving(Served(native)) as served:
        engine = HttpEngine(served.url, MODEL, tokenizer if exact else None, connection=QUICK)
        measured = evaluate(engine, engine.tokenizer, task, samples=2, ks=(1, 2), **measure)
        greedy = evaluate(engine, engine.tokenizer, task, **measure)
    assert greedy == evaluate(native, tokenizer, task, **measure)
    assert measured.accuracy == greedy.accuracy
    assert [a for a in measured.answers if a.sample == 0] == list(greedy.answers)
    assert len({a.text for a in measured.answers}) > 6


def test_an_empty_prompt_is_refused(native, served):
    engine = HttpEngine(served.url, MODEL)
    with pytest.raises(UserError, match="empty"):
        engine.generate([Prompt(tokens=(), stream=(0,))], PLAIN)
    assert served.requests == []
    assert engine.generate([], PLAIN) == []


@pytest.mark.parametrize(
    "said",
    [
        "plain text",
        "",
        "naïve 🚀 \U0010ffff",
        (Message(role="user", content="hello"),),
        (Message(role="system", content=""), Message(role="user", content="1\n2"), Message(role="", content="é")),
    ],
)
def test_server_text_gives_back_what_it_was_given(said):
    stand_in = ServerText()
    tokens = stand_in.prompt(said)
    assert stand_in.read(tokens) == said
    assert all(0 <= token < stand_in.vocab_size for token in tokens)


def test_a_notebook_runs_an_event_loop_of_its_own(native, served):
    prompts = pose(native.tokenizer, *TEXTS)
    engine = HttpEngine(served.url, MODEL, native.tokenizer, connection=QUICK)

    async def cell():
        return engine.generate(prompts, GREEDY)

    assert asyncio.run(cell()) == native.generate(prompts, GREEDY)
