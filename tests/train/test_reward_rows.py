"""A reward model is asked about the very tokens that it learned from, however long a text is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.real import real
from tests.models.chats import CHAT, assistant, spelled, system, user
from tests.small import ALPHABET, small_model
from whet.data.sources import Source, load_rows
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.scoring import Scorer, one_step, split_steps
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Outcomes, Pair, Row, Trace
from whet.train.rows.reward_tokens import Judged, groups_of, judged

PLAIN = character_tokenizer(ALPHABET)
TALK = (system("a"), user("b"), assistant("c"), user("d"))  # 13 tokens; 7 without the oldest turns
PROMPTS = {
    "short": (CHAT, TALK, 40),
    "too many turns": (CHAT, TALK, 14),
    "one long turn": (CHAT, (user("abcdefgh"),), 12),
    "a long last turn": (CHAT, (*TALK[:3], user("abcdefgh")), 12),
    "plain, short": (PLAIN, "abcd=", 40),
    "plain, long": (PLAIN, "abcdefghabcdefgh=", 12),
}
KINDS = {
    "preference": RewardSettings(kind="preference"),
    "outcome": RewardSettings(kind="outcome"),
    "outcome, every token": RewardSettings(kind="outcome", every_token=True),
    "process": RewardSettings(kind="process", classes=3, separator="h"),
}
TEXTS = ("e", "fgabc")  # of different lengths: each has another room for the prompt


def rows_of(kind, prompt, texts):
    """A row of data of each kind, and the texts that it holds."""
    if kind == "preference":
        return Pair(id="x", prompt=prompt, chosen=texts[0], rejected=texts[1]), texts
    if kind == "process":
        return Trace(id="x", prompt=prompt, steps=texts, labels=(1,) * len(texts)), ["h".join(texts)]
    return Outcomes(id="x", prompt=prompt, completions=texts, correct=(True, False)), texts


def scorer(tokenizer, how, limit):
    policy, _ = small_model(context=64)
    return Scorer(new_reward_model(policy, how, seed=0), tokenizer, max_tokens=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROMPTS)
def test_what_is_learned_is_what_is_scored(kind, name):
    how, (tokenizer, prompt, limit) = KINDS[kind], PROMPTS[name]
    row, texts = rows_of(how.kind, prompt, TEXTS)
    learned = judged(row, tokenizer, how, limit)
    asked = [scorer(tokenizer, how, limit).text(prompt, text) for text in texts]
    assert [one.tokens for one in learned.rows] == [one.tokens for one in asked]
    for places, mask, one in zip(learned.places, (row.mask for row in learned.rows), asked, strict=True):
        read = [place for place, on in enumerate(places) if on]
        assert read[-1] == one.places[-1] == len(one.tokens) - 1
        if not how.every_token:  # the others are only for learning
            assert read == list(one.places)
        assert mask == (False,) * one.prompt + (True,) * (len(one.tokens) - one.prompt)
        assert one.prompt > 0
        assert len(one.tokens) <= limit
        assert (one.cut > 0) == ("short" not in name)


def test_turns_go_before_tokens_and_each_text_has_its_own_room():
    def told(prompt, limit):
        row = Pair(id="x", prompt=prompt, chosen=TEXTS[0], rejected=TEXTS[1])
        return [spelled(one.tokens) for one in judged(row, CHAT, KINDS["preference"], limit).rows]

    whole = "<system>a<eos><user>b<eos><assistant>c<eos><user>d<eos><assistant>"
    newest = "<system>a<eos><user>d<eos><assistant>"
    assert told(TALK, 19) == [f"{whole}e<eos>", f"{whole}fgabc<eos>"]
    assert told(TALK, 18) == [f"{whole}e<eos>", f"{newest}fgabc<eos>"]
    assert told(TALK, 14) == [f"{newest}e<eos>", f"{newest}fgabc<eos>"]
    assert told(TALK, 12) == [f"{newest}e<eos>", "a<eos><user>d<eos><assistant>fgabc<eos>"]


@pytest.mark.parametrize(("limit", "fits"), [(7, True), (6, False)])
def test_what_leaves_no_room_for_a_prompt_is_not_learned(limit, fits):
    for kind, how in KINDS.items():
        row, texts = rows_of(how.kind, "abcd", ("e", "fgabc") if kind != "process" else ("e", "abc"))
        assert (judged(row, PLAIN, how, limit) is not None) == fits, kind
        assert scorer(PLAIN, how, limit).text("abcd", texts[-1]).places  # a score there is all the same
    assert judged(Pair(id="x", prompt="", chosen="e", rejected="f"), PLAIN, KINDS["preference"], 9) is None


def test_the_last_token_of_every_step_is_a_place():
    trace = Trace(id="x", prompt="ab", steps=("c", "def"), labels=(1, -1))
    short = judged(trace, PLAIN, with_separator("+"), 20)
    assert PLAIN.decode(short.rows[0].tokens) == "abc+def+"
    assert [place for place, on in enumerate(short.places[0]) if on] == [3, 7]
    longer = judged(trace, PLAIN, with_separator("+="), 20)
    assert [place for place, on in enumerate(longer.places[0]) if on] == [4, 9]  # "=" ends a step, not "+"
    assert longer.labels == ((1, 0),)


def with_separator(separator):
    return RewardSettings(kind="process", classes=2, separator=separator)


SPACED = character_tokenizer("ab=x \n")
STEPS = st.lists(st.text(alphabet="ab= \n", max_size=8), min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS, separator=st.sampled_from(["\n", "\n\n", "=", "==", "=\n=", " =", " ", "  "]))
def test_steps_that_hold_the_separator_are_learned_where_they_are_scored(steps, separator):
    how = with_separator(separator)
    learned = judged(Trace(id="x", prompt="x", steps=tuple(steps), labels=(1,) * len(steps)), SPACED, how, 60)
    plain = [one_step(step, separator) for step in steps]
    if not all(step.strip() for step in plain):
        assert learned is None
        return
    asked = scorer(SPACED, how, 60).text("x", separator.join(plain))
    assert learned.rows[0].tokens == asked.tokens
    assert tuple(place for place, on in enumerate(learned.places[0]) if on) == asked.places
    assert len(asked.places) == len(learned.labels[0]) == len(steps)


def test_a_line_feed_within_a_step_is_read_as_a_space():
    trace = Trace(id="x", prompt="x", steps=("a\nb", " b"), labels=(1, -1))
    found = judged(trace, SPACED, with_separator("\n"), 20)
    assert SPACED.decode(found.rows[0].tokens) == "xa b\n b\n"
    assert [place for place, on in enumerate(found.places[0]) if on] == [4, 7]
    assert found.labels == ((1, 0),)
    asked = scorer(SPACED, with_separator("\n"), 20).text("x", "a b\n b")
    assert (asked.tokens, asked.places) == (found.rows[0].tokens, (4, 7))


@pytest.mark.parametrize("blank", ["", "  ", "\n", " \n "])
def test_a_trace_with_a_step_that_no_scorer_sees_is_left_out(blank):
    """Its label has no place in the text; without it the trace would say less, or something else."""
    how = with_separator("\n")
    trace = Trace(id="x", prompt="x", steps=("a", blank, "b"), labels=(1, -1, 1))
    assert len(scorer(SPACED, how, 20).text("x", "\n".join(trace.steps)).places) == 2
    assert judged(trace, SPACED, how, 20) is None
    assert judged(Trace(id="x", prompt="x", steps=("a", "b"), labels=(1, 1)), SPACED, how, 20) is not None


def test_real_steps_are_found_again_in_their_text():
    """About every thirtieth trace of PRMBench has a line feed within a step."""
    source = Source(path=real("prmbench/prmbench_all.jsonl.xz"), max_skipped=0.05)
    within = [row for row in load_rows(source).rows if any("\n" in step for step in row.steps)]
    assert len(within) > 200
    for trace in within:
        plain = [one_step(step, "\n") for step in trace.steps]
        assert split_steps("\n".join(plain), "\n") == plain
        assert ["".join(step.split()) for step in plain] == ["".join(step.split()) for step in trace.steps]


WORDS = st.text(alphabet="abcdefgh", min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(prompts=st.lists(WORDS, min_size=1, max_size=4), chosen=WORDS, rejected=WORDS, limit=st.integers(8, 16))
def test_rows_of_a_group_have_the_same_before_their_completion(prompts, chosen, rejected, limit):
    units = [Pair(id=str(i), prompt=p, chosen=chosen, rejected=rejected) for i, p in enumerate(prompts)]
    some = [judged(unit, PLAIN, KINDS["preference"], limit) for unit in units]
    groups = groups_of(some)
    rows = [row for one in some for row in one.rows]
    for number in torch.unique(groups).tolist():
        members = [row for row, group in zip(rows, groups.tolist(), strict=True) if group == number]
        assert len({row.tokens[: row.mask.index(True)] for row in members}) == 1
    for index, (unit, one) in enumerate(zip(units, some, strict=True)):
        fits = all(len(unit.prompt) + sum(row.mask) <= limit for row in one.rows)
        alike = len(chosen) == len(rejected)
        assert bool(groups[2 * index] == groups[2 * index + 1]) == (fits or alike)


@pytest.mark.parametrize(("every_token", "places"), [(True, [[2, 3], [2, 3, 4]]), (False, [[3], [4]])])
def test_a_label_stands_wherever_the_outcome_is_read(every_token, places):
    row = Outcomes(id="x", prompt="ab", completions=("c", "de"), correct=(True, False))
    found = judged(row, PLAIN, RewardSettings(kind="outcome", every_token=every_token), 20)
    assert [[place for place, on in enumerate(marked) if on] for marked in found.places] == places
    assert found.labels == tuple((label,) * len(some) for label, some in zip((1, 0), places, strict=True))
    assert (found.margin, found.data) == (0.0, row)


def test_a_group_is_a_beginning_of_one_prompt_to_its_last_token():
    rows = [
        Row(tokens=tokens, mask=(False, False, True))
        for tokens in ((1, 2, 9), (1, 2, 8), (1, 3, 9), (1, 2, 9), (1, 2, 7))
    ]
    some = [Judged(rows=tuple(part), places=(), labels=(), margin=0.0) for part in (rows[:3], rows[3:])]
    first, second, other, next_one, same = groups_of(some).tolist()
    assert first == second
    assert next_one == same
    assert len({first, other, next_one}) == 3
    assert groups_of([]).dtype == torch.int64  # of a rank without rows


@pytest.mark.parametrize(("margin", "known"), [(2.5, 2.5), (None, 0.0)])
def test_a_pair_has_the_margin_that_was_stated_and_no_labels(margin, known):
    pair = Pair(id="x", prompt="ab", chosen="c", rejected="de", margin=margin)
    found = judged(pair, PLAIN, KINDS["preference"], 20)
    assert (found.margin, found.labels, found.data) == (known, ((), ()), pair)
