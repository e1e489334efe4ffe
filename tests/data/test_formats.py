"""Every format on a row in its true form: what it becomes, how it is recognised, and what a wrong row is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.written import assistant, user
from whet.data.feedback import hh_messages, unpaired
from whet.data.formats import FORMATS, named, recognised
from whet.errors import UserError
from whet.records import Candidates, Dialogue, Labelled, Message, Outcomes, Pair, Text, Trace

U = Message(role="user", content="q")
A = Message(role="assistant", content="a")
S = Message(role="system", content="s")
ONE_PLUS_ONE = Message(role="user", content="1+1?")
BAD = {"role": "assistant", "content": "bad", "weight": 0}

STEP_ROW = {
    "completions": [{"text": "x=1", "rating": 1, "flagged": False}, {"text": "x=9", "rating": -1}],
    "human_completion": None,
    "chosen_completion": 0,
}
BY_HAND = {
    "completions": [{"text": "y=9", "rating": -1}, {"text": "y=8", "rating": -1}],
    "human_completion": {"text": "y=2", "rating": None, "source": "human"},
    "chosen_completion": None,
}
NEUTRAL = {"completions": [{"text": "so", "rating": 0}], "human_completion": None, "chosen_completion": 0}
LAST = {
    "completions": [{"text": "?", "rating": None}, {"text": "z=7", "rating": -1}, {"text": "z=6", "rating": 1}],
    "human_completion": None,
    "chosen_completion": None,
}
PRM800K = {
    "labeler": "1",
    "is_quality_control_question": False,
    "question": {"problem": "q", "ground_truth_answer": "3"},
    "label": {"steps": [STEP_ROW, BY_HAND, NEUTRAL, LAST], "finish_reason": "found_error"},
}

# (format, row, records): each as the data sets of that name write it.
TRUE: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("messages", {"messages": [user("q"), assistant("a")]}, [Dialogue(id="r", prompt=(U,), completion="a")]),
    ("prompt_completion", {"prompt": "q", "completion": "a"}, [Dialogue(id="r", prompt="q", completion="a")]),
    (
        "prompt_completion",  # one side in messages makes both a conversation
        {"prompt": "q", "completion": [assistant("a")]},
        [Dialogue(id="r", prompt=(U,), completion="a")],
    ),
    (
        "prompt_completion",
        {"prompt": [user("q")], "completion": [assistant("a")]},
        [Dialogue(id="r", prompt=(U,), completion="a")],
    ),
    (
        "alpaca",
        {"instruction": "q", "input": "i", "output": "a", "system": "s", "history": [["q", "a"]]},
        [Dialogue(id="r", prompt=(S, U, A, Message(role="user", content="q\n\ni")), completion="a")],
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
        [Dialogue(id="r", prompt=(S, U), completion="a")],
    ),
    (
        "gsm8k",
        {"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"},
        [Dialogue(id="r", prompt=(U,), completion="1+1=<<1+1=2>>2\n#### 2")],
    ),
    (
        "candidates",
        {"prompt": "q", "completions": ["a", "b"]},
        [Candidates(id="r", prompt="q", completions=("a", "b"))],
    ),
    (
        "candidates",  # rewards of outcomes are 0 or 1
        {"prompt": "q", "completions": ["a", "b"], "rewards": [1, -0.5]},
        [Candidates(id="r", prompt="q", completions=("a", "b"), scores=(1.0, -0.5))],
    ),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b"}, [Pair(id="r", prompt="q", chosen="a", rejected="b")]),
    (
        "pairs",  # TRL's explicit prompt
        {"prompt": [user("q")], "chosen": [assistant("a")], "rejected": [assistant("b")]},
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b")],
    ),
    (
        "pairs",  # UltraFeedback binarised: the sides repeat the prompt, which is text
        {
            "prompt": "q",
            "prompt_id": "0",
            "messages": [user("q"), assistant("a")],
            "chosen": [user("q"), assistant("a")],
            "rejected": [user("q"), assistant("b")],
            "score_chosen": 8.5,
            "score_rejected": 7,
        },
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b", margin=1.5)],
    ),
    (
        "pairs",
        {"prompt": "q", "chosen": "a", "rejected": "b", "metadata": {"score_chosen": 9.0, "score_rejected": 8.0}},
        [Pair(id="r", prompt="q", chosen="a", rejected="b", margin=1.0)],
    ),
    (
        "pairs",  # the prompt of a transcript, with the turn that waits for an answer
        {"prompt": "\n\nHuman: q\n\nAssistant:", "chosen": " a", "rejected": " b"},
        [Pair(id="r", prompt=(U,), chosen=" a", rejected=" b")],
    ),
    (
        "implicit_pairs",
        {"chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]},
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b")],
    ),
    (
        "hh",  # all turns stay turns
        {
            "chosen": "\n\nHuman: q\n\nAssistant: a\n\nHuman: q\n\nAssistant: c",
            "rejected": "\n\nHuman: q\n\nAssistant: a\n\nHuman: q\n\nAssistant: d",
        },
        [Pair(id="r", prompt=(U, A, U), chosen="c", rejected="d")],
    ),
    (
        "sharegpt_pairs",
        {
            "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        [Pair(id="r", prompt=(S, U), chosen="a", rejected="b")],
    ),
    (
        "alpaca_pairs",
        {"instruction": "q", "input": "", "chosen": "a", "rejected": "b"},
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b")],
    ),
    (
        "hhh",
        {"input": "q", "targets": {"choices": ["b", "a"], "labels": [0, 1]}},
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b")],
    ),
    (
        "hhh_judged",
        {
            side: f"###The instruction to evaluate:\nq\n\n###Response to evaluate:\n{said}\n\n###Score Rubrics:\n[]"
            for side, said in (("chosen_instruction", "a"), ("rejected_instruction", "b"))
        },
        [Pair(id="r", prompt=(U,), chosen="a", rejected="b")],
    ),
    (
        "labelled",
        {"prompt": "q", "completion": "a", "label": False},
        [Labelled(id="r", prompt="q", completion="a", label=False)],
    ),
    (
        "labelled",
        {"prompt": [user("q")], "completion": [assistant("a")], "label": "True"},  # CSV has words
        [Labelled(id="r", prompt=(U,), completion="a", label=True)],
    ),
    (
        "labelled_messages",
        {"messages": [user("q"), assistant("a")], "label": True},
        [Labelled(id="r", prompt=(U,), completion="a", label=True)],
    ),
    (
        "labelled_alpaca",
        {"instruction": "q", "input": "", "output": "a", "kto_tag": False},
        [Labelled(id="r", prompt=(U,), completion="a", label=False)],
    ),
    (
        "outcomes",
        {"prompt": "q", "completions": ["a", "b"], "correct": [True, False]},
        [Outcomes(id="r", prompt="q", completions=("a", "b"), correct=(True, False))],
    ),
    (
        "outcomes",
        {"prompt": "q", "completions": ["a", "b"], "rewards": [0.0, 1.0]},
        [Outcomes(id="r", prompt="q", completions=("a", "b"), correct=(False, True))],
    ),
    (
        "classified",
        {"sentence": "a  charming film ", "label": "1"},
        [Outcomes(id="r", prompt="a ", completions=("charming film",), correct=(True,))],
    ),
    ("classified", {"sentence": "dull", "label": 0}, []),
    (
        "gsm8k_solutions",
        {
            "question": "q",
            "ground_truth": "a",
            "6b_finetuning": {"is_correct": False, "solution": "b"},
            "175b_verification": {"is_correct": True, "solution": "a"},
        },
        [Outcomes(id="r", prompt="q", completions=("b", "a"), correct=(False, True))],
    ),
    (
        "prm800k",  # chosen, by hand, chosen; then the first that was rated, and none of the alternatives
        PRM800K,
        [Trace(id="r", prompt="q", steps=("x=1", "y=2", "so", "z=7"), labels=(1, 1, 0, -1))],
    ),
    (
        "prmbench",
        {
            "original_question": "q",
            "modified_question": "q!",
            "question": "q",
            "original_process": ["a", "b"],
            "modified_process": ["a", "c", "d"],
            "modified_steps": [2],
            "error_steps": [2],
            "idx": "prm_test_p1_0",
            "classification": "circular",
        },
        [
            Trace(id="r-original", prompt="q", steps=("a", "b"), labels=(1, 1), twin="prm_test_p1_0"),
            Trace(id="r-modified", prompt="q!", steps=("a", "c", "d"), labels=(1, -1, 1), twin="prm_test_p1_0"),
        ],
    ),
    (
        "prmbench",  # its problems by number
        {
            "original_question": "q",
            "modified_question": "q!",
            "original_process": ["a"],
            "modified_process": ["b"],
            "error_steps": [1],
            "idx": 0,
        },
        [
            Trace(id="r-original", prompt="q", steps=("a",), labels=(1,), twin="0"),
            Trace(id="r-modified", prompt="q!", steps=("b",), labels=(-1,), twin="0"),
        ],
    ),
    (
        "math_shepherd",
        {
            "input": "What is 1+1? Step 1: 1+1=3 ки\nStep 2: so 2 ки\nStep 3: The answer is: 2 ки",
            "label": "What is 1+1? Step 1: 1+1=3 -\nStep 2: so 2 +\nStep 3: The answer is: 2 +",
            "task": "GSM8K",
        },
        [
            Trace(
                id="r",
                prompt="What is 1+1?",
                steps=("Step 1: 1+1=3", "Step 2: so 2", "Step 3: The answer is: 2"),
                labels=(-1, 1, 1),
            )
        ],
    ),
    (
        "steps",
        {"prompt": "q", "completions": ["a", "b", "c"], "labels": [True, False, 0]},
        [Trace(id="r", prompt="q", steps=("a", "b", "c"), labels=(1, -1, 0))],
    ),
    ("question_answer", {"question": "1+1?", "answer": 2}, [Dialogue(id="r", prompt=(ONE_PLUS_ONE,), completion="2")]),
    ("question_answer", {"question": "q", "answer": "two"}, [Dialogue(id="r", prompt=(U,), completion="two")]),
    ("prompt_answer", {"prompt": "1/2?", "answer": 0.5}, [Dialogue(id="r", prompt="1/2?", completion="0.5")]),
    ("prompt_answer", {"prompt": [user("q")], "answer": True}, [Dialogue(id="r", prompt=(U,), completion="true")]),
    ("prompt_completion", {"prompt": "1+1?", "completion": 2.0}, [Dialogue(id="r", prompt="1+1?", completion="2")]),
    ("prompts", {"prompt": "write", "style": "terse"}, [Dialogue(id="r", prompt="write", completion="")]),
    ("prompts", {"prompt": [user("q")], "answer": None}, [Dialogue(id="r", prompt=(U,), completion="")]),
    ("text", {"text": "once upon", "id": 3}, [Text(id="r", prompt="once upon")]),
    (
        "implicit_text_pairs",
        {"chosen": "The sky is blue.", "rejected": "The sky is bloody red."},
        [Pair(id="r", prompt="The sky is", chosen=" blue.", rejected=" bloody red.")],  # not "The sky is bl"
    ),
    (
        "implicit_text_pairs",
        {"chosen": "Hi!\nYes sir", "rejected": "Hi!\nYes"},
        [Pair(id="r", prompt="Hi!", chosen="\nYes sir", rejected="\nYes")],  # no side may be empty
    ),
    (
        "messages",
        {"messages": [{**user("q"), "id": 7}, {**assistant("a"), "weight": 1, "tool_calls": []}]},
        [Dialogue(id="r", prompt=(U,), completion="a")],
    ),
    (
        "messages",
        {"messages": [user("q"), {**assistant("a"), "weight": 0}, user("q"), assistant("b"), user("x"), BAD]},
        [Dialogue(id="r", prompt=(U, A, U), completion="b", untrained=(1,))],
    ),
]


@pytest.mark.parametrize(("name", "row", "records"), TRUE, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(TRUE)])
def test_a_row_in_its_true_form(name: str, row: dict[str, Any], records: list[Any]) -> None:
    assert recognised([row], "f") == name
    assert list(named(name).parse(row, "r", "f:1")) == records


def test_every_format_has_a_row_here_and_a_sentence() -> None:
    assert {name for name, _, _ in TRUE} == set(FORMATS)
    assert all(known.about.endswith((".", ")")) for known in FORMATS.values())


def test_what_no_format_has_is_told_with_its_columns() -> None:
    with pytest.raises(UserError, match=r"f: no known format has the columns words, id: rename … to prompt"):
        recognised([{"words": "x"}, {"id": 1}], "f")
    with pytest.raises(UserError, match=r"e\.g\. 'data\.columns=\{prompt: problem, completion: output\}' \(or compl"):
        recognised([{"problem": "q", "solution": "a", "output": "b"}], "f", "data")
    with pytest.raises(UserError, match=r"e\.g\. 'data\.columns=\{prompt: problem, answer: solution\}', or name"):
        recognised([{"problem": "q", "solution": "a"}], "f", "data", as_prompts=True)
    with pytest.raises(UserError, match="rename query to prompt, better to chosen, worse to rejected, or name"):
        recognised([{"query": "q", "better": "a", "worse": "b"}], "f")
    with pytest.raises(UserError, match=r"no data format 'xyz' \(formats: auto, prm800k"):
        named("xyz")
    with pytest.raises(UserError, match="did you mean 'outcomes'"):
        named("outcome")


def test_one_odd_row_does_not_change_what_is_recognised() -> None:
    assert recognised([{"text": "x"}, TRUE[0][1], TRUE[0][1]], "f") == "messages"


def test_null_columns_of_a_table_count_as_absent() -> None:
    """Tables with rows of two sorts fill the columns of the other sort with null."""
    row = {"messages": [{**user("q"), "name": None}, {**assistant("a"), "name": None}], "label": None}
    assert recognised([row], "f") == "messages"
    assert list(named("messages").parse(row, "r", "f:1")) == [Dialogue(id="r", prompt=(U,), completion="a")]


def test_two_turns_of_the_same_speaker_are_one() -> None:
    said = hh_messages("\n\nHuman: q\n\nAssistant: one\n\nAssistant:  two ", "f:1")
    assert said == (U, Message(role="assistant", content="one\n\ntwo"))


SAID = st.text(max_size=20).map(str.strip).filter(lambda said: "Human:" not in said and "Assistant:" not in said)


@given(st.lists(SAID, min_size=1, max_size=6))
def test_a_transcript_reads_back(said: list[str]) -> None:
    speakers = ["Human", "Assistant"] * len(said)
    transcript = "".join(f"\n\n{who}: {what}" for who, what in zip(speakers, said, strict=False))
    roles = {"Human": "user", "Assistant": "assistant"}
    expected = tuple(Message(role=roles[who], content=what) for who, what in zip(speakers, said, strict=False))
    assert hh_messages(transcript, "f:1") == expected


def test_a_pair_is_two_labelled_completions() -> None:
    pair = Pair(id="7", prompt="q", chosen="a", rejected="b", margin=2.0)
    assert unpaired([pair]) == [
        Labelled(id="7-chosen", prompt="q", completion="a", label=True),
        Labelled(id="7-rejected", prompt="q", completion="b", label=False),
    ]


def test_the_page_about_data_has_the_table_of_formats() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text("utf-8")
    rows = [f"| `{name}` | {known.kind} | {known.about} |" for name, known in FORMATS.items()]
    assert "\n".join(rows) in page, "docs/data.md is stale: copy the table from FORMATS"
