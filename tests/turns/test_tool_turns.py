"""Conversations with tools in the model's own template: results are its tool messages, else the user's."""

from typing import Any

import pytest

from tests.models.tool_chats import CHATML_MARKERS, FORGETFUL, HERMES, LLAMA, tool_chat
from tests.turns.played import Puppet
from whet.models.text.chat_settings import NAMED_TEMPLATES
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Completion, Message, Sampling, ToolCall
from whet.rollout import tokenize_prompts
from whet.tasks.loading import load_task
from whet.turns.conversing import Conversing

CALLS = {
    HERMES: '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6*7"}}\n</tool_call>',
    LLAMA: '{"name": "calculator", "parameters": {"expression": "6*7"}}',
}
RESULTS = {
    HERMES: "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    LLAMA: "<|start_header_id|>ipython<|end_header_id|>\n\n42<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


def talk(tokenizer: HuggingFaceTokenizer, says: list[str]) -> tuple[Completion, Puppet, Any]:
    task = load_task("tools", {"task": "arithmetic", "options": {"chat": True}})
    examples = task.draw(1, seed=(1,))
    engine = Puppet(tokenizer, says)
    play = Conversing(tokenizer).of(task)
    assert play is not None
    prompts = tokenize_prompts(examples, tokenizer, stream=(7,))
    ((_, (completion,)),) = play(examples)(engine, prompts, Sampling(max_tokens=400), 1)
    return completion, engine, examples[0]


def observed(tokenizer: HuggingFaceTokenizer, completion: Completion) -> str:
    ids = [token for token, own in zip(completion.tokens, completion.mask, strict=True) if not own]
    return str(tokenizer._hf.decode(ids, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("template", [HERMES, LLAMA], ids=["hermes", "llama"])
def test_results_are_messages_of_the_template(template: str) -> None:
    tokenizer = tool_chat(template)
    completion, engine, example = talk(tokenizer, [CALLS[template], "It is 42."])
    assert observed(tokenizer, completion) == RESULTS[template]
    assert completion.text == "It is 42."
    call = ToolCall(name="calculator", arguments='{"expression": "6*7"}')
    said = Message(role="assistant", content="", tool_calls=(call,))
    given = Message(role="tool", content="42", name="calculator")
    second = engine.rounds[1][0].tokens
    assert list(second) == tokenizer.prompt([*example.prompt, said, given])  # what users of the model will send


def test_without_them_results_are_texts_of_the_user() -> None:
    tokenizer = tool_chat(NAMED_TEMPLATES["chatml"], CHATML_MARKERS)
    completion, engine, _ = talk(tokenizer, [CALLS[HERMES], "42"])
    assert observed(tokenizer, completion) == (
        '\n<|im_start|>user\n<tool_response>\n{"name": "calculator", "content": "42"}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n"
    )
    assert "These tools can be called" in tokenizer.decode(engine.rounds[0][0].tokens)


def test_a_template_that_forgets_thinking_at_questions_alone_is_accepted() -> None:
    tokenizer = tool_chat(FORGETFUL)
    completion, _, _ = talk(tokenizer, [f"<think>\nhm\n</think>\n\n{CALLS[HERMES]}", "42"])
    assert len(completion.turns) == 2
