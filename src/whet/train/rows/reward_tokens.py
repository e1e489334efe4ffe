"""Rows of data as tokens for training a reward model, encoded exactly as when it scores texts later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.models.protocol import Tokenizer
from whet.models.reward.scoring import ScoredText, one_step, stepped_text, whole_text
from whet.models.reward.settings import RewardSettings, step_classes
from whet.records import Outcomes, Pair, Row, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Completions of one prompt (or one solution) with their labels."""

    rows: tuple[Row, ...]  # mask: the completion
    places: tuple[tuple[bool, ...], ...]  # of each row: where its score is read
    labels: tuple[tuple[int, ...], ...]  # of each row: one for each place; a pair has none
    margin: float
    data: Any = None  # the row of data, for the report on mistakes


def groups_of(some: Sequence[Judged]) -> Tensor:
    """(rows,) numbers, equal for completions of one prompt that was truncated alike."""
    begun = [(index, row.tokens[: row.mask.index(True)]) for index, one in enumerate(some) for row in one.rows]
    numbers = {beginning: number for number, beginning in enumerate(begun)}
    return torch.tensor([numbers[beginning] for beginning in begun], dtype=torch.int64)


def judged(row: Pair | Outcomes | Trace, tokenizer: Tokenizer, settings: RewardSettings, limit: int) -> Judged | None:
    """A row of data as tokens, each text as a `Scorer` reads it; None where one does not fit.

    A trace is the text of its steps, each as `one_step` writes it. One with a blank step is left out: a `Scorer` skips
    blank steps, so their labels could be neither trained nor checked.
    """

    def whole(completion: str) -> ScoredText:
        return whole_text(tokenizer, row.prompt, completion, limit, every_token=settings.every_token)

    match row:
        case Pair():
            texts = [whole(row.chosen), whole(row.rejected)]
            labels: list[tuple[int, ...]] = [(), ()]
        case Outcomes():
            texts = [whole(completion) for completion in row.completions]
            labels = [(int(right),) * len(text.places) for text, right in zip(texts, row.correct, strict=True)]
        case Trace():
            if not all(one_step(step, settings.separator).strip() for step in row.steps):
                return None
            texts = [stepped_text(tokenizer, row.prompt, row.steps, limit, separator=settings.separator)]
            labels = [tuple(step_classes(row.labels, settings.classes))]
    if not all(text.prompt for text in texts):
        return None
    return Judged(
        rows=tuple(Row(tokens=t.tokens, mask=tuple(i >= t.prompt for i in range(len(t.tokens)))) for t in texts),
        places=tuple(tuple(map(set(t.places).__contains__, range(len(t.tokens)))) for t in texts),
        labels=tuple(labels),
        margin=(row.margin or 0.0) if isinstance(row, Pair) else 0.0,
        data=row,
    )
