"""Statistics of a data set, behind `whet data explore`; without intervals and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whet.data.formats import Kind, Record
from whet.data.load import Loaded
from whet.data.near import near_duplicates
from whet.data.rows import answers_of, content, prompt_text, readable_prompt, turns_of
from whet.data.split import opening
from whet.records import Dialogue, Labelled, Outcomes, Pair, Trace
from whet.tasks.space import fingerprint

LABEL_NAMES = {1: "good", 0: "neither", -1: "bad"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """How long texts of one sort are, text by text."""

    words: tuple[int, ...]
    characters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row to look at."""

    id: str
    prompt: str
    answers: tuple[tuple[str, str], ...]  # (what it is, the text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """The facts about the rows of one source."""

    kind: Kind
    format: str
    digest: str
    read: int
    rows: int
    skipped: Mapping[str, int]
    skipped_at: Mapping[str, tuple[str, ...]]
    prompts: int  # different ones
    openings: int  # different first messages of the user
    near_duplicates: int  # rows that nearly repeat an earlier one; they were kept, unless `skipped` counts them
    turns: Mapping[int, int]  # messages of a row → how many rows
    lengths: Mapping[str, Lengths]  # "prompt", and each sort of answer
    differences: tuple[int, ...]  # of pairs: words of chosen − words of rejected
    margins: tuple[float, ...]  # of pairs that have one
    balance: Mapping[str, int]  # how often each verdict was given
    samples: tuple[Sample, ...]


def explore(loaded: Loaded, samples: int = 3) -> Survey:
    """Reads all rows once; the samples are those whose content hashes lowest, so they stay the same."""
    rows = loaded.rows
    pairs = [row for row in rows if isinstance(row, Pair)]
    ordered = sorted(rows, key=lambda row: fingerprint("sample", content(row)))
    return Survey(
        kind=loaded.kind,
        format=loaded.format,
        digest=loaded.digest,
        read=loaded.read,
        rows=len(rows),
        skipped=loaded.skipped,
        skipped_at=loaded.skipped_at,
        prompts=len({prompt_text(row) for row in rows}),
        openings=len({opening(row) for row in rows}),
        near_duplicates=sum(same is not None for same in near_duplicates(rows)),
        turns=dict(sorted(Counter(turns_of(row) for row in rows).items())),
        lengths=_lengths(rows),
        differences=tuple(_words(row.chosen) - _words(row.rejected) for row in pairs),
        margins=tuple(row.margin for row in pairs if row.margin is not None),
        balance=dict(Counter(verdict for row in rows for verdict in _verdicts(row))),
        samples=tuple(_sample(row) for row in ordered[:samples]),
    )


def named_answers(row: Record) -> Iterator[tuple[str, str]]:
    """Every answer of a row, with what it is."""
    match row:
        case Dialogue():
            yield "answer", answers_of(row)[0]
        case Pair():
            yield from (("chosen", row.chosen), ("rejected", row.rejected))
        case Labelled():
            yield "liked" if row.label else "not liked", row.completion
        case Outcomes():
            for said, right in zip(row.completions, row.correct, strict=True):
                yield "right" if right else "wrong", said
        case Trace():
            for said, label in zip(row.steps, row.labels, strict=True):
                yield f"{LABEL_NAMES[label]} step", said


def _verdicts(row: Record) -> list[str]:
    """What was said about each answer; of dialogues and pairs nothing that could be out of balance."""
    return [] if isinstance(row, Dialogue | Pair) else [name for name, _ in named_answers(row)]


def _lengths(rows: Sequence[Record]) -> dict[str, Lengths]:
    texts: dict[str, list[str]] = {"prompt": [_asked(row) for row in rows]}
    for row in rows:
        for name, said in named_answers(row):
            texts.setdefault(name, []).append(said)
    return {
        name: Lengths(words=tuple(map(_words, found)), characters=tuple(map(len, found)))
        for name, found in texts.items()
    }


def _asked(row: Record) -> str:
    """The words of the prompt, without the names of the speakers."""
    prompt = row.prompt
    return prompt if isinstance(prompt, str) else "\n".join(turn.content for turn in prompt)


def _words(text: str) -> int:
    return len(text.split())


def _sample(row: Record) -> Sample:
    return Sample(id=row.id, prompt=readable_prompt(row), answers=tuple(named_answers(row)))
