"""Stands where a tokeniser is expected when only the server has one: prompts travel as ids and become text again.

A character is its code point, and the parts of a conversation are set apart by ids that no character has. The ids mean
nothing to any model; they only let text and conversations pass through `Prompt` unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whet.errors import UserError
from whet.records import Message

END = 0x110000  # the first number behind the last code point
ROLE = END + 1  # begins a message
CONTENT = END + 2  # ends the role of a message


class ServerText:
    """A `Tokenizer` that only spells; `read` gives back what `prompt` was given."""

    vocab_size = CONTENT + 1
    eos = END
    stops = frozenset({END})

    def encode(self, text: str) -> list[int]:
        """One id per character."""
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """The characters among the ids."""
        return "".join(chr(token) for token in tokens if 0 <= token < END)

    def decode_many(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row."""
        return [self.decode(row) for row in rows]

    def prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Plain text, or a conversation for which the server has the template."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        return [
            token
            for message in prompt
            for token in (ROLE, *self.encode(message.role), CONTENT, *self.encode(message.content))
        ]

    def read(self, tokens: Sequence[int]) -> str | tuple[Message, ...]:
        """What `prompt` was given."""
        if not tokens or tokens[0] != ROLE:
            return self.decode(tokens)
        starts = [index for index, token in enumerate(tokens) if token == ROLE]
        pieces = [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        return tuple(self._message(piece) for piece in pieces)

    def save(self, directory: Path) -> None:
        """There is nothing that could be saved."""
        raise UserError(f"nothing to write to {directory}: the tokeniser is the server's own")

    def _message(self, piece: Sequence[int]) -> Message:
        split = piece.index(CONTENT)
        return Message(role=self.decode(piece[:split]), content=self.decode(piece[split:]))
