"""Encodes conversations through a model's chat template such that no message can inject a control token.

A template renders to one string, in which a marker of the template looks like the same marker typed by a user, or one
that two messages form together, or that appears when the template trims them. So messages that could contain markers
are rendered a second time with private-use characters in place of the letters of markers. Markers that remain are the
template's own; the string is split at them, and the text between is restored and encoded as plain text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice

from transformers import PreTrainedTokenizerBase

from whet.errors import UserError
from whet.models.text.template import BrokenTemplate, MessagesRefused, render_template
from whet.models.text.tool_messages import (
    PROBED,
    PROBING,
    changed,
    flattened,
    keys_of,
    require_objects,
    texts_of,
    tools_of,
)
from whet.records import Message

PRIVATE_USE = range(0xF0000, 0xFFFFE)  # Unicode's supplementary private-use plane A: no template writes these
QUESTION = Message(role="user", content="question")
SIMPLEST = ([QUESTION], [Message(role="system", content="answer"), QUESTION])  # conversations of which one is accepted


class ChatTemplate:
    """The chat template and the control tokens of a tokeniser."""

    def __init__(
        self, hf: PreTrainedTokenizerBase, encode_rendered: Callable[[str], list[int]], *, owner: str = ""
    ) -> None:
        """`encode_rendered` encodes text whose control strings become control tokens.

        `owner` is named in errors: the tokeniser, unless the template comes from elsewhere.
        """
        self._hf, self._encode_rendered, self.owner = hf, encode_rendered, owner or str(hf.name_or_path)
        added = hf.added_tokens_decoder.items()
        special = {str(token): index for index, token in added if token.special and str(token)}
        named = zip(hf.all_special_tokens, hf.all_special_ids, strict=True)
        self.control = special | {str(token): index for token, index in named if token and index is not None}
        # Matches the longest control string first, as the tokeniser does.
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))))

    def encode(self, messages: Sequence[Message], encode: Callable[[str], list[int]]) -> list[int]:
        """The ids of the rendered conversation, with the assistant's header; `encode` encodes plain text."""
        if not messages:
            raise UserError("the conversation is empty; give at least one message")
        self._check_names(messages)
        return self._encoded(self._render, messages, encode)

    def encode_reply(self, reply: Sequence[Message], encode: Callable[[str], list[int]]) -> list[int]:
        """The ids between an assistant's answer and its next one: the end of its turn, the reply, the next header."""
        return self._encoded(self._after_answer, reply, encode)

    def encode_answer(
        self, before: Sequence[Message], answer: Message, encode: Callable[[str], list[int]]
    ) -> list[int]:
        """The ids of an assistant's message, as it stands between its header and what follows it."""
        self._check_names([*before, answer])
        return self._encoded(self._answer_text, [*before, answer], encode)

    def _check_names(self, messages: Sequence[Message]) -> None:
        """Refuses control strings where no disguise can stand: in roles, and in the keys of arguments."""
        require_objects(messages)
        for message in messages:
            for what, text in (("role", message.role), *(("key", key) for key in keys_of(message))):
                found = self._pattern.search(text)
                if found:
                    raise UserError(f"{what} {text!r} holds the control string {found[0]}; use a plain name")

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template itself writes definitions of tools, calls and their results."""
        if not self.has_template:
            return False
        try:
            text = self._written(PROBING, add_generation_prompt=True)
        except BrokenTemplate:
            raise
        except UserError:  # a template without the role, or one that needs ids of calls
            return False
        return all(word in text for word in PROBED)

    def _encoded(
        self,
        render: Callable[[Sequence[Message]], str],
        messages: Sequence[Message],
        encode: Callable[[str], list[int]],
    ) -> list[int]:
        """The ids of what `render` makes of these messages, none of which can inject a control token."""
        pattern = self._pattern
        seen = render(messages)
        if not _may_forge(self.control, messages):
            return self._encode_whole(seen, encode)
        disguise = _disguise(self.control, messages)
        plain = str.maketrans({mark: letter for letter, mark in disguise.items()})
        hide = str.maketrans(disguise)
        guarded = render(_changed(messages, lambda text: text.translate(hide)))
        if guarded.translate(plain) != seen:
            # The template depends on the contents, so only the control strings in them are disguised.
            own = pattern.findall(guarded)
            hidden = _changed(messages, lambda text: pattern.sub(lambda found: found[0].translate(hide), text))
            guarded = render(hidden)
            if pattern.findall(guarded) != own:
                raise UserError(
                    "the chat template turns strings in these messages into control tokens; remove such strings"
                )
        places, seen_places = ([found.span() for found in pattern.finditer(text)] for text in (guarded, seen))
        if places == seen_places:
            return self._encode_whole(seen, encode)
        return self._encode_pieces(guarded, lambda text: encode(text.translate(plain)))

    def _after_answer(self, reply: Sequence[Message]) -> str:
        """What the template writes from the end of an answer to the next header, with a reply between them."""
        answer = Message(role="assistant", content=chr(PRIVATE_USE.start))
        return self._render([QUESTION, answer, *reply]).partition(answer.content)[2]

    def _answer_text(self, messages: Sequence[Message]) -> str:
        """What the template writes of the last message, after the assistant's header."""
        before = self._render(messages[:-1])
        whole = self._render(messages, add_generation_prompt=False)
        if not whole.startswith(before):
            raise UserError(
                f"the chat template of {self.owner} writes an answer with tool calls otherwise than an answer begins: "
                "use a template for tools, or write the calls into the content"
            )
        return whole[len(before) :]

    def plain_text(self, messages: Sequence[Message]) -> str:
        """The rendered conversation without control tokens."""
        return self._pattern.sub("", self._render(messages))

    def ends_of_turn(self) -> frozenset[int]:
        """The control token that the template writes after an assistant's message, if it writes one."""
        answer = chr(PRIVATE_USE.start)
        if self._hf.chat_template is None:
            return frozenset()
        turns = [QUESTION, Message(role="assistant", content=answer)]
        try:
            rendered = self.render(turns, add_generation_prompt=False)
        except BrokenTemplate:
            raise
        except UserError:  # a template that requires other roles; ids of the configuration still stop
            return frozenset()
        found = self._pattern.match(rendered.rpartition(answer)[2].lstrip())
        return frozenset({self.control[found[0]]}) if found and answer in rendered else frozenset()

    @property
    def has_template(self) -> bool:
        return self._hf.chat_template is not None

    def control_strings(self, text: str) -> list[str]:
        """The control strings in a text, in order."""
        return self._pattern.findall(text)

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The rendered conversation; a template that refuses every conversation is blamed, not these messages."""
        try:
            return self.render(messages, add_generation_prompt=add_generation_prompt)
        except MessagesRefused as error:
            if not all(map(self._refuses, SIMPLEST)):
                raise
            raise BrokenTemplate(
                str(error).removesuffix("change the messages")
                + "it also refuses a single question, with and without a system message: correct the template"
            ) from error

    def _refuses(self, messages: Sequence[Message]) -> bool:
        try:
            self.render(messages)
        except MessagesRefused:
            return True
        return False

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The rendered conversation as text; with tools as texts where the template knows none."""
        if any(message.has_tools for message in messages) and not self.takes_tools:
            messages = flattened(messages)
        return self._written(messages, add_generation_prompt=add_generation_prompt)

    def _written(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        variables = {
            name: list(map(str, token)) if isinstance(token, list) else str(token)
            for name, token in self._hf.special_tokens_map.items()
        }
        source = self.source(tools=bool(tools_of(messages)))
        return render_template(
            source, messages, variables, add_generation_prompt=add_generation_prompt, owner=self.owner
        )

    def source(self, *, tools: bool = False) -> str:
        """The template itself; of several, that for conversations with tools."""
        try:
            return self._hf.get_chat_template(tools=[] if tools else None)
        except ValueError as error:  # several, none of which is the default one
            raise BrokenTemplate(f"the chat template of {self.owner}: {' '.join(str(error).split())[:300]}") from error

    def _encode_whole(self, rendered: str, encode: Callable[[str], list[int]]) -> list[int]:
        """The ids of a text whose control strings are all the template's own, as transformers encodes it.

        A tokeniser that normalises the text may find more of them; then it is encoded in pieces.
        """
        tokens = self._encode_rendered(rendered)
        ids = set(self.control.values()) - {self._hf.unk_token_id}
        written = [self.control[found] for found in self._pattern.findall(rendered)]
        if [token for token in tokens if token in ids] == [token for token in written if token in ids]:
            return tokens
        return self._encode_pieces(rendered, encode)

    def _encode_pieces(self, rendered: str, encode: Callable[[str], list[int]]) -> list[int]:
        """Splits at the control strings, which are all the template's own here, and encodes the rest as plain text."""
        tokens: list[int] = []
        start, strip_left = 0, False
        for found in [*self._pattern.finditer(rendered), None]:
            text = rendered[start : found.start() if found else len(rendered)]
            marker = self._hf.added_tokens_decoder.get(self.control[found[0]]) if found else None
            # Some markers strip the white space next to them (Phi-3's <|end|>).
            text = text.lstrip() if strip_left else text
            text = text.rstrip() if marker is not None and marker.lstrip else text
            tokens += encode(text) if text else []
            if found:
                tokens.append(self.control[found[0]])
                start, strip_left = found.end(), marker is not None and marker.rstrip
        return tokens


def _may_forge(control: Mapping[str, int], messages: Sequence[Message]) -> bool:
    """Whether a control string could start or end in a message, or contain one."""
    edges = {
        letter for text in control for edge in (text[0], text[-1]) for letter in (edge.lower(), edge.upper(), edge)
    }
    return any(
        not edges.isdisjoint(said) or any(said.strip() in text for text in control)
        for message in messages
        for said in texts_of(message)
        if said.strip()
    )


def _disguise(control: Mapping[str, int], messages: Sequence[Message]) -> dict[str, str]:
    """A private-use character that is not in the messages, for each letter of the control strings.

    White space is kept, because templates trim it.
    """
    letters = dict.fromkeys(letter for text in control for letter in text if text.isspace() or not letter.isspace())
    used = {character for message in messages for text in texts_of(message) for character in text}
    free = list(islice((chr(code) for code in PRIVATE_USE if chr(code) not in used), len(letters)))
    if len(free) < len(letters):
        raise UserError(
            "the messages hold nearly all private characters from U+F0000 on, which are needed here; remove some"
        )
    return dict(zip(letters, free, strict=True))


def _changed(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    return [changed(message, change) for message in messages]
