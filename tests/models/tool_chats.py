"""Byte-level vocabularies with chat templates that know tools, in the layouts of Hermes and Llama 3."""

import json
from typing import Any

from tests.small import train_bpe
from whet.models.text.tokenizers import HuggingFaceTokenizer, wrap_backend
from whet.records import Message, ToolCall

WORDS = 'What is 17 * 3? {"name": "calculator", "arguments": {"expression": "17 * 3"}} The result is 51.\n\nTool: user'
# Definitions in the system message, results in turns of the user, several of them in one.
HERMES = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content ~ '\\n' }}{%- endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\\n' ~ tool | tojson }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' ~ messages[0].content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.role != 'system' %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson ~ '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
# Definitions before the first question, one call an answer, results under a header of their own.
LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' ~ call.name ~ '", "parameters": ' }}
{{- call.arguments | tojson ~ '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' ~ ('ipython' if message.role == 'tool' else message.role) ~ '<|end_header_id|>\\n\\n' }}
{%- if loop.first and tools %}
{%- for tool in tools %}{{- tool | tojson(indent=4) ~ '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- message.content | trim ~ '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
# Drops the thinking of answers before the user's newest question, as Qwen 3 does; results of tools are no questions.
FORGETFUL = """\
{%- set seen = namespace(last=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set seen.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{- tool | tojson }}{%- endfor %}
{%- for message in messages %}
{%- set text = message.content %}
{%- if message.role == 'assistant' and loop.index0 < seen.last %}
{%- set text = text.split('</think>')[-1] | trim %}
{%- endif %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ text }}
{%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CHATML_MARKERS = ("<|im_start|>", "<|im_end|>")
LLAMA_MARKERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MARKERS = {HERMES: CHATML_MARKERS, LLAMA: LLAMA_MARKERS, FORGETFUL: CHATML_MARKERS}
DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes <b>",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


def tool_chat(template: str, markers: tuple[str, ...] = ()) -> HuggingFaceTokenizer:
    """A tokeniser with this template."""
    plain = train_bpe([WORDS] * 4, 300)
    special = list(markers or MARKERS[template])
    made = wrap_backend(plain._hf.backend_tokenizer, eos="<eos>", specials=special)
    made._hf.bos_token = special[0]
    return made.with_template(template, owner="tools")


def asking(text: str, *more: Message) -> tuple[Message, ...]:
    """A conversation that begins with a question and the definition of a tool."""
    return (Message(role="user", content=text, tools=(json.dumps(DEFINITION),)), *more)


def calling(content: str, *expressions: str) -> Message:
    """An answer that calls the calculator."""
    calls = [
        ToolCall(name="calculator", arguments=json.dumps({"expression": one}, ensure_ascii=False))
        for one in expressions
    ]
    return Message(role="assistant", content=content, tool_calls=tuple(calls))


def result(content: str) -> Message:
    return Message(role="tool", content=content, name="calculator")
