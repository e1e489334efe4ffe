"""Rows of data as token rows: what is trained, what is left out first, and what does not fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.chats import CHAT, assistant, chat, spelled, user
from tests.small import ALPHABET
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Dialogue, Row
from whet.train.rows.examples import completion_rows, dialogue_rows, ended, text_rows

PLAIN = character_tokenizer(ALPHABET)
FORGETFUL = "{% for m in messages[-1:] %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}<assistant>"
WORDS = st.text(alphabet="abcdefgh", min_size=1, max_size=6)


def trained(row):
    return spelled(token for token, on in zip(row.tokens, row.mask, strict=True) if on)


def test_a_completion_ends():
    assert ended(PLAIN, "x", "ab") == [*PLAIN.encode("ab"), PLAIN.eos]
    assert ended(PLAIN, "x", "") == [PLAIN.eos]


def test_completions_of_a_prompt_share_their_beginning():
    rows = completion_rows(PLAIN, "ab", ["c", "def"], 10)
    a, b, c, d, e, f = PLAIN.encode("abcdef")
    end = PLAIN.eos
    assert rows == [
        Row(tokens=(a, b, c, end), mask=(False, False, True, True)),
        Row(tokens=(a, b, d, e, f, end), mask=(False, False, True, True, True, True)),
    ]


@pytest.mark.parametrize(("limit", "kept"), [(8, "abcd"), (7, "bcd"), (5, "d")])
def test_a_prompt_loses_its_first_tokens_and_a_completion_none(limit, kept):
    rows = completion_rows(PLAIN, "abcd", ["e", "fgh"], limit)
    assert [PLAIN.decode(row.tokens) for row in rows] == [f"{kept}e", f"{kept}fgh"]
    assert [PLAIN.decode([t for t, on in zip(r.tokens, r.mask, strict=True) if on]) for r in rows] == ["e", "fgh"]


def test_a_completion_that_leaves_no_room_for_a_prompt_does_not_fit():
    assert completion_rows(PLAIN, "abcd", ["e", "fgh"], 4) is None
    assert completion_rows(PLAIN, "", ["e"], 9) is None  # nothing would predict its first token


@settings(deadline=None, max_examples=60)
@given(prompt=WORDS, texts=st.lists(WORDS, min_size=1, max_size=3), limit=st.integers(1, 16))
def test_what_fits_is_whole_within_the_limit_and_never_trains_token_zero(prompt, texts, limit):
    rows = completion_rows(PLAIN, prompt, texts, limit)
    if rows is None:
        assert max(map(len, texts)) + 2 > limit  # the longest, its end, and one token before them
        return
    asked = {row.tokens[: row.mask.index(True)] for row in rows}
    assert len(asked) == 1
    assert prompt.endswith(PLAIN.decode(asked.pop()))
    for row, text in zip(rows, texts, strict=True):
        assert len(row.tokens) <= limit
        assert not row.mask[0]
        first = row.mask.index(True)
        assert all(row.mask[first:])
        assert list(row.tokens[first:]) == ended(PLAIN, prompt, text)
    assert max(len(row.tokens) for row in rows) == min(limit, len(prompt) + max(map(len, texts)) + 1)


TALK = Dialogue(id="x", prompt=(user("a"), assistant("b"), user("c")), completion="de")


def test_only_the_last_turn_is_imitated():
    (row,) = dialogue_rows(CHAT, TALK, turns="last", limit=64)
    assert spelled(row.tokens) == "<user>a<eos><assistant>b<eos><user>c<eos><assistant>de<eos>"
    assert trained(row) == "de<eos>"


def test_all_turns_are_imitated_in_one_row():
    (row,) = dialogue_rows(CHAT, TALK, turns="all", limit=64)
    assert spelled(row.tokens) == "<user>a<eos><assistant>b<eos><user>c<eos><assistant>de<eos>"
    assert trained(row) == "b<eos>de<eos>"
    assert sum(row.mask) == 5
    assert dialogue_rows(CHAT, TALK, turns="all", limit=len(row.tokens)) == [row]


@pytest.mark.parametrize("turns", ["last", "all"])
def test_a_prompt_that_is_a_text_has_one_turn(turns):
    (row,) = dialogue_rows(PLAIN, Dialogue(id="x", prompt="ab", completion="c"), turns=turns, limit=64)
    assert (PLAIN.decode(row.tokens), row.mask) == ("abc", (False, False, True, True))


def test_a_text_has_one_turn():
    talk = Dialogue(id="x", prompt="a", completion="de")
    one, other = (dialogue_rows(PLAIN, talk, turns=turns, limit=64) for turns in ("last", "all"))
    assert one == other == completion_rows(PLAIN, "a", ["de"], 64)


def test_what_just_fits_is_one_row():
    assert [len(dialogue_rows(CHAT, TALK, turns="all", limit=limit)) for limit in (12, 13)] == [2, 1]


def test_a_template_that_rewrites_earlier_turns_gets_a_row_for_each():
    rows = dialogue_rows(chat(FORGETFUL), TALK, turns="all", limit=64)
    assert [spelled(row.tokens) for row in rows] == ["<user>a<eos><assistant>b<eos>", "<user>c<eos><assistant>de<eos>"]
    assert [trained(row) for row in rows] == ["b<eos>", "de<eos>"]


def test_a_dialogue_that_is_too_long_is_parted_before_it_is_given_up():
    rows = dialogue_rows(CHAT, TALK, turns="all", limit=12)  # 13 tokens in one row
    assert [spelled(row.tokens) for row in rows] == ["<user>a<eos><assistant>b<eos>", "<user>c<eos><assistant>de<eos>"]
    assert dialogue_rows(CHAT, TALK, turns="all", limit=3) is None
    assert dialogue_rows(CHAT, TALK, turns="last", limit=3) is None


@pytest.mark.parametrize("turns", ["last", "all"])
def test_what_opens_a_dialogue_answers_nothing(turns):
    talk = Dialogue(id="x", prompt=(assistant("h"), user("a")), completion="b")
    (row,) = dialogue_rows(CHAT, talk, turns=turns, limit=64)
    assert spelled(row.tokens) == "<assistant>h<eos><user>a<eos><assistant>b<eos>"
    assert trained(row) == "b<eos>"


def test_a_text_is_trained_from_its_second_token_on():
    a, b, c = PLAIN.encode("abc")
    end = PLAIN.eos
    assert text_rows(PLAIN, "abc", 9) == [Row(tokens=(a, b, c, end), mask=(False, True, True, True))]
    assert text_rows(PLAIN, "abc", 3) == [
        Row(tokens=(a, b, c), mask=(False, True, True)),
        Row(tokens=(c, end), mask=(False, True)),
    ]
    assert text_rows(PLAIN, "", 9) is None


@given(text=st.text(alphabet="abcdefgh", min_size=1, max_size=40), limit=st.integers(2, 12))
def test_every_token_of_a_text_but_the_first_is_trained_once(text, limit):
    rows = text_rows(PLAIN, text, limit)
    assert all(2 <= len(row.tokens) <= limit and not row.mask[0] for row in rows)
    trained_tokens = [token for row in rows for token, on in zip(row.tokens, row.mask, strict=True) if on]
    assert trained_tokens == [*PLAIN.encode(text), PLAIN.eos][1:]


def test_an_answer_of_weight_zero_is_read_and_not_imitated():
    prompt = (user("a"), assistant("bad"), user("c"), assistant("d"), user("e"))
    (row,) = dialogue_rows(CHAT, Dialogue(id="0", prompt=prompt, completion="f", untrained=(1,)), turns="all", limit=99)
    (whole,) = dialogue_rows(CHAT, Dialogue(id="0", prompt=prompt, completion="f"), turns="all", limit=99)
    assert row.tokens == whole.tokens
    assert (trained(row), trained(whole)) == ("d<eos>f<eos>", "bad<eos>d<eos>f<eos>")
