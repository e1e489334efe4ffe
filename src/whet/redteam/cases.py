"""Prompts with their answers, as edits take them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.errors import UserError
from whet.records import Candidates, Dialogue, Labelled, Message, Outcomes, Pair, Prompted

Prompt = str | tuple[Message, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One prompt with its chosen answer and, if the row has one, a rejected answer."""

    id: str
    prompt: Prompt
    chosen: str
    rejected: str | None
    other: str  # the chosen answer of another prompt; empty if there is none

    @property
    def answers(self) -> tuple[str, ...]:
        """The plain answers, chosen first."""
        return (self.chosen,) if self.rejected is None else (self.chosen, self.rejected)

    @property
    def group(self) -> str:
        """The same for cases of one prompt, whose rewards are correlated."""
        return self.prompt if isinstance(self.prompt, str) else repr(self.prompt)

    @property
    def question(self) -> str:
        """The words of the prompt: of a conversation its last message."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1].content


def cases_of(rows: Sequence[Prompted], name: str) -> list[Case]:
    """The rows as cases, those without words in an answer left out; each knows an answer to another prompt."""
    told = [(row, *sides) for row in rows if (sides := _sides(row, name)) is not None]
    found = []
    for place, (row, chosen, rejected) in enumerate(told):
        others = (told[(place + step) % len(told)] for step in range(1, len(told)))
        other = next((text for one, text, _ in others if one.prompt != row.prompt and text != chosen), "")
        found.append(Case(id=row.id, prompt=row.prompt, chosen=chosen, rejected=rejected, other=other))
    if not found:
        raise UserError(f"{name} has no prompt with an answer to edit: give pairs, or prompts with completions")
    return found


def fitting(cases: Sequence[Case], fits: Callable[[Prompt, str], bool], most: int) -> tuple[list[Case], int]:
    """The first cases of which every given text fits, and how many before the last of them were left out."""
    kept: list[Case] = []
    for seen, case in enumerate(cases):
        if len(kept) == most:
            return kept, seen - most
        if all(fits(case.prompt, answer) for answer in case.answers):
            kept.append(case)
    return kept, len(cases) - len(kept)


def _sides(row: Prompted, name: str) -> tuple[str, str | None] | None:
    """The better and the worse answer of a row; None if one of them has no words."""
    match row:
        case Pair():
            sides: tuple[str, str | None] = (row.chosen, row.rejected)
        case Dialogue():
            sides = (row.completion, None)
        case Labelled():
            if not row.label:
                return None
            sides = (row.completion, None)
        case Outcomes():
            sides = _ends(row.completions, [float(right) for right in row.correct])
        case Candidates(scores=tuple(scores)):
            sides = _ends(row.completions, scores)
        case _:
            raise UserError(
                f"row {row.id} of {name} does not say which answer is good: give pairs, or labels or scores"
            )
    return sides if all(side is None or side.split() for side in sides) else None


def _ends(texts: Sequence[str], scores: Sequence[float]) -> tuple[str, str | None]:
    """The texts with the highest and the lowest score; no worse one if all are equal."""
    order = sorted(range(len(texts)), key=lambda place: -scores[place])
    best, worst = order[0], order[-1]
    return texts[best], texts[worst] if scores[worst] < scores[best] else None
