"""Conversations to ids through a model's chat template, such that no message can forge a control token.

A template is rendered to one string, and in that string a marker of the template looks like the same marker typed by a
user. So markers inside messages are swapped for private characters before rendering and put back, as text, after the
rendered string has been cut at the template's own markers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from whet.errors import UserError
from whet.models.template import BrokenTemplate, render_template
from whet.records import Message

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # Unicode's supplementary private-use plane A: no template writes these


def control_tokens(hf: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special tokens, by the string that looks like them."""
    special = {str(token): index for index, token in hf.added_tokens_decoder.items() if token.special}
    named = zip(hf.all_special_tokens, hf.all_special_ids, strict=True)
    return {**special, **{str(token): index for token, index in named if index is not None}}


def encode_conversation(
    hf: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    control: Mapping[str, int],
    *,
    encode: Callable[[str], list[int]],
) -> list[int]:
    """The ids of the rendered conversation, with the assistant's header; `encode` turns plain text into ids."""
    if not messages:
        raise UserError("the conversation is empty; give at least one message")
    pattern = _any_of(control)
    for message in messages:
        found = pattern.search(message.role)
        if found:
            raise UserError(f"role {message.role!r} holds the control string {found[0]}; use a plain name such as user")
    if not any(pattern.search(message.content) for message in messages):
        rendered = render(hf, messages, add_generation_prompt=True)
        return encode_text(hf, rendered)
    disguise = _disguises(control, messages)
    disguised = [
        Message(role=message.role, content=pattern.sub(lambda match: disguise[match[0]], message.content))
        for message in messages
    ]
    rendered = render(hf, disguised, add_generation_prompt=True)
    plain = str.maketrans({mark: text for text, mark in disguise.items()})
    return _encode_pieces(hf, rendered, pattern, control, lambda text: encode(text.translate(plain)))


def encode_text(hf: PreTrainedTokenizerBase, text: str, **how: bool) -> list[int]:
    """The ids of a text, without tokens that the tokeniser would add around it."""
    try:
        tokens: list[int] = hf.encode(text, add_special_tokens=False, **how)
    except Exception as error:  # the tokenizers library raises a bare Exception: a vocabulary without an unknown token
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the tokenizer {hf.name_or_path} cannot read {text!r:.60} ({reason})") from error
    return tokens


def text_of(hf: PreTrainedTokenizerBase, messages: Sequence[Message], control: Mapping[str, int]) -> str:
    """What the template writes, without its control tokens."""
    return _any_of(control).sub("", render(hf, messages, add_generation_prompt=True))


def ends_of_turn(hf: PreTrainedTokenizerBase, control: Mapping[str, int]) -> frozenset[int]:
    """The control token that the template writes after an assistant's message, if it writes one."""
    answer = chr(PRIVATE_USE.start)
    if hf.chat_template is None:
        return frozenset()
    turns = [Message(role="user", content="question"), Message(role="assistant", content=answer)]
    try:
        rendered = render(hf, turns, add_generation_prompt=False)
    except BrokenTemplate:
        raise
    except UserError:  # a template that wants other roles; what the configuration names still stops
        return frozenset()
    found = _any_of(control).match(rendered.rpartition(answer)[2].lstrip())
    return frozenset({control[found[0]]}) if found and answer in rendered else frozenset()


def render(hf: PreTrainedTokenizerBase, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """The conversation as the template writes it."""
    owner = str(hf.name_or_path)
    try:
        source = hf.get_chat_template()
    except ValueError as error:  # several, none of which is the default one
        raise BrokenTemplate(f"the chat template of {owner}: {' '.join(str(error).split())[:300]}") from error
    variables = {
        name: list(map(str, token)) if isinstance(token, list) else str(token)
        for name, token in hf.special_tokens_map.items()
    }
    return render_template(source, messages, variables, add_generation_prompt=add_generation_prompt, owner=owner)


def _any_of(control: Mapping[str, int]) -> re.Pattern[str]:
    """Matches the longest control string first, as the tokeniser does."""
    return re.compile("|".join(re.escape(token) for token in sorted(control, key=len, reverse=True)))


def _disguises(control: Mapping[str, int], messages: Sequence[Message]) -> dict[str, str]:
    """A private character for each control string, none of which occurs in the conversation."""
    used = {character for message in messages for character in message.content}
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in used)
    return dict(zip(control, free, strict=False))


def _encode_pieces(
    hf: PreTrainedTokenizerBase,
    rendered: str,
    pattern: re.Pattern[str],
    control: Mapping[str, int],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """Cuts at the control strings, which by now are the template's own, and encodes what lies between as text."""
    tokens: list[int] = []
    start, strip_left = 0, False
    for found in [*pattern.finditer(rendered), None]:
        text = rendered[start : found.start() if found else len(rendered)]
        marker = hf.added_tokens_decoder.get(control[found[0]]) if found else None
        # Some markers swallow the white space beside them (Phi-3's <|end|>).
        text = text.lstrip() if strip_left else text
        text = text.rstrip() if marker is not None and marker.lstrip else text
        tokens += encode(text) if text else []
        if found:
            tokens.append(control[found[0]])
            start, strip_left = found.end(), marker is not None and marker.rstrip
    return tokens
