"""The supported row formats, how each is recognised, and accessors that work on every kind of record."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from whet.data import dialogues, feedback, traces
from whet.data.columns import Columns
from whet.errors import UserError, nearest
from whet.files.mapping import ALIASES, Settings, column_names, mapping_text, suggestion
from whet.records import Candidates, Dialogue, Labelled, Outcomes, Pair, Prompted, Text, Trace

Kind = Literal["dialogues", "texts", "prompts", "pairs", "labelled", "outcomes", "candidates", "traces"]
Record = Dialogue | Text | Pair | Labelled | Outcomes | Candidates | Trace
Parse = Callable[[Columns, str, str], Sequence[Record]]  # (columns, row id, "file:line") → records

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Format:
    """One layout of columns."""

    kind: Kind
    parse: Parse
    columns: tuple[str, ...]  # required
    looks: Callable[[Columns], bool] = lambda _: True  # a check of the values, where columns alone are ambiguous

    def fits(self, row: Columns) -> bool:
        return all(row.get(name) is not None for name in self.columns) and self.looks(row)

    @property
    def about(self) -> str:
        """The first line of the parser's docstring, which describes the columns."""
        return (self.parse.__doc__ or "").partition("\n")[0]


def _are(kind: type, *names: str) -> Callable[[Columns], bool]:
    return lambda row: all(isinstance(row[name], kind) for name in names)


def _has_outcomes(row: Columns) -> bool:
    if not isinstance(row["completions"], list):
        return False
    rewards = row.get("rewards")
    return "correct" in row or (isinstance(rewards, list) and all(value in (0, 1) for value in rewards))


def _has_solutions(row: Columns) -> bool:
    return any(isinstance(value, dict) and "is_correct" in value for value in row.values())


def _is_shepherd(row: Columns) -> bool:
    return isinstance(row["input"], str) and isinstance(row["label"], str) and traces.STEP_TAG in row["input"]


def _is_gsm8k(row: Columns) -> bool:
    return _are(str, "question", "answer")(row) and dialogues.FINAL_ANSWER in row["answer"]


def _is_hh(row: Columns) -> bool:
    return all(isinstance(row[side], str) and feedback.is_hh(row[side]) for side in SIDES)


SIDES = ("chosen", "rejected")

# The first format that fits is used, so the more specific ones come first.
FORMATS: Mapping[str, Format] = {
    "prm800k": Format("traces", traces.prm800k, ("question", "label"), _are(dict, "question", "label")),
    "prmbench": Format("traces", traces.prmbench, ("modified_process", "error_steps")),
    "math_shepherd": Format("traces", traces.math_shepherd, ("input", "label"), _is_shepherd),
    "steps": Format("traces", traces.steps, ("prompt", "completions", "labels")),
    "gsm8k_solutions": Format("outcomes", feedback.gsm8k_solutions, ("question",), _has_solutions),
    "outcomes": Format("outcomes", feedback.outcomes, ("prompt", "completions"), _has_outcomes),
    "classified": Format("outcomes", feedback.classified, ("sentence", "label"), _are(str, "sentence")),
    "candidates": Format("candidates", feedback.candidates, ("prompt", "completions"), _are(list, "completions")),
    "hhh_judged": Format("pairs", feedback.hhh_judged, ("chosen_instruction", "rejected_instruction")),
    "hhh": Format("pairs", feedback.hhh, ("input", "targets"), _are(dict, "targets")),
    "sharegpt_pairs": Format("pairs", feedback.sharegpt_pairs, ("conversations", *SIDES)),
    "alpaca_pairs": Format("pairs", feedback.alpaca_pairs, ("instruction", *SIDES)),
    "pairs": Format("pairs", feedback.pairs, ("prompt", *SIDES)),
    "hh": Format("pairs", feedback.hh, SIDES, _is_hh),
    "implicit_pairs": Format("pairs", feedback.implicit_pairs, SIDES, _are(list, *SIDES)),
    "implicit_text_pairs": Format("pairs", feedback.implicit_text_pairs, SIDES, _are(str, *SIDES)),
    "labelled": Format("labelled", feedback.labelled, ("prompt", "completion", "label")),
    "labelled_messages": Format("labelled", feedback.labelled_messages, ("messages", "label")),
    "labelled_alpaca": Format("labelled", feedback.labelled_alpaca, ("instruction", "output", "kto_tag")),
    "messages": Format("dialogues", dialogues.messages, ("messages",)),
    "sharegpt": Format("dialogues", dialogues.sharegpt, ("conversations",)),
    "prompt_completion": Format("dialogues", dialogues.prompt_completion, ("prompt", "completion")),
    "alpaca": Format("dialogues", dialogues.alpaca, ("instruction", "output")),
    "gsm8k": Format("dialogues", dialogues.gsm8k, ("question", "answer"), _is_gsm8k),
    "question_answer": Format("dialogues", dialogues.question_answer, ("question", "answer"), _are(str, "question")),
    "prompt_answer": Format("dialogues", dialogues.prompt_answer, ("prompt", "answer")),
    "text": Format("texts", dialogues.text, ("text",), _are(str, "text")),
    "prompts": Format("prompts", dialogues.prompts, ("prompt",)),
}

# Columns that unknown ones may stand for, the first that fit.
AS_EXAMPLES = (("prompt", *SIDES), SIDES, ("prompt", "completion"), ("prompt",))
AS_PROMPTS = (("prompt", "answer"), ("prompt",))


def named(name: str) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    raise UserError(f"no data format {name!r}{nearest(name, FORMATS)} (formats: {AUTO}, {', '.join(FORMATS)})")


def recognised(rows: Sequence[Columns], path: Any, settings: Settings = "none", *, as_prompts: bool = False) -> str:
    """The name of the first format that fits most of these rows.

    For advice: `settings` is where a user writes options, and rows that are read `as_prompts` have answers to compare
    with, not completions to imitate.
    """
    for name, known in FORMATS.items():
        if 2 * sum(known.fits(row) for row in rows) > len(rows):
            return name
    seen = column_names(rows)
    wanted = AS_PROMPTS if as_prompts else AS_EXAMPLES
    write = next(filter(None, (suggestion(seen, *names, settings=settings) for names in wanted)), "")
    write = write or mapping_text({"prompt": "…"}, settings)
    way = write if settings == "none" else f"say which is which, e.g. {write}"
    raise UserError(
        f"{path}: no known format has the columns {', '.join(seen) or '(none)'}: {way}, or name the format "
        "(listed by whet data formats)"
    )


def require_format(name: str, rows: Sequence[Columns], path: Any, settings: Settings = "none") -> None:
    """Refuses a format that needs a column which none of these rows has."""
    seen = column_names(rows)
    missing = [column for column in named(name).columns if column not in seen]
    if not missing:
        return
    write = suggestion(seen, *missing, settings=settings) if all(one in ALIASES for one in missing) else ""
    columns = f"(columns: {', '.join(seen) or 'none'})"
    raise UserError(
        f"{path} has no {' and no '.join(map(repr, missing))}, which the format {name} needs {columns}"
        + (f": write {write}" if write else "")
    )


def answers_of(row: Record) -> tuple[str, ...]:
    """Every completion of the row, or every step of a trace; a text has none."""
    match row:
        case Text():
            return ()
        case Dialogue() | Labelled():
            return (row.completion,)
        case Pair():
            return (row.chosen, row.rejected)
        case Outcomes() | Candidates():
            return row.completions
    return row.steps


def labels_of(row: Record) -> tuple[float | None, ...]:
    """The margin of a pair, the labels of the answers, or the untrained answers of a dialogue; a text has none."""
    match row:
        case Dialogue():
            return row.untrained
        case Pair():
            return (row.margin,)
        case Labelled():
            return (row.label,)
        case Outcomes():
            return row.correct
        case Trace():
            return row.labels
    return (row.scores or ()) if isinstance(row, Candidates) else ()


def prompt_key(row: Prompted) -> str:
    """The prompt as an unambiguous string; plain text and a conversation with the same words differ."""
    if isinstance(row.prompt, str):
        return row.prompt
    turns = [turn.plain() if turn.has_tools else (turn.role, turn.content) for turn in row.prompt]
    return json.dumps(turns, ensure_ascii=False)


def content(row: Record) -> str:
    """Prompt, answers and labels without the id: equal for rows that train the same."""
    parts = [type(row).__name__, prompt_key(row), answers_of(row), labels_of(row)]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
