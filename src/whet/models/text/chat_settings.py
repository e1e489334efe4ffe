"""A chat template and a system prompt of a recipe, in place of those that a tokeniser came with.

The system prompt becomes part of the template, so that whatever renders the saved template renders the same text.
"""

import json
import re
from pathlib import Path

from whet.errors import UserError, nearest
from whet.models.protocol import Tokenizer
from whet.models.text.conversation import QUESTION
from whet.models.text.template import MessagesRefused
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Message

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA_3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
PLAIN_ROLES = """\
{% for message in messages %}
{{- message['role'] | capitalize ~ ':\\n' ~ message['content'] }}
{%- if message['role'] == 'assistant' %}
{{- eos_token }}
{%- endif %}
{{- '\\n\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- 'Assistant:\\n' }}
{%- endif %}
"""
NAMED_TEMPLATES = {"chatml": CHATML, "llama-3": LLAMA_3, "plain": PLAIN_ROLES}
# Opens a conversation that has no system message; templates keep their own white space behind the new line.
OPENING = (
    "{{% if not messages or messages[0]['role'] != 'system' %}}"
    "{{% set messages = [{{'role': 'system', 'content': {text}}}] + messages %}}{{% endif %}}\n"
)
MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>")  # what control tokens of chat templates look like


def template_file(name: str) -> Path | None:
    """The file that `model.chat_template` names; None for a packaged template."""
    return None if not name or name in NAMED_TEMPLATES else Path(name).expanduser()


def with_chat(tokenizer: Tokenizer, *, template: str, system_prompt: str) -> tuple[Tokenizer, str]:
    """The tokeniser with a template and a system prompt, each unless empty; and a note for the user, else empty."""
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not (template or system_prompt):
        return tokenizer, ""
    note = ""
    if template:
        tokenizer = tokenizer.with_template(_read(template), owner=template)
        _check_end_of_turn(tokenizer, f"model.chat_template {template}")
        note = _markers_as_text(tokenizer, f"model.chat_template {template}")
    return (_opened(tokenizer, system_prompt) if system_prompt else tokenizer), note


def _read(name: str) -> str:
    file = template_file(name)
    if file is None:
        return NAMED_TEMPLATES[name]
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        known = ", ".join(NAMED_TEMPLATES)
        hint = nearest(name, NAMED_TEMPLATES)
        raise UserError(f"model.chat_template {name!r} is neither a file nor one of {known}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"model.chat_template: {name} cannot be read as a text file: {error}") from error


def _check_end_of_turn(tokenizer: HuggingFaceTokenizer, key: str) -> None:
    """Refuses a template whose assistant's turns do not end with one token, at which sampling can stop."""
    answer = Message(role="assistant", content="answer")
    rendered = tokenizer.chat.render([QUESTION, answer], add_generation_prompt=False)
    if tokenizer.chat.ends_of_turn():
        return
    _, said, after = rendered.rpartition(answer.content)
    if not said:
        raise UserError(f"{key} does not write the assistant's messages: write message['content'] for every role")
    found = MARKER.match(after.lstrip())
    missing = f" with {found[0]}, which is not in the model's vocabulary" if found else " without a control token"
    raise UserError(
        f"{key} ends the assistant's turns{missing}, so no completion could stop there: "
        + ("use the template of this model's family, or plain" if found else "write {{ eos_token }} after them")
    )


def _markers_as_text(tokenizer: HuggingFaceTokenizer, key: str) -> str:
    """A note on markers that look like control tokens and are none in this vocabulary."""
    rendered = tokenizer.chat.render([QUESTION, Message(role="assistant", content="answer")])
    unknown = sorted(set(MARKER.findall(rendered)) - set(tokenizer.chat.control))
    if not unknown:
        return ""
    return (
        f"{key}: {', '.join(unknown)} not in the model's vocabulary: encoded as text, which a message can contain too"
    )


def _opened(tokenizer: HuggingFaceTokenizer, text: str) -> HuggingFaceTokenizer:
    """The tokeniser with the system prompt in its template."""
    if not tokenizer.has_chat_template:
        raise UserError("model.system_prompt needs a chat template and the model has none: set model.chat_template")
    found = tokenizer.chat.control_strings(text)
    if found:
        raise UserError(f"model.system_prompt holds the control string {found[0]}: leave it out")
    try:
        written = tokenizer.chat.render([Message(role="system", content=text), QUESTION])
    except MessagesRefused as error:
        reason = str(error).removesuffix("change the messages")
        raise UserError(f"model.system_prompt: {reason}leave model.system_prompt out") from error
    if text.strip() not in written:
        raise UserError(f"model.system_prompt: the chat template of {tokenizer.chat.owner} leaves out system messages")
    # Jinja decodes the escapes of a JSON string, except for surrogate pairs, which ensure_ascii would write.
    opening = OPENING.format(text=json.dumps(text, ensure_ascii=False))
    return tokenizer.with_template(opening + tokenizer.chat.source(), owner=tokenizer.chat.owner)
