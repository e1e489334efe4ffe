"""Statistics of a data set for `whet data explore`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whet.data.formats import Record, answers_of, content, prompt_key
from whet.data.similarity import near_duplicates
from whet.data.sources import Loaded
from whet.data.split import opening
from whet.records import Candidates, Dialogue, Labelled, Outcomes, Pair, Trace
from whet.tasks.space import fingerprint

LABEL_NAMES = {1: "good", 0: "neutral", -1: "bad"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of the texts of one sort, text by text."""

    words: tuple[int, ...]
    characters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row to display."""

    id: str
    prompt: str
    answers: tuple[tuple[str, str], ...]  # (sort, text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Statistics of the rows of one source."""

    loaded: Loaded
    prompts: int  # distinct
    openings: int  # distinct first user messages
    near_duplicates: int  # rows that nearly repeat an earlier one, among those that were kept
    turns: Mapping[int, int]  # messages in a row → number of rows
    lengths: Mapping[str, Lengths]  # by "prompt" and sort of answer
    differences: tuple[int, ...]  # pairs: words of chosen − words of rejected
    margins: tuple[float, ...]  # pairs with a margin
    balance: Mapping[str, int]  # count of each label
    samples: tuple[Sample, ...]


def explore(loaded: Loaded, samples: int = 3) -> Survey:
    """The samples are the rows with the lowest content hash, so they are reproducible."""
    rows = loaded.rows
    pairs = [row for row in rows if isinstance(row, Pair)]
    ordered = sorted(rows, key=lambda row: fingerprint("sample", content(row)))
    return Survey(
        loaded=loaded,
        prompts=len({prompt_key(row) for row in rows}),
        openings=len({opening(row) for row in rows}),
        near_duplicates=sum(same is not None for same in near_duplicates(rows)),
        turns=dict(sorted(Counter(_turns(row) for row in rows).items())),
        lengths=_lengths(rows),
        differences=tuple(_words(row.chosen) - _words(row.rejected) for row in pairs),
        margins=tuple(row.margin for row in pairs if row.margin is not None),
        balance=dict(Counter(label for row in rows for label in _label_names(row))),
        samples=tuple(
            Sample(id=row.id, prompt=row.prompt_text, answers=tuple(named_answers(row))) for row in ordered[:samples]
        ),
    )


def named_answers(row: Record) -> Iterator[tuple[str, str]]:
    """(sort, text) of every answer of a row."""
    match row:
        case Dialogue():
            yield "answer", answers_of(row)[0]
        case Pair():
            yield from (("chosen", row.chosen), ("rejected", row.rejected))
        case Labelled():
            yield "liked" if row.label else "not liked", row.completion
        case Outcomes():
            for text, right in zip(row.completions, row.correct, strict=True):
                yield "right" if right else "wrong", text
        case Candidates():
            yield from (("candidate", text) for text in row.completions)
        case Trace():
            for text, label in zip(row.steps, row.labels, strict=True):
                yield f"{LABEL_NAMES[label]} step", text


def _label_names(row: Record) -> list[str]:
    """The label of each answer; other kinds have none that could be imbalanced."""
    return [] if isinstance(row, Dialogue | Pair | Candidates) else [name for name, _ in named_answers(row)]


def _lengths(rows: Sequence[Record]) -> dict[str, Lengths]:
    texts: dict[str, list[str]] = {"prompt": [_asked(row) for row in rows]}
    for row in rows:
        for name, text in named_answers(row):
            texts.setdefault(name, []).append(text)
    return {
        name: Lengths(words=tuple(map(_words, found)), characters=tuple(map(len, found)))
        for name, found in texts.items()
    }


def _asked(row: Record) -> str:
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else "\n".join(turn.content for turn in prompt)


def _turns(row: Record) -> int:
    """Messages of the prompt and the answer."""
    return 2 if isinstance(row.prompt, str) else len(row.prompt) + 1


def _words(text: str) -> int:
    return len(text.split())
