"""A placeholder tokeniser for servers that tokenise themselves: text and messages pass through `Prompt` unchanged.

The id of a character is its code point; ids above the last code point separate the messages of a conversation. No model
reads these ids.
"""

from collections.abc import Sequence
from pathlib import Path

from whet.errors import UserError
from whet.records import Message

END = 0x110000  # the last code point + 1
ROLE = END + 1  # starts a message
CONTENT = END + 2  # ends the role of a message


class ServerText:
    """A `Tokenizer` whose `read` inverts `prompt`."""

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
        """The ids of plain text, or of a conversation that the server will template."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        if any(message.has_tools for message in prompt):
            raise UserError("a server gets no tools from here: use a model on this machine where prompts have tools")
        return [
            token
            for message in prompt
            for token in (ROLE, *self.encode(message.role), CONTENT, *self.encode(message.content))
        ]

    @property
    def takes_tools(self) -> bool:
        """No: nothing is known of the server's template."""
        return False

    def reply(self, reply: str | Message | Sequence[Message], *, after: int) -> list[int]:  # noqa: ARG002 - as the protocol has it
        """Always refused: a conversation continues the exact ids of its answers, which the server keeps."""
        raise UserError("a conversation with an environment needs the model's own tokenizer beside the server")

    def answer(self, before: Sequence[Message], answer: Message) -> list[int]:  # noqa: ARG002 - as the protocol has it
        """The ids of the answer's text."""
        return self.encode(answer.content)

    def rewrites_history(self, *, tools: bool = False) -> str:  # noqa: ARG002 - as the protocol has it
        """Nothing is known of the server's template."""
        return ""

    def read(self, tokens: Sequence[int]) -> str | tuple[Message, ...]:
        """The text or the messages of a `prompt`."""
        if not tokens or tokens[0] != ROLE:
            return self.decode(tokens)
        starts = [index for index, token in enumerate(tokens) if token == ROLE]
        pieces = [tokens[start:end] for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
        return tuple(self._message(piece) for piece in pieces)

    def save(self, directory: Path) -> None:
        """Always refused: there is nothing to save."""
        raise UserError(f"nothing to write to {directory}: the tokeniser is the server's own")

    def _message(self, piece: Sequence[int]) -> Message:
        split = piece.index(CONTENT)
        return Message(role=self.decode(piece[:split]), content=self.decode(piece[split:]))
