"""Servers that mean harm, in JSON: values that cannot be are not believed, and the sentence names their field."""

import json
import math

import pytest

from tests.engines.hostile import KEY, ask, complaint
from whet.engines.http.untrusted import parse_object, printable, whole_characters
from whet.errors import RunFailed
from whet.records import Sampling

PLAIN = Sampling(max_tokens=8)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)


def answering(served, body):
    served.fault = lambda handler, _: handler.send(200, body if isinstance(body, bytes) else body.encode())


def choice(**fields):
    """A choice as JSON, honest but for what is given; text stands for itself."""
    usual = {
        "index": "0",
        "text": '"a"',
        "finish_reason": '"stop"',
        "token_ids": "[1, 2]",
        "logprobs": '{"tokens": ["a", "b"], "token_logprobs": [-1, -0.5]}',
    }
    given = {name: value for name, value in (usual | fields).items() if value is not None}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in given.items()) + "}"


def reply(*choices, used="2"):
    return f'{{"choices": [{", ".join(choices)}], "usage": {{"completion_tokens": {used}}}}}'


def logprob(value):
    return reply(choice(logprobs=f'{{"tokens": ["a", "b"], "token_logprobs": [-1, {value}]}}'))


def token(value):
    return reply(choice(token_ids=f"[1, {value}]"))


def spelled(value):
    return reply(choice(token_ids=None, logprobs=f'{{"tokens": ["token_id:1", {value}], "token_logprobs": [-1, -1]}}'))


LOGPROB = "answered with choices[0].logprobs.token_logprobs[1] = {}, which is not a log-prob"
BROKEN = "answered with choices[0].logprobs.token_logprobs[1] = {}, which is not finite: look at the weights"
TOKEN = "answered with choices[0].token_ids[1] = {}, which is not a token id from 0 to "
IDS = {
    "log-prob above 0": (logprob("0.5"), LOGPROB.format("0.5")),
    "log-prob Infinity": (logprob("Infinity"), BROKEN.format("Infinity")),
    "log-prob -Infinity": (logprob("-Infinity"), BROKEN.format("-Infinity")),
    "log-prob NaN": (logprob("NaN"), BROKEN.format("NaN")),
    "log-prob beyond floats": (logprob("-1e999"), BROKEN.format("-Infinity")),
    "log-prob of text": (logprob('"-1"'), LOGPROB.format("'-1'")),
    "log-prob null": (logprob("null"), LOGPROB.format("null")),
    "log-prob true": (logprob("false"), LOGPROB.format("false")),
    "log-prob list": (logprob("[]"), LOGPROB.format("a list of 0")),
    "log-prob of 300 digits": (logprob("1" * 300), LOGPROB.format("1" * 60)),
    "log-prob of 301 digits": (logprob("-" + "1" * 300), "failed: the answer has a number of 301 digits"),
    "log-prob of a chat": (
        reply(choice(logprobs='{"content": [{"token": "a", "logprob": -1}, {"token": "b", "logprob": 2}]}')),
        "answered with choices[0].logprobs.content[1].logprob = 2, which is not a log-prob",
    ),
    "no log-prob of a chat": (
        reply(choice(logprobs='{"content": [{"token": "a", "logprob": -1}, 7]}')),
        "answered with choices[0].logprobs.content[1].token = null, which is not text",
    ),
    "fewer log-probs": (
        reply(choice(logprobs='{"tokens": ["a", "b"], "token_logprobs": [-1]}')),
        "answered with 1 log-probs for 2 tokens in choices[0].logprobs",
    ),
    "other log-probs": (
        reply(choice(token_ids="[1, 2, 3]")),
        "answered with 2 log-probs for 3 tokens in choices[0]",
    ),
    "token negative": (token("-1"), TOKEN.format("-1")),
    "token true": (token("true"), TOKEN.format("true")),
    "token float": (token("1.0"), TOKEN.format("1.0")),
    "token text": (token('"1"'), TOKEN.format("'1'")),
    "token null": (token("null"), TOKEN.format("null")),
    "token huge": (token("9" * 300), TOKEN.format("9" * 60)),
    "token of too many digits": (token("9" * 5000), "failed: the answer has a number of 5000 digits"),
    "no tokens": (reply(choice(token_ids="[]")), "choices[0].token_ids = [], and a completion has at least one token"),
    "tokens in an object": (
        reply(choice(token_ids="{}")),
        "choices[0].token_ids = an object, which is not a list of token ids",
    ),
    "spelled beyond the vocabulary": (spelled('"token_id:99999"'), "choices[0].logprobs.tokens[1] = 99999, which is"),
    "spelled of 5000 digits": (spelled(f'"token_id:{"9" * 5000}"'), "does not return the ids of its tokens"),
    "spelled negative": (spelled('"token_id:-1"'), "does not return the ids of its tokens"),
    "spelled number": (spelled("7"), "answered with choices[0].logprobs.tokens[1] = 7, which is not text"),
    "too many tokens": (
        reply(choice(token_ids=json.dumps([1] * 9), logprobs="null")),
        "answered with 9 tokens in choices[0].token_ids, and at most 8 were asked for",
    ),
    "too many log-probs": (
        reply(choice(logprobs=json.dumps({"tokens": ["a"] * 9, "token_logprobs": [-1] * 9}))),
        "answered with 9 tokens in choices[0].logprobs, and at most 8 were asked for",
    ),
    "too many choices": (reply(choice(), choice()), "answered with 2 choices, and 1 were asked for"),
    "a choice that is none": (reply("7"), "answered without a list of choices, only with 'choices, usage'"),
    "keys that are secret": (json.dumps({KEY: 1}), "without a list of choices, only with '***'"),
    "nested too deeply": ("[" * 100_000, "failed: the answer is JSON that is nested too deeply"),
    "objects nested too deeply": ('{"a":' * 100_000, "failed: the answer is JSON that is nested too deeply"),
    "nested in finish_reason": (
        reply(choice(finish_reason="[" * 500 + "]" * 500)),
        "choices[0].finish_reason = a list of 1",
    ),
    "not UTF-8": (b'{"choices": "\xff\xfe"}', "failed: the answer is not UTF-8 at byte 13"),
    "UTF-16": (reply(choice()).encode("utf-16"), "failed: the answer is not UTF-8 at byte 0"),
    "a key twice": ('{"choices": [], "choices": []}', "failed: the answer has 'choices' twice in one object"),
    "an inner key twice": (
        reply(choice()[:-1] + ', "token_ids": [3]}'),
        "failed: the answer has 'token_ids' twice in one object",
    ),
    "a list": ("[1, 2]", "failed: the answer is not a JSON object but a list of 2"),
    "half an answer": (reply(choice())[:-30], "failed: the answer is not JSON: '{"),
    "two answers": ("{}{}", "failed: the answer is not JSON: '{}{}'"),
    "control characters": ('{"\\u001b[2J": 1}', r"only with '\x1b[2J'"),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_that_cannot_be_are_not_believed(native, served, case):
    body, sentence = IDS[case]
    answering(served, body)
    assert sentence in complaint(served, native, sampling=PLAIN)


def text(value):
    return reply(choice(text=value, token_ids=None, logprobs=None))


def count(value):
    return reply(choice(token_ids=None, logprobs=None), used=value)


TEXTS = {
    "text of a number": (text("7"), "answered with choices[0].text = 7, which is not text"),
    "text null": (text("null"), "answered with choices[0].text = null, which is not text"),
    "text of parts": (
        reply(choice(text=None, token_ids=None, logprobs=None, message='{"content": [{"type": "text"}]}')),
        "answered with choices[0].message.content = a list of 1, which is not text",
    ),
    "no text": (
        reply(choice(text=None, token_ids=None, logprobs=None)),
        "answered with choices[0].text = null, which is not text",
    ),
    "count negative": (count("-1"), "usage.completion_tokens = -1, which is not a number of tokens"),
    "count true": (count("true"), "usage.completion_tokens = true, which is not a number of tokens"),
    "count float": (count("1.5"), "usage.completion_tokens = 1.5, which is not a number of tokens"),
    "count text": (count('"2"'), "usage.completion_tokens = '2', which is not a number of tokens"),
    "count null": (count("null"), "answered without usage.completion_tokens and without log-probs"),
    "count above": (count("9"), "answered with 9 tokens in usage.completion_tokens, and at most 8 were asked for"),
    "count absurd": (count("9" * 200), "9 tokens in usage.completion_tokens, and at most 8 were asked for"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_cannot_be_are_not_believed(native, served, case):
    body, sentence = TEXTS[case]
    answering(served, body)
    assert sentence in complaint(served, native, sampling=PLAIN, exact=False)


@pytest.mark.parametrize("indices", ["00", "11", "12", "0-", "01.0", "0true", '0"1"', "0null"])
def test_choices_are_numbered(native, served, indices):
    answering(served, reply(choice(index=indices[0]), choice(index=indices[1:] if indices[1:] != "-" else "-1")))
    assert ".index = " in complaint(served, native, sampling=PLAIN, count=2, choices=2)


def test_choices_are_put_in_order(native, served):
    answering(served, reply(choice(index="1", token_ids="[4, 5]"), choice(index="0")))
    answers = ask(served, native, sampling=PLAIN, count=2, choices=2)
    assert [answer.tokens for answer in answers] == [(1, 2), (4, 5)]


def test_the_last_id_of_the_vocabulary_is_one(native, served):
    last = native.tokenizer.vocab_size - 1
    answering(served, token(str(last)))
    assert ask(served, native, sampling=PLAIN)[0].tokens == (1, last)
    answering(served, token(str(last + 1)))
    assert complaint(served, native, sampling=PLAIN).endswith(f"= {last + 1}, which is not a token id from 0 to {last}")


def test_rounding_above_0_is_no_lie(native, served):
    answering(served, logprob("1.2e-07"))
    assert ask(served, native, sampling=PLAIN)[0].logprobs == (-1.0, 1.2e-07)


def test_logprobs_that_are_not_used_are_not_judged_unless_they_show_broken_weights(native, served):
    answering(served, logprob("0.5"))
    assert ask(served, native, sampling=Sampling(max_tokens=8, temperature=0.0))[0].logprobs == (0.0, 0.0)
    shaped = ask(served, native, sampling=Sampling(max_tokens=8, temperature=0.5))[0].logprobs
    assert [math.isnan(value) for value in shaped] == [True, True]
    answering(served, logprob("NaN"))
    for temperature in (0.0, 0.5):
        with pytest.raises(RunFailed, match="which is not finite: look at the weights that it serves"):
            ask(served, native, sampling=Sampling(max_tokens=8, temperature=temperature))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("a\\ud800b", "a\ufffdb"),
        ("\\udfffa\\ud83d\\ude00", "\ufffda\U0001f600"),
        ("\\u0000\\u001b[2J", "\0\x1b[2J"),  # printing is where these matter
    ],
)
def test_text_can_be_written_to_a_file(native, served, said, wanted):
    answering(served, text(f'"{said}"'))
    answer = ask(served, native, sampling=PLAIN, exact=False)[0].text
    assert answer == wanted
    assert answer.encode("utf-8").decode("utf-8") == answer


def test_printable_and_whole():
    assert printable("a\n b\t\x07\u202e\ud800 é…") == r"a b \x07\u202e\ud800 é…"
    assert len(printable("x" * 1000)) == 300
    assert whole_characters("a\udc80é\U0001f600") == "a\ufffdé\U0001f600"


FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "content_filter": "length",
    "tool_calls": "length",
    "function_call": "length",
}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("reason", FINISHES)
def test_only_what_ended_by_itself_counts_as_a_stop(native, served, reason, exact):
    answering(served, reply(choice(finish_reason=f'"{reason}"')))
    answer = ask(served, native, sampling=PLAIN, exact=exact)[0]
    assert answer.finish == FINISHES[reason]
    assert len(answer.tokens) == 2


@pytest.mark.parametrize("reason", ['"abort"', '"error"', '"Stop"', '""', "null", "true", "0", '["stop"]', None])
@pytest.mark.parametrize("exact", [True, False])
def test_any_other_end_is_no_completion(native, served, reason, exact):
    answering(served, reply(choice(finish_reason=reason)))
    said = complaint(served, native, sampling=PLAIN, exact=exact)
    assert "answered with choices[0].finish_reason = " in said
    assert said.endswith("which is neither stop nor length: the completion is incomplete")


def test_many_keys_are_looked_through_once():
    """Whoever compared each with all others would be busy for minutes."""
    names = ",".join(f'"{number}":0' for number in range(200_000))
    assert len(parse_object(f"{{{names}}}".encode())) == 200_000
    with pytest.raises(ValueError, match="has '7' twice in one object"):
        parse_object(f'{{{names},"7":1}}'.encode())
