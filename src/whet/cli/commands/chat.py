"""`whet chat`: a conversation with a model, streamed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.engines.native.native_engine import NativeEngine
    from whet.models.protocol import Tokenizer
    from whet.records import Message, Sampling

COMMAND = re.compile(r"/[a-z]+")
COMMANDS = "/reset forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # stands for the bytes of an unfinished character


def chat(
    model: str = typer.Argument(..., metavar="MODEL|RUN", help="A model directory or name, or a run (its best model)."),
    system: str = typer.Option("", "--system", metavar="TEXT", help="System message."),
    temperature: float = typer.Option(0.0, help="Sampling temperature; 0 is greedy, which suits small models."),
    max_tokens: int = typer.Option(256, help="Longest answer, in tokens."),
    seed: arguments.Seed = 0,
) -> None:
    """Chat with a model that has a chat template. Piped input is read as one user message per line.

    \b
    Examples:
      whet chat smollm2-135m-instruct
      echo "Why is the sky blue?" | whet chat smollm2-135m-instruct --system "Answer briefly."
    """
    from whet.api.loaded_model import choose_sampling

    sampling = choose_sampling(None, {"max_tokens": max_tokens, "temperature": temperature})
    tokenizer, engine = _opened(model)
    conversation = Conversation(engine, tokenizer, sampling, system=system, seed=seed)
    terminal = sys.stdin.isatty()
    if terminal:
        say(COMMANDS, err=True)
    for line in _lines(terminal):
        if line == "/reset":
            conversation.reset()
        elif terminal and COMMAND.fullmatch(line):
            say(COMMANDS, err=True)
        elif line:
            try:
                conversation.answer(line)
            except UserError as error:
                if not terminal:
                    raise
                say(str(error), err=True)  # a wrong line does not end the conversation


def _opened(model: str) -> tuple[Tokenizer, NativeEngine]:
    """The tokenizer and the engine of a model that can chat."""
    from whet.api.loaded_model import find_model, is_url
    from whet.api.model_limits import is_chat
    from whet.engines.native.native_engine import NativeEngine

    if is_url(model):
        raise UserError(f"{model} is a server, and chat needs local weights: use `whet eval` or `whet sample`")
    target = find_model(model)
    with arguments.sampling_status(model):
        tokenizer, engine = target.open()
    if not isinstance(engine, NativeEngine):
        raise UserError(f"{target.name} is a bidirectional model, which answers no messages: use `whet sample`")
    if not is_chat(tokenizer):
        raise UserError(f"{target.name} has no chat template, so it cannot follow a conversation: use `whet sample`")
    return tokenizer, engine


class Conversation:
    """The turns so far, and the engine that answers."""

    def __init__(
        self, engine: NativeEngine, tokenizer: Tokenizer, sampling: Sampling, *, system: str, seed: int
    ) -> None:
        from whet.records import Message

        self.engine, self.tokenizer, self.sampling, self.seed = engine, tokenizer, sampling, seed
        self.opening = (Message(role="system", content=system),) if system else ()
        self.reset()

    def reset(self) -> None:
        """Forgets all turns but the system message."""
        self.turns: list[Message] = []
        self.asked = 0

    def answer(self, question: str) -> None:
        """Streams the answer and appends it to the turns; Ctrl-C truncates it."""
        from whet.records import Message, Prompt

        turns = [*self.turns, Message(role="user", content=question)]
        tokens, dropped = fit(self.tokenizer, self.opening, turns, self.engine.policy.context, self.sampling.max_tokens)
        if dropped:
            say(f"the conversation is longer than the context: the oldest {dropped} messages were dropped", err=True)
        printer = Printer(self.tokenizer)
        self.engine.on_token = lambda _prompt, _sample, token: printer.add(token)
        prompt = Prompt(tokens=tuple(tokens), stream=(self.seed, self.asked))
        try:
            self.engine.generate([prompt], self.sampling)
        except KeyboardInterrupt:
            say("(stopped)", err=True)
        text = printer.close()
        self.turns = [*turns[dropped:], Message(role="assistant", content=text)]
        self.asked += 1


class Printer:
    """Streams tokens as text, each character once all of its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._printed = 0

    def add(self, token: int) -> None:
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if not text.endswith(REPLACEMENT):
            self._print(text)

    def close(self) -> str:
        """Prints the rest and ends the line; returns the full text."""
        text = self._tokenizer.decode(self._tokens)
        self._print(text)
        say()
        return text

    def _print(self, text: str) -> None:
        say_text(text[self._printed :], end="")
        sys.stdout.flush()
        self._printed = len(text)


def fit(
    tokenizer: Tokenizer, opening: Sequence[Message], turns: Sequence[Message], context: int, max_tokens: int
) -> tuple[list[int], int]:
    """Token ids of the conversation, and how many of its oldest turns were dropped to leave room for an answer.

    A question is dropped with its answer, because chat templates require alternating roles. The system message and the
    last question stay.
    """
    room = min(max_tokens, context // 4)
    dropped = 0
    while True:
        tokens = tokenizer.prompt((*opening, *turns[dropped:]))
        if len(tokens) + room <= context or len(turns) - dropped == 1:
            return tokens, dropped
        dropped += 2


def _lines(terminal: bool) -> Iterator[str]:
    """The user's lines, stripped, up to /exit."""
    if terminal:
        import readline  # noqa: F401 - gives input() line editing and a history
    while True:
        try:
            line = input("> ") if terminal else sys.stdin.readline()
        except EOFError:
            say()
            return
        except UnicodeDecodeError as error:
            raise UserError(f"standard input is not text in {error.encoding}") from error
        if (not terminal and not line) or line.strip() == "/exit":
            return
        yield line.strip()
