"""The table of formats: how rows are written, what they become, and by which columns each is recognised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.data import dialogues, labelled, pairs, traces
from whet.data.columns import Columns
from whet.errors import UserError, nearest
from whet.records import Dialogue, Labelled, Outcomes, Pair, Trace

Kind = Literal["dialogues", "pairs", "labelled", "outcomes", "traces"]
Record = Dialogue | Pair | Labelled | Outcomes | Trace
Parse = Callable[[Columns, str, str], Sequence[Record]]  # from the columns, the id and the place, as file:line

AUTO = "auto"


def _always(_: Columns) -> bool:
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One way to write rows."""

    kind: Kind
    parse: Parse
    columns: tuple[str, ...]  # that a row of this format has
    looks: Callable[[Columns], bool] = _always  # what else its values show, where columns alone do not tell

    def fits(self, row: Columns) -> bool:
        """Whether a row is written this way."""
        return all(row.get(name) is not None for name in self.columns) and self.looks(row)

    @property
    def about(self) -> str:
        """What the columns hold, in one sentence."""
        return (self.parse.__doc__ or "").partition("\n")[0]


def _are_text(*names: str) -> Callable[[Columns], bool]:
    return lambda row: all(isinstance(row[name], str) for name in names)


def _are_lists(*names: str) -> Callable[[Columns], bool]:
    return lambda row: all(isinstance(row[name], list) for name in names)


def _are_objects(*names: str) -> Callable[[Columns], bool]:
    return lambda row: all(isinstance(row[name], dict) for name in names)


def _has_outcomes(row: Columns) -> bool:
    return isinstance(row["completions"], list) and ("correct" in row or "rewards" in row)


def _has_solutions(row: Columns) -> bool:
    return any(isinstance(value, dict) and "is_correct" in value for value in row.values())


def _is_shepherd(row: Columns) -> bool:
    return isinstance(row["input"], str) and isinstance(row["label"], str) and traces.STEP_TAG in row["input"]


def _is_hh(row: Columns) -> bool:
    return all(isinstance(row[side], str) and pairs.is_hh(row[side]) for side in ("chosen", "rejected"))


SIDES = ("chosen", "rejected")

# The first that fits is taken, so what asks for more stands before what asks for less.
FORMATS: Mapping[str, Format] = {
    "prm800k": Format(
        kind="traces", parse=traces.prm800k, columns=("question", "label"), looks=_are_objects("question", "label")
    ),
    "prmbench": Format(kind="traces", parse=traces.prmbench, columns=("modified_process", "error_steps")),
    "math_shepherd": Format(kind="traces", parse=traces.math_shepherd, columns=("input", "label"), looks=_is_shepherd),
    "steps": Format(kind="traces", parse=traces.steps, columns=("prompt", "completions", "labels")),
    "gsm8k_solutions": Format(
        kind="outcomes", parse=labelled.gsm8k_solutions, columns=("question",), looks=_has_solutions
    ),
    "outcomes": Format(
        kind="outcomes", parse=labelled.outcomes, columns=("prompt", "completions"), looks=_has_outcomes
    ),
    "hhh_judged": Format(kind="pairs", parse=pairs.hhh_judged, columns=("chosen_instruction", "rejected_instruction")),
    "hhh": Format(kind="pairs", parse=pairs.hhh, columns=("input", "targets"), looks=_are_objects("targets")),
    "sharegpt_pairs": Format(kind="pairs", parse=pairs.sharegpt_pairs, columns=("conversations", *SIDES)),
    "alpaca_pairs": Format(kind="pairs", parse=pairs.alpaca_pairs, columns=("instruction", *SIDES)),
    "pairs": Format(kind="pairs", parse=pairs.pairs, columns=("prompt", *SIDES)),
    "hh": Format(kind="pairs", parse=pairs.hh, columns=SIDES, looks=_is_hh),
    "implicit_pairs": Format(kind="pairs", parse=pairs.implicit_pairs, columns=SIDES, looks=_are_lists(*SIDES)),
    "labelled": Format(kind="labelled", parse=labelled.labelled, columns=("prompt", "completion", "label")),
    "labelled_messages": Format(kind="labelled", parse=labelled.labelled_messages, columns=("messages", "label")),
    "labelled_alpaca": Format(
        kind="labelled", parse=labelled.labelled_alpaca, columns=("instruction", "output", "kto_tag")
    ),
    "messages": Format(kind="dialogues", parse=dialogues.messages, columns=("messages",)),
    "sharegpt": Format(kind="dialogues", parse=dialogues.sharegpt, columns=("conversations",)),
    "prompt_completion": Format(kind="dialogues", parse=dialogues.prompt_completion, columns=("prompt", "completion")),
    "alpaca": Format(kind="dialogues", parse=dialogues.alpaca, columns=("instruction", "output")),
    "gsm8k": Format(
        kind="dialogues", parse=dialogues.gsm8k, columns=("question", "answer"), looks=_are_text("question", "answer")
    ),
}


def named(name: str) -> Format:
    """The format of this name."""
    if name in FORMATS:
        return FORMATS[name]
    raise UserError(f"no data format {name!r}{nearest(name, FORMATS)} (formats: {AUTO}, {', '.join(FORMATS)})")


def recognised(rows: Sequence[Columns], path: Any) -> str:
    """The name of the first format that most of these rows are written in."""
    for name, known in FORMATS.items():
        if 2 * sum(known.fits(row) for row in rows) > len(rows):
            return name
    seen = list(dict.fromkeys(column for row in rows for column in row))
    raise UserError(
        f"{path}: no known format has the columns {', '.join(seen) or '(none)'}: "
        f"rename them, or name the format (one of {', '.join(FORMATS)})"
    )
