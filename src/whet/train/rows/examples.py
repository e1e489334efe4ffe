"""Rows of an offline run: read, split, encoded as tokens. Rows that are too long are counted, reported and bounded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from whet.config import DataConfig, OfflineConfig
from whet.config.eval_config import PLAIN
from whet.data.sources import Loaded
from whet.errors import UserError
from whet.files.disk_rows import in_chunks, kept_like, on_disk
from whet.files.mapping import Settings, suggestion
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import fitting_prompt
from whet.records import Dialogue, Message, Row
from whet.tasks.space import first_held_out
from whet.train.setup.epochs import load_sides
from whet.train.setup.prompt_lengths import both_sides

U = TypeVar("U")
Note = Callable[[str], None]
MOST_TOO_LONG = 0.5  # share of rows that may be too long for the model
MANY_TOO_LONG = 0.1  # share above which it is a warning


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Rows of data: to learn from, and those of each evaluation set; and how many tokens one may have."""

    training: Sequence[Any]
    evaluation: Mapping[str, Sequence[Any]]
    kind: str
    limit: int
    limited_by: str  # the key or the property of the model that the limit is


def read_material(config: OfflineConfig, kinds: Sequence[str], what: str, *, context: int, note: Note) -> Material:
    """The rows that a config names, if they are of a kind that the objective trains on."""
    data = config.data
    assert data is not None
    loaded, training, held_out = load_sides(data)
    _require_kind(loaded, data, kinds, what)
    path = " and ".join(data.paths)
    sets = config.evaluation_data
    if not training or (PLAIN in sets and sets[PLAIN] is data and not held_out):
        raise UserError(
            f"{path} has {len(loaded.rows)} rows, too few prompts for a training and a held-out side: add rows"
        )
    left_out = ", ".join(f"{count} {reason}" for reason, count in loaded.skipped.items())
    split = f" and {len(held_out):,} held out, split by prompt" if held_out else ", all rows of the data"
    similar = ", similar rows together" if held_out and not loaded.twins_parted else ""
    where = ", kept on disk" if data.streaming else ""
    note(
        f"data: {len(training):,} {_called(loaded.kind)} to learn from{split}{similar}{where}"
        + (f"; left out: {left_out}" if left_out else "")
    )
    if held_out and loaded.twins_parted:
        why = (
            "in streamed data only equal prompts are kept together"
            if data.streaming
            else "too many share the same words or steps to keep them all together"
        )
        note(f"data: similar rows may be on both sides of the split: {why}")
    evaluation: dict[str, Sequence[Any]] = {}
    for name, one in sets.items():
        rows = held_out if one is data else _evaluation_rows(name, one, kinds, what, training, note)
        # In a hashed order: an evaluation may use only the first ones, and files are often sorted by source.
        # Of streamed rows twice as many are read as are used, because some may be too long.
        evaluation[name] = first_held_out(rows, 2 * config.eval.examples if on_disk(rows) else len(rows))
    limit, limited_by = min(
        (context, "the model's context"), (data.max_tokens or context, "data.max_tokens"), key=lambda both: both[0]
    )
    return Material(training=training, evaluation=evaluation, kind=loaded.kind, limit=limit, limited_by=limited_by)


def _evaluation_rows(
    name: str, data: DataConfig, kinds: Sequence[str], what: str, training: Sequence[Any], note: Note
) -> Sequence[Any]:
    """All rows of a file that the run is evaluated on."""
    loaded, _, rows = load_sides(data)
    _require_kind(loaded, data, kinds, what)
    both = both_sides(training, rows)
    leaked = f"; warning: {both:,} of their prompts are also trained on, so not held out" if both else ""
    what_rows = f"{len(rows):,} {_called(loaded.kind)} of {' and '.join(data.paths)}"
    note(f"evaluation{' set ' * bool(name)}{name}: {what_rows}{leaked}")
    return rows


def _require_kind(loaded: Loaded, data: DataConfig, kinds: Sequence[str], what: str) -> None:
    if loaded.kind in kinds:
        return
    settings: Settings = "set" if data.sets else "data"
    write = suggestion(loaded.names, "completion", settings=settings) if loaded.kind == "prompts" else ""
    hint = f": say which column has the answers, {write}" if write else ""
    *first, last = map(_called, kinds)
    learned, held = " or ".join(filter(None, (", ".join(first), last))), _called(loaded.kind)
    raise UserError(f"{' and '.join(data.paths)} holds {held}, and {what} learns from {learned}{hint}")


def _called(kind: str) -> str:
    """Rows of this kind, in a sentence."""
    return "labelled completions" if kind == "labelled" else kind


def encoded(
    rows: Sequence[Any], encode: Callable[[Sequence[Any]], list[U | None]], material: Material, note: Note
) -> Sequence[U]:
    """The encoded rows that fit, on disk if the rows are; refuses data of which more than half is too long."""
    if not rows:
        return []
    found = 0

    def fitting() -> Iterator[U]:
        nonlocal found
        for some in in_chunks(rows):
            units = encode(some)
            found += len(units)
            yield from (one for one in units if one is not None)

    kept = kept_like(rows, fitting())
    missing = found - len(kept)
    what = material.kind if found == len(rows) else "completions"  # of a pair, each is one of its own
    told = f"{missing:,} of {found:,} {what} have more than {material.limit:,} tokens ({material.limited_by})"
    if not kept or missing > MOST_TOO_LONG * found:
        way = "raise it" if material.limited_by == "data.max_tokens" else "use a model with a longer one"
        raise UserError(f"{told}: {way}")
    if missing:
        warning = "warning: " if missing > MANY_TOO_LONG * found else ""
        note(f"{warning}data: {told} and are left out")
    return kept


Asked = str | tuple[Message, ...]


def ended(tokenizer: Tokenizer, prompt: Asked, answer: str | Message) -> list[int]:
    """The ids of an answer and the end of its turn; one that calls tools as the chat template writes it."""
    if isinstance(answer, str) or isinstance(prompt, str):
        return [*tokenizer.encode(answer if isinstance(answer, str) else answer.content), tokenizer.eos]
    return tokenizer.answer(prompt, answer)


def completion_rows(
    tokenizer: Tokenizer, prompt: Asked, answers: Sequence[str | Message], limit: int
) -> list[Row] | None:
    """One row for each completion of a prompt, all with the same beginning; None where one of them does not fit."""
    completions = [ended(tokenizer, prompt, answer) for answer in answers]
    asked, _ = fitting_prompt(tokenizer, prompt, limit - max(map(len, completions)))
    return [_row(asked, completion) for completion in completions] if asked else None


def dialogue_rows(tokenizer: Tokenizer, dialogue: Dialogue, *, turns: str, limit: int) -> list[Row] | None:
    """The assistant's last turn, or all of them, as one row where the chat template allows it; None if too long.

    If the template renders earlier turns differently once others follow, each turn needs a row of its own.
    """
    if turns == "last" or isinstance(dialogue.prompt, str):
        return completion_rows(tokenizer, dialogue.prompt, [dialogue.answer], limit)
    messages = (*dialogue.prompt, dialogue.message or Message(role="assistant", content=dialogue.completion))
    # An assistant message that opens a conversation has no prompt.
    answers = [place for place, message in enumerate(messages) if message.role == "assistant" and place > 0]
    spoken = [place for place in answers if place not in dialogue.untrained]
    tokens: list[int] = []
    mask: list[bool] = []
    for turn in spoken:
        asked = tokenizer.prompt(messages[:turn])
        if asked[: len(tokens)] != tokens:
            return _apart(tokenizer, messages, spoken, limit)
        said = ended(tokenizer, messages[:turn], messages[turn])
        mask += [False] * (len(asked) - len(tokens)) + [True] * len(said)
        tokens = [*asked, *said]
    if len(tokens) > limit:
        return _apart(tokenizer, messages, spoken, limit)
    return [Row(tokens=tuple(tokens), mask=tuple(mask))]


def text_rows(tokenizer: Tokenizer, text: str, limit: int) -> list[Row] | None:
    """A text and its end, cut into rows of at most `limit` tokens; None if it has no token to predict.

    A row begins with the last token of the row before, which predicts the next: every token but the first is trained
    once.
    """
    tokens = (*tokenizer.prompt(text), tokenizer.eos)
    starts = range(0, len(tokens) - 1, max(1, limit - 1))
    pieces = [tokens[start : start + limit] for start in starts]
    return [Row(tokens=piece, mask=(False,) + (True,) * (len(piece) - 1)) for piece in pieces] or None


def _apart(tokenizer: Tokenizer, messages: tuple[Message, ...], spoken: Sequence[int], limit: int) -> list[Row] | None:
    """A row for each turn, with the messages before it as its prompt."""
    found = [completion_rows(tokenizer, messages[:turn], [messages[turn]], limit) for turn in spoken]
    return [row for rows in found for row in rows] if all(rows is not None for rows in found) else None  # type: ignore[union-attr]


def _row(asked: Sequence[int], completion: Sequence[int]) -> Row:
    return Row(tokens=(*asked, *completion), mask=(False,) * len(asked) + (True,) * len(completion))
