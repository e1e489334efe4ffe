"""A wrong row of every format: what it is told, with file and line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data.test_formats import STEP_ROW
from tests.data.written import assistant, user
from whet.data.formats import named
from whet.errors import UserError

TWO = {"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: p\n\nAssistant: b"}
TAGGED = {"input": "q Step 1: a ки", "label": "q Step 1: a ?"}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("messages", {"messages": "x"}, "f:7: 'messages' must be a list of messages, not a string"),
    ("messages", {"messages": [user("q")]}, "f:7: 'messages' must end with an assistant message"),
    ("messages", {"messages": []}, "must end with an assistant message"),
    ("messages", {"messages": [{"role": "critic", "content": "x"}, assistant("a")]}, "the role 'critic'"),
    ("messages", {"messages": [{**assistant("a"), "tool_calls": [1]}]}, "has a tool call without a function and its"),
    ("messages", {"messages": [{**assistant("a"), "tool_calls": 1}]}, "must have a list of 'tool_calls', not a number"),
    ("messages", {"messages": [{**assistant("a"), "function_call": {}}]}, "has 'function_call', the old layout"),
    ("messages", {"messages": [{**user("q"), "tool_calls": [{"name": "f"}]}]}, "its role is 'user', not 'assistant'"),
    ("messages", {"messages": [{**user("q"), "name": "Ada"}, assistant("a")]}, "has 'name', and its role is 'user'"),
    ("messages", {"messages": [{"role": "tool", "content": "x", "name": 3}]}, "'name' of a message of 'messages' must"),
    (
        "messages",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
        "has arguments of f, which is not JSON",
    ),
    (
        "messages",
        {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}]},
        "has a call of f with a list for arguments, not an object",
    ),
    ("messages", {"messages": [user("q"), assistant("a")], "tools": "{"}, "'tools' is not JSON"),
    ("messages", {"messages": [user("q"), assistant("a")], "tools": {}}, "'tools' must be a list of definitions"),
    ("messages", {"messages": [user("q"), assistant("a")], "tools": [{"type": "x"}]}, "an object with a function and"),
    ("messages", {"messages": [{**assistant("a"), "thinking": "hm"}]}, "has 'thinking', which would be lost"),
    ("messages", {"messages": [user("q"), {**assistant("a"), "weight": 0.5}]}, "the weight 0.5 of a message must be 1"),
    ("messages", {"messages": [user("q"), {**assistant("a"), "weight": 0}]}, "every assistant message has weight 0"),
    ("messages", {"text": "x"}, r"f:7 has no 'messages' \(it has: text\)"),
    (
        "sharegpt",
        {"conversations": [{"from": "function_call", "value": "x"}]},
        "a function_call of 'conversations'",
    ),
    ("sharegpt", {"conversations": [{"from": "critic", "value": "x"}]}, "a message from 'critic'"),
    ("sharegpt", {"conversations": ["x"]}, "must be an object with 'from' and 'value'"),
    ("sharegpt", {"conversations": [{"from": "gpt", "value": 1}]}, "must be a string, not a number"),
    ("alpaca", {"instruction": 1, "output": "a"}, "f:7: 'instruction' must be a string, not a number"),
    ("alpaca", {"instruction": "q", "output": "a", "history": ["x"]}, "'history' must be a list of"),
    ("gsm8k", {"question": "q", "answer": "2"}, "'answer' has no line that begins with ####"),
    ("pairs", {"prompt": "q", "chosen": "a"}, "has no 'rejected'"),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": 2}, "'rejected' must be a list of messages, not a number"),
    ("pairs", {"prompt": 3, "chosen": "a", "rejected": "b"}, "'prompt' must be a string or a list of messages"),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b", "margin": "x"}, "'margin' must be a number, not 'x'"),
    ("pairs", {"prompt": "q", "chosen": "a", "rejected": "b", "margin": True}, "'margin' must be a number, not True"),
    (
        "pairs",
        {"prompt": "q", "chosen": "a", "rejected": "b", "margin": -0.5},
        "'margin' is -0.5, below 0, so 'chosen' is the worse side: swap the two",
    ),
    (
        "pairs",
        {"prompt": "q", "chosen": "a", "rejected": "b", "metadata": {"chosen-rating": 2, "rejected-rating": 4.5}},
        "'chosen-rating' is 2, below 4.5, so 'chosen' is the worse side",
    ),
    (
        "pairs",
        {"prompt": "other", "chosen": [user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]},
        "start with a prompt other than 'prompt'",
    ),
    (
        "implicit_pairs",
        {"chosen": [user("q"), assistant("a"), user("q"), assistant("a")], "rejected": [user("q"), assistant("b")]},
        "'chosen' and 'rejected' differ at turn 2",
    ),
    ("implicit_pairs", {"chosen": [assistant("a")], "rejected": [assistant("b")]}, "must start with the prompt"),
    ("implicit_text_pairs", {"chosen": "Yes it", "rejected": "No it"}, "must begin with the same prompt, or give it"),
    ("implicit_text_pairs", {"chosen": "Yes", "rejected": "Yes it"}, "must begin with the same prompt"),
    ("prompts", {"prompt": "q", "completions": 1}, "the column name 'completions' is reserved"),
    (
        "prompt_answer",
        {"prompt": "q", "answer": [1]},
        "'answer' must be text, a number, true, false or null, not a list",
    ),
    ("hh", TWO, "f:7: 'chosen' and 'rejected' differ at turn 1"),
    ("hh", {"chosen": "hello", "rejected": "hello"}, "must begin with a 'Human:' or 'Assistant:' turn"),
    ("hh", {"chosen": "\n\nHuman: q", "rejected": "\n\nHuman: q"}, "must end with an assistant message"),
    ("sharegpt_pairs", {"conversations": [], "chosen": {}, "rejected": {}}, "'conversations' must end with"),
    (
        "sharegpt_pairs",
        {"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "a"}},
        "a message of 'rejected' must be an object",
    ),
    ("hhh", {"input": "q", "targets": {"choices": ["a", "b"], "labels": [1, 1]}}, "one labelled 1 and one 0"),
    ("hhh_judged", {"chosen_instruction": "a", "rejected_instruction": "b"}, "has no '###The instruction"),
    ("labelled", {"prompt": "q", "completion": "a", "label": "perhaps"}, "'label' must be true or false"),
    ("labelled", {"prompt": "q", "completion": "a", "label": 2}, "'label' must be true or false, not 2"),
    ("labelled_messages", {"messages": [assistant("a")], "label": True}, "must answer a message"),
    ("outcomes", {"prompt": "q", "completions": ["a"], "correct": []}, "1 'completions' but 0 'correct'"),
    ("outcomes", {"prompt": "q", "completions": ["a"], "rewards": [0.5]}, "'rewards' must be true or false, not 0.5"),
    ("outcomes", {"prompt": "q", "completions": [1], "correct": [True]}, "'completions' must be a list of strings"),
    ("steps", {"prompt": "q", "completions": ["a"], "labels": [2]}, "a step is labelled 2"),
    ("steps", {"prompt": "q", "completions": ["a"], "labels": []}, "1 steps but 0 'labels'"),
    (
        "prm800k",
        {"question": {"problem": "q"}, "label": {"steps": [{**STEP_ROW, "chosen_completion": 2}]}},
        "f:7, step 1: 'chosen_completion' is 2 of 2 completions",
    ),
    ("prm800k", {"question": {"problem": "q"}, "label": {"steps": ["x"]}}, "f:7, step 1 must be an object"),
    (
        "prmbench",
        {"original_process": [], "modified_process": ["a"], "error_steps": [2]},
        r"'error_steps' are \[2\], but 'modified_process' has steps 1 to 1",
    ),
    (
        "prmbench",
        {
            "original_question": "q",
            "modified_question": "q!",
            "original_process": [],
            "modified_process": [],
            "error_steps": [],
            "idx": [1],
        },
        "'idx' must be a string or a whole number, not a list",
    ),
    ("math_shepherd", TAGGED, "'label' has no \\+ or - where 'input' has its ки number 1"),
    ("math_shepherd", {"input": "q", "label": "q"}, "'input' must be a question and steps from 'Step 1:' on"),
]


@pytest.mark.parametrize(("name", "row", "message"), WRONG, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(WRONG)])
def test_a_wrong_row_is_told_with_file_and_line(name: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        named(name).parse(row, "r", "f:7")
    assert str(caught.value).startswith("f:7")
    assert "\n" not in str(caught.value)
