"""Solutions with a label on every step (process supervision) → `Trace`."""

from collections.abc import Iterator
from typing import Any

from whet.data import columns
from whet.data.columns import Columns
from whet.errors import UserError
from whet.records import Trace

RATINGS = (-1, 0, 1)
STEP_TAG = "ки"  # ends a step in Math-Shepherd; `label` has + or - in its place
FIRST_STEP = "Step 1:"
GOOD, BAD = 1, -1


def steps(row: Columns, row_id: str, where: str) -> tuple[Trace, ...]:
    """`prompt`, `completions` (the steps) and `labels`, one for each: true or false, or −1, 0, 1."""
    written, rated = columns.texts(row, "completions", where), columns.items(row, "labels", where)
    if len(written) != len(rated):
        raise UserError(f"{where}: {len(written)} steps but {len(rated)} 'labels'")
    labels = tuple(_label(value, where) for value in rated)
    return (Trace(id=row_id, prompt=columns.prompt(row, where), steps=written, labels=labels),)


def prm800k(row: Columns, row_id: str, where: str) -> tuple[Trace, ...]:
    """`question.problem` and `label.steps`, each with alternatives of which one was continued (Lightman et al. 2023).

    The trace is the path that was continued. Where no alternative was good enough to continue, it ends with the first
    rated one.
    """
    question, label = columns.fields(row, "question", where), columns.fields(row, "label", where)
    path = list(_continued(columns.items(label, "steps", where), where))
    problem = columns.text(question, "problem", where)
    return (Trace(id=row_id, prompt=problem, steps=tuple(t for t, _ in path), labels=tuple(r for _, r in path)),)


def prmbench(row: Columns, row_id: str, where: str) -> tuple[Trace, ...]:
    """`original_process`, all of it good, and `modified_process`, whose `error_steps` (from 1) are bad."""
    original, modified = (columns.texts(row, f"{side}_process", where) for side in ("original", "modified"))
    errors = columns.items(row, "error_steps", where)
    if not all(type(step) is int and 1 <= step <= len(modified) for step in errors):
        raise UserError(f"{where}: 'error_steps' are {errors}, but 'modified_process' has steps 1 to {len(modified)}")
    labels = tuple(BAD if number in errors else GOOD for number in range(1, len(modified) + 1))
    questions = [columns.text(row, f"{side}_question", where) for side in ("original", "modified")]
    # Rows with the same `idx` are one problem, rephrased and with other mistakes: a leakage group.
    twin = columns.name(row, "idx", where) or questions[0]
    return (
        Trace(id=f"{row_id}-original", prompt=questions[0], steps=original, labels=(GOOD,) * len(original), twin=twin),
        Trace(id=f"{row_id}-modified", prompt=questions[1], steps=modified, labels=labels, twin=twin),
    )


def math_shepherd(row: Columns, row_id: str, where: str) -> tuple[Trace, ...]:
    """`input`, a question and steps that end with ки, and `label`, the same with + or - there (Wang et al. 2024)."""
    written, marked = columns.text(row, "input", where), columns.text(row, "label", where)
    *parts, rest = written.split(STEP_TAG)
    question, first, step = parts[0].partition(FIRST_STEP) if parts else ("", "", "")
    if not first or rest.strip():
        raise UserError(
            f"{where}: 'input' must be a question and steps from '{FIRST_STEP}' on, each ending in {STEP_TAG}"
        )
    marks: list[int] = []
    place = 0
    for part in parts:
        place += len(part)
        mark = marked[place : place + 1]
        if mark not in ("+", "-"):
            raise UserError(f"{where}: 'label' has no + or - where 'input' has its {STEP_TAG} number {len(marks) + 1}")
        marks.append(GOOD if mark == "+" else BAD)
        place += 1
    solution = tuple(part.strip() for part in (f"{first}{step}", *parts[1:]))
    return (Trace(id=row_id, prompt=question.strip(), steps=solution, labels=tuple(marks)),)


def _continued(stages: list[Any], where: str) -> Iterator[tuple[str, int]]:
    """The text and the rating of each step of the path that the labeller continued."""
    for number, stage in enumerate(stages, start=1):
        here = f"{where}, step {number}"
        if not isinstance(stage, dict):
            raise UserError(f"{here} must be an object with 'completions'")
        chosen = stage.get("chosen_completion")
        alternatives = columns.items(stage, "completions", here) if stage.get("completions") is not None else []
        if chosen is not None:
            if type(chosen) is not int or not 0 <= chosen < len(alternatives):
                raise UserError(f"{here}: 'chosen_completion' is {chosen!r} of {len(alternatives)} completions")
            step = alternatives[chosen]
        elif stage.get("human_completion") is not None:
            # Written by the labeller because no alternative was good; it has no rating.
            yield columns.text(columns.fields(stage, "human_completion", here), "text", here), GOOD
            continue
        else:
            rated = [step for step in alternatives if isinstance(step, dict) and step.get("rating") is not None]
            if rated:
                yield columns.text(rated[0], "text", here), _label(rated[0]["rating"], here)
            return
        if not isinstance(step, dict) or step.get("rating") is None:
            return  # unrated: later steps would be conditioned on a step of unknown quality
        yield columns.text(step, "text", here), _label(step["rating"], here)


def _label(value: Any, where: str) -> int:
    if isinstance(value, bool):
        return GOOD if value else BAD
    if value not in RATINGS:
        raise UserError(f"{where}: a step is labelled {value!r}; labels are true, false, 1, 0 or -1")
    return int(value)
