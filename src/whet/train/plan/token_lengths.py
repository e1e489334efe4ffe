"""Tokens of prompts and completions: measured on a few examples, estimated by their characters, or assumed. No torch.

The tokeniser of a model directory is read with the `tokenizers` library alone, and its chat template is rendered in a
process of its own, so a length is the one that training sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from whet.algorithms.table import Objective
from whet.config import OfflineConfig, OnlineConfig
from whet.config.model_config import CHARACTERS
from whet.config.objective import objective_row
from whet.errors import UserError
from whet.files import read_object
from whet.models.model_shape import tokenizer_directory
from whet.models.storage.size_limits import check_tokenizer_files
from whet.models.text.template import PLAIN_TEMPLATE, render_template
from whet.models.text.tool_messages import flattened
from whet.records import Dialogue, Example, Labelled, Message, Outcomes, Pair, Prompted, Text, Trace
from whet.tasks.protocol import Task

if TYPE_CHECKING:
    from whet.config.loops import Training
    from whet.train.plan.run_shapes import RunShapes

MEASURED = 64  # examples whose tokens are counted
CHARACTERS_A_TOKEN = 3  # of text whose tokeniser is not here: English has about 4, digits and code fewer
TURN_TOKENS = 8  # of a message's markers, where its template is not here
ESTIMATED = (
    f"estimated at {CHARACTERS_A_TOKEN} characters a token and {TURN_TOKENS} tokens a message, without what the chat "
    "template adds"
)
ASSUMED = 256  # tokens of a prompt and of a completion, where there is nothing to look at
FLAGS = "--prompt-tokens", "--completion-tokens"

Count = Callable[[str | Sequence[Message]], int]  # tokens of a text, or of a conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of a prompt and of a completion: the longest, for memory, and on average, for seconds."""

    prompt: int
    completion: int
    mean_prompt: int
    mean_completion: int
    source: str  # where they come from, in words


def token_lengths(
    config: Training,
    shapes: RunShapes,
    examples: Sequence[Prompted],
    *,
    prompt: int | None = None,
    completion: int | None = None,
) -> Lengths:
    """The lengths of a run's sequences; `prompt` and `completion` replace what would be measured.

    Completions of an online run have `rollout.max_tokens`: the longest that they may have.
    """
    context = shapes.policy.context
    row = objective_row(config.objective) if isinstance(config, OfflineConfig) else None
    if isinstance(row, Objective) and row.reads == "text":
        whole = max(1, context - 1)
        return Lengths(
            prompt=1, completion=whole, mean_prompt=1, mean_completion=whole, source="windows of the model's context"
        )
    found = _measured(config, shapes, examples)
    if isinstance(config, OnlineConfig):
        most = config.rollout.max_tokens
        source = f"{found.source}; completions as long as allowed"
        found = replace(found, completion=most, mean_completion=most, source=source)
    if prompt is not None:
        found = replace(found, prompt=prompt, mean_prompt=prompt, source="as given")
    if completion is not None:
        found = replace(found, completion=completion, mean_completion=completion, source="as given")
    most = context if config.loop == "online" else _longest_row(config, context)
    _refuse_longer(prompt, completion, most, "the context" if most == context else "data.max_tokens")
    return _within(found, most)


def _refuse_longer(prompt: int | None, completion: int | None, most: int, limit: str) -> None:
    """Refuses given lengths that no sequence can have."""
    if (prompt or 1) + (completion or 1) > most:
        given = {FLAGS[0]: prompt, FLAGS[1]: completion}
        words = " and ".join(f"{flag} {count}" for flag, count in given.items() if count is not None)
        raise UserError(f"{words}: prompt and completion have room for {most} tokens together ({limit}): give fewer")


def _measured(config: Training, shapes: RunShapes, examples: Sequence[Prompted]) -> Lengths:
    if not examples:
        each = max(1, min(ASSUMED, shapes.policy.context // 2))
        source = f"assumed: {' and '.join(FLAGS)} change them"
        return Lengths(prompt=each, completion=each, mean_prompt=each, mean_completion=each, source=source)
    count, how = _counter(config, shapes.directory)
    prompts = [0 if isinstance(one, Text) else count(one.prompt) for one in examples]
    completions = [1 + max(map(count, _completions(one)), default=0) for one in examples]  # with the end of a sequence
    return Lengths(
        prompt=max(1, *prompts),
        completion=max(completions),
        mean_prompt=max(1, ceil(fmean(prompts))),
        mean_completion=ceil(fmean(completions)),
        source=f"{how} on {len(examples)} examples",
    )


def _completions(row: Prompted) -> Iterable[str]:
    """The texts of a row that are trained on, each after its prompt."""
    match row:
        case Example():
            return (row.answer,)
        case Dialogue() | Labelled():
            return (row.completion,)
        case Pair():
            return row.chosen, row.rejected
        case Outcomes():
            return row.completions
        case Trace():
            return ("\n".join(row.steps),)
        case _:  # a text, every token of which is trained
            return (row.prompt_text,)


def _longest_row(config: Training, context: int) -> int:
    data = config.data if isinstance(config, OfflineConfig) else None
    return context if data is None else min(context, data.max_tokens or context)


def _within(found: Lengths, most: int) -> Lengths:
    """No sequence is longer than the model's context: completions end there."""
    prompt, mean = min(found.prompt, most - 1), min(found.mean_prompt, most - 1)
    return replace(
        found,
        prompt=max(1, prompt),
        mean_prompt=max(1, mean),
        completion=max(1, min(found.completion, most - prompt)),
        mean_completion=max(1, min(found.mean_completion, most - mean)),
    )


def examples_of(config: Training, task: Task | None, rows: Sequence[Any]) -> Sequence[Prompted]:
    """A few examples of a run: rows of its data, else of its task."""
    if rows:
        return [rows[place] for place in range(min(MEASURED, len(rows)))]
    return [] if task is None else task.draw(MEASURED, seed=(config.seed, 1))


def _counter(config: Training, directory: Path | None) -> tuple[Count, str]:
    """What counts the tokens of a text, and how, in a word."""
    new = config.model.new
    if new is not None and new.tokenizer == CHARACTERS:
        return _of_turns(len, 0), "measured"
    if new is not None:
        path = Path(new.tokenizer).expanduser()
        directory = path if path.is_dir() else None
    directory = None if directory is None else tokenizer_directory(directory)
    if directory is None or not (directory / "tokenizer.json").is_file():
        return _of_turns(by_letters, TURN_TOKENS), ESTIMATED
    return _stored_counter(config, directory), "measured"


def by_letters(text: str) -> int:
    """The tokens of a text whose tokeniser is not here, estimated."""
    return ceil(len(text) / CHARACTERS_A_TOKEN)


def _of_turns(count: Callable[[str], int], markers: int) -> Count:
    """Counts a conversation by its messages, each with so many tokens of markers."""

    def counted(prompt: str | Sequence[Message]) -> int:
        if isinstance(prompt, str):
            return count(prompt)
        said = flattened(prompt) if any(message.has_tools for message in prompt) else prompt
        return count("\n".join(message.content for message in said)) + markers * (1 + len(said))

    return counted


def _stored_counter(config: Training, directory: Path) -> Count:
    """Counts with the tokeniser of a directory, and its chat template where the recipe has none of its own."""
    from tokenizers import Tokenizer as Backend

    check_tokenizer_files(directory)
    try:
        backend: Any = Backend.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"{directory / 'tokenizer.json'} cannot be read ({error}): copy the files again") from error

    def count(text: str, *, special: bool = True) -> int:
        try:
            return len(backend.encode(text, add_special_tokens=special).ids)
        except Exception:  # noqa: BLE001 (the library's own, for text that it cannot spell and training refuses)
            return by_letters(text)

    by_turns = _of_turns(count, TURN_TOKENS)
    if config.model.chat_template or config.model.system_prompt:
        extra = count(config.model.system_prompt) + TURN_TOKENS if config.model.system_prompt else 0
        return lambda prompt: by_turns(prompt) + (0 if isinstance(prompt, str) else extra)
    template, variables = _template(directory)

    def counted(prompt: str | Sequence[Message]) -> int:
        if isinstance(prompt, str) or not template:
            return by_turns(prompt)
        try:
            owner = str(directory)
            text = render_template(template, prompt, variables, add_generation_prompt=True, owner=owner)
        except UserError:  # said where it is trained with
            return by_turns(prompt)
        written = count(text, special=False)
        # A template without a place for tools leaves them out here; training then writes them as text.
        return max(written, by_turns(prompt)) if any(message.has_tools for message in prompt) else written

    return counted


def _template(directory: Path) -> tuple[str, dict[str, str]]:
    """The chat template of a tokeniser's directory, and the tokens that it may write."""
    own, settings = directory / "chat_template.jinja", directory / "tokenizer_config.json"
    stored: dict[str, Any] = read_object(settings) if settings.is_file() else {}
    source = own.read_text("utf-8", errors="replace") if own.is_file() else stored.get("chat_template")
    named = {key: value for key, value in stored.items() if key.endswith("_token")}
    variables = {
        key: str(value["content"] if isinstance(value, dict) and "content" in value else value)
        for key, value in named.items()
        if value is not None
    }
    return (source, variables) if isinstance(source, str) and source != PLAIN_TEMPLATE else ("", variables)
