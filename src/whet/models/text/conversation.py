"""Encodes conversations through a model's chat template such that no message can inject a control token.

A template renders to one string, in which a marker of the template looks like the same marker typed by a user, or one
that two messages form together, or that appears when the template trims them. So messages that could contain markers
are rendered a second time with private-use characters in place of the letters of markers. Markers that remain are the
template's own; the string is split at them, and the text between is restored and encoded as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from transformers import PreTrainedTokenizerBase

from whet.errors import UserError
from whet.models.text.template import BrokenTemplate, render_template
from whet.records import Message

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # Unicode's supplementary private-use plane A: no template writes these


def control_tokens(hf: PreTrainedTokenizerBase) -> dict[str, int]:
    """The special tokens: string → id."""
    special = {str(token): index for index, token in hf.added_tokens_decoder.items() if token.special and str(token)}
    named = zip(hf.all_special_tokens, hf.all_special_ids, strict=True)
    return {**special, **{str(token): index for token, index in named if token and index is not None}}


def encode_conversation(
    hf: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    control: Mapping[str, int],
    *,
    encode: Callable[[str], list[int]],
    encode_rendered: Callable[[str], list[int]],
) -> list[int]:
    """The ids of the rendered conversation, with the assistant's header.

    `encode` encodes plain text, `encode_rendered` text whose control strings become control tokens.
    """
    if not messages:
        raise UserError("the conversation is empty; give at least one message")
    pattern = _any_of(control)
    for message in messages:
        found = pattern.search(message.role)
        if found:
            raise UserError(f"role {message.role!r} holds the control string {found[0]}; use a plain name such as user")
    seen = render(hf, messages, add_generation_prompt=True)
    if not _may_forge(control, messages):
        return _encode_whole(hf, seen, pattern, control, encode, encode_rendered)
    disguise = _disguise(control, messages)
    plain = str.maketrans({mark: letter for letter, mark in disguise.items()})
    hide = str.maketrans(disguise)
    guarded = render(hf, _changed(messages, lambda text: text.translate(hide)), add_generation_prompt=True)
    if guarded.translate(plain) != seen:
        # The template depends on the contents, so only the control strings in them are disguised.
        own = pattern.findall(guarded)
        guarded = render(
            hf,
            _changed(messages, lambda text: pattern.sub(lambda found: found[0].translate(hide), text)),
            add_generation_prompt=True,
        )
        if pattern.findall(guarded) != own:
            raise UserError(
                "the chat template turns strings in these messages into control tokens; remove such strings"
            )
    if _places(pattern, guarded) == _places(pattern, seen):
        return _encode_whole(hf, seen, pattern, control, encode, encode_rendered)
    return _encode_pieces(hf, guarded, pattern, control, lambda text: encode(text.translate(plain)))


def text_of(hf: PreTrainedTokenizerBase, messages: Sequence[Message], control: Mapping[str, int]) -> str:
    """The rendered conversation without control tokens."""
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
    except UserError:  # a template that requires other roles; ids of the configuration still stop
        return frozenset()
    found = _any_of(control).match(rendered.rpartition(answer)[2].lstrip())
    return frozenset({control[found[0]]}) if found and answer in rendered else frozenset()


def render(hf: PreTrainedTokenizerBase, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """The conversation rendered by the template."""
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


def _may_forge(control: Mapping[str, int], messages: Sequence[Message]) -> bool:
    """Whether a control string could start or end in a message, or contain one."""
    edges = {
        letter for text in control for edge in (text[0], text[-1]) for letter in (edge.lower(), edge.upper(), edge)
    }
    return any(
        not edges.isdisjoint(message.content) or any(message.content.strip() in text for text in control)
        for message in messages
        if message.content.strip()
    )


def _disguise(control: Mapping[str, int], messages: Sequence[Message]) -> dict[str, str]:
    """A private-use character that is not in the messages, for each letter of the control strings.

    White space is kept, because templates trim it.
    """
    letters = dict.fromkeys(letter for text in control for letter in text if text.isspace() or not letter.isspace())
    used = {character for message in messages for character in message.content}
    free = list(islice((chr(code) for code in PRIVATE_USE if chr(code) not in used), len(letters)))
    if len(free) < len(letters):
        raise UserError(
            "the messages hold nearly all private characters from U+F0000 on, which are needed here; remove some"
        )
    return dict(zip(letters, free, strict=True))


def _changed(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    return [Message(role=message.role, content=change(message.content)) for message in messages]


def _places(pattern: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    return [found.span() for found in pattern.finditer(text)]


def _encode_whole(
    hf: PreTrainedTokenizerBase,
    rendered: str,
    pattern: re.Pattern[str],
    control: Mapping[str, int],
    encode: Callable[[str], list[int]],
    encode_rendered: Callable[[str], list[int]],
) -> list[int]:
    """The ids of a text whose control strings are all the template's own, as transformers encodes it.

    A tokeniser that normalises the text may find more of them; then it is encoded in pieces.
    """
    tokens = encode_rendered(rendered)
    ids = set(control.values()) - {hf.unk_token_id}
    written = [control[found] for found in pattern.findall(rendered)]
    if [token for token in tokens if token in ids] == [token for token in written if token in ids]:
        return tokens
    return _encode_pieces(hf, rendered, pattern, control, encode)


def _encode_pieces(
    hf: PreTrainedTokenizerBase,
    rendered: str,
    pattern: re.Pattern[str],
    control: Mapping[str, int],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """Splits at the control strings, which are all the template's own here, and encodes the rest as plain text."""
    tokens: list[int] = []
    start, strip_left = 0, False
    for found in [*pattern.finditer(rendered), None]:
        text = rendered[start : found.start() if found else len(rendered)]
        marker = hf.added_tokens_decoder.get(control[found[0]]) if found else None
        # Some markers strip the white space next to them (Phi-3's <|end|>).
        text = text.lstrip() if strip_left else text
        text = text.rstrip() if marker is not None and marker.lstrip else text
        tokens += encode(text) if text else []
        if found:
            tokens.append(control[found[0]])
            start, strip_left = found.end(), marker is not None and marker.rstrip
    return tokens
