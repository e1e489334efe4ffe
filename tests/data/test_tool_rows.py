"""Rows with tools in OpenAI's, TRL's and LLaMA-Factory's layouts: one record, and which tokens are trained."""

import json
from typing import Any

import pytest

from tests.data.written import assistant, user
from tests.models.tool_chats import DEFINITION, HERMES, LLAMA, asking, calling, result, tool_chat
from whet.data.feedback import unpaired
from whet.data.formats import content, named, prompt_key
from whet.files.disk_rows import DiskRows
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Dialogue, Message, Row, ToolCall
from whet.train.rows.examples import completion_rows, dialogue_rows

CALL = {"expression": "17 * 3"}
OPENAI = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": json.dumps(CALL)}}
TRL = {"type": "function", "function": {"name": "calculator", "arguments": {**CALL, "unused": None}}}
CALLED = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "17 * 3"}}\n</tool_call>'
TALK = asking("17 * 3?", calling("", "17 * 3"), result("51"), Message(role="assistant", content="It is 51."))


@pytest.fixture(scope="module")
def hermes() -> HuggingFaceTokenizer:
    return tool_chat(HERMES)


def one(name: str, row: dict[str, Any]) -> Any:
    (found,) = named(name).parse(row, "7", "f:7")
    return found


def trained(tokenizer: HuggingFaceTokenizer, row: Row) -> list[str]:
    """What is trained, each run of tokens by itself."""
    runs: list[list[int]] = [[]]
    for token, on in zip(row.tokens, row.mask, strict=True):
        if on:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tokenizer._hf.decode(run) for run in runs if run]


@pytest.mark.parametrize(
    ("call", "answered", "tools"),
    [
        (OPENAI, {"role": "tool", "tool_call_id": "c1", "content": "51"}, [DEFINITION]),
        (TRL, {"role": "tool", "name": "calculator", "content": "51"}, [DEFINITION]),
        (TRL, {"role": "tool", "name": "calculator", "content": "51"}, json.dumps([DEFINITION["function"]])),
    ],
    ids=["openai", "trl", "json"],
)
def test_messages_with_tools(call: dict[str, Any], answered: dict[str, Any], tools: Any) -> None:
    row = {
        "messages": [
            user("17 * 3?"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            answered,
            assistant("It is 51."),
        ],
        "tools": tools,
    }
    found = one("messages", row)
    first, said, given = found.prompt
    assert [json.loads(one) for one in first.tools] == [DEFINITION]
    assert said.tool_calls == (ToolCall(name="calculator", arguments=json.dumps(CALL), id=call.get("id", "")),)
    assert (given.role, given.content) == ("tool", "51")
    assert (given.name, given.call_id) == (answered.get("name", ""), answered.get("tool_call_id", ""))
    assert (found.completion, found.message) == ("It is 51.", None)


def test_messages_as_they_are_written_are_read_again() -> None:
    written = json.loads(json.dumps([message.plain() for message in TALK]))
    found = one("messages", {"messages": written})
    assert (*found.prompt, Message(role="assistant", content=found.completion)) == TALK


def test_a_conversation_of_llama_factory() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "17 * 3?"},
            {"from": "function_call", "value": json.dumps({"name": "calculator", "arguments": CALL})},
            {"from": "observation", "value": "51"},
            {"from": "gpt", "value": "It is 51."},
        ],
        "tools": json.dumps([DEFINITION]),
    }
    found = one("sharegpt", row)
    assert found.prompt == (*TALK[:2], Message(role="tool", content="51"))
    assert found.completion == "It is 51."


def test_every_turn_of_the_assistant_is_trained_and_no_result(hermes: HuggingFaceTokenizer) -> None:
    talk = Dialogue(id="x", prompt=TALK[:3], completion="It is 51.")
    (row,) = dialogue_rows(hermes, talk, turns="all", limit=10_000) or []
    assert list(row.tokens) == [*hermes.prompt(TALK[:3]), *hermes.encode("It is 51."), hermes.eos]
    assert trained(hermes, row) == [f"{CALLED}<|im_end|>", "It is 51.<|im_end|>"]
    (last,) = dialogue_rows(hermes, talk, turns="last", limit=10_000) or []
    assert last.tokens == row.tokens
    assert trained(hermes, last) == ["It is 51.<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "spelled"),
    [
        (
            HERMES,
            'So:\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "17 * 3"}}\n</tool_call><|im_end|>',
        ),
        (LLAMA, '{"name": "calculator", "parameters": {"expression": "17 * 3"}}<|eot_id|>'),
    ],
    ids=["hermes", "llama"],
)
def test_an_answer_that_calls_is_written_by_the_template(template: str, spelled: str) -> None:
    tokenizer = tool_chat(template)
    said = {"role": "assistant", "content": "So:", "tool_calls": [OPENAI]}
    found = one("messages", {"messages": [user("17 * 3?"), said], "tools": [DEFINITION]})
    assert found.message == Message.of(said)
    assert found.completion == f"So:\n{CALLED}"
    for turns in ("last", "all"):
        (row,) = dialogue_rows(tokenizer, found, turns=turns, limit=10_000) or []
        assert trained(tokenizer, row) == [spelled]


def test_a_call_of_weight_zero_is_not_trained(hermes: HuggingFaceTokenizer) -> None:
    said = {"role": "assistant", "tool_calls": [TRL], "weight": 0}
    row = {"messages": [user("q"), said, {"role": "tool", "content": "51"}, assistant("a")], "tools": [DEFINITION]}
    (made,) = dialogue_rows(hermes, one("messages", row), turns="all", limit=10_000) or []
    assert trained(hermes, made) == ["a<|im_end|>"]


def test_a_preference_between_a_call_and_an_answer(hermes: HuggingFaceTokenizer) -> None:
    said = {"role": "assistant", "content": "", "tool_calls": [TRL]}
    wide = {"prompt": [user("17 * 3?")], "chosen": [said], "rejected": [assistant("52")], "tools": [DEFINITION]}
    implicit = {
        "chosen": [user("17 * 3?"), said],
        "rejected": [user("17 * 3?"), assistant("52")],
        "tools": [DEFINITION],
    }
    pair = one("pairs", wide)
    assert one("implicit_pairs", implicit) == pair
    assert pair.prompt == TALK[:1]
    assert pair.answers == (TALK[1], "52")
    chosen, rejected = completion_rows(hermes, pair.prompt, pair.answers, 10_000) or []
    begin = len(hermes.prompt(pair.prompt))
    assert chosen.tokens[:begin] == rejected.tokens[:begin]
    assert trained(hermes, chosen)[0].startswith("<tool_call>")
    assert trained(hermes, rejected) == ["52<|im_end|>"]
    assert [row.answer for row in unpaired([pair])] == [TALK[1], "52"]
    labelled = one("labelled_messages", {"messages": [user("17 * 3?"), said], "label": True, "tools": [DEFINITION]})
    assert (labelled.prompt, labelled.answer) == (TALK[:1], TALK[1])


def test_rows_with_other_tools_or_calls_are_other_rows() -> None:
    base = {"messages": [user("q"), {"role": "assistant", "tool_calls": [TRL]}], "tools": [DEFINITION]}
    other = {**base, "messages": [user("q"), {"role": "assistant", "tool_calls": [{"name": "f"}]}]}
    without = {"messages": base["messages"]}
    found = [one("messages", row) for row in (base, other, without)]
    assert len({content(row) for row in found}) == 3
    assert prompt_key(found[0]) != prompt_key(found[2])


def test_they_can_be_kept_on_disk(hermes: HuggingFaceTokenizer) -> None:
    rows = [
        one("messages", {"messages": [user("q"), {"role": "assistant", "tool_calls": [TRL]}], "tools": [DEFINITION]})
    ]
    assert list(DiskRows(rows)) == rows
