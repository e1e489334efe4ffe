"""Rows with labels on completions → `Labelled`, and on all completions of a problem → `Outcomes`."""

from __future__ import annotations

from whet.data import columns
from whet.data.columns import Columns
from whet.data.dialogues import completion, conversation, instructed
from whet.errors import UserError
from whet.records import Labelled, Outcomes


def labelled(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`prompt`, `completion` (each text or messages) and `label`, true for a completion that was liked."""
    prompt, label = columns.prompt(row, where), columns.flag(row, "label", where)
    if isinstance(row.get("completion"), str):
        return (Labelled(id=row_id, prompt=prompt, completion=row["completion"], label=label),)
    said = completion(row, "completion", where)
    if len(said) != 1:
        raise UserError(f"{where}: 'completion' must be one message of the assistant, not {len(said)}")
    return (Labelled(id=row_id, prompt=conversation(prompt), completion=said[0].content, label=label),)


def labelled_messages(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`messages`, of which the last was liked or not, and `label`."""
    *prompt, answer = columns.answered(columns.messages(row, "messages", where), "messages", where)
    if not prompt or prompt[-1].role == "assistant":
        raise UserError(f"{where}: the last of 'messages' must answer one that is not the assistant's")
    label = columns.flag(row, "label", where)
    return (Labelled(id=row_id, prompt=tuple(prompt), completion=answer.content, label=label),)


def labelled_alpaca(row: Columns, row_id: str, where: str) -> tuple[Labelled, ...]:
    """`instruction`, `input` (may be empty), `output` and `kto_tag`, as LLaMA-Factory has them."""
    said, label = columns.text(row, "output", where), columns.flag(row, "kto_tag", where)
    return (Labelled(id=row_id, prompt=instructed(row, where), completion=said, label=label),)


def outcomes(row: Columns, row_id: str, where: str) -> tuple[Outcomes, ...]:
    """`prompt`, `completions`, and `correct` or `rewards`, one for each and either 0 or 1."""
    name = "correct" if "correct" in row else "rewards"
    completions, judged = columns.texts(row, "completions", where), columns.items(row, name, where)
    if len(completions) != len(judged):
        raise UserError(f"{where}: {len(completions)} 'completions' but {len(judged)} '{name}'")
    correct = tuple(columns.as_flag(value, name, where) for value in judged)
    prompt = columns.prompt(row, where)
    return (Outcomes(id=row_id, prompt=prompt, completions=completions, correct=correct),)


def gsm8k_solutions(row: Columns, row_id: str, where: str) -> tuple[Outcomes, ...]:
    """`question`, and for each of several models an object with `solution` and `is_correct` (Cobbe et al. 2021)."""
    tried = {name: value for name, value in row.items() if isinstance(value, dict) and "is_correct" in value}
    return (
        Outcomes(
            id=row_id,
            prompt=columns.text(row, "question", where),
            completions=tuple(columns.text(value, "solution", where) for value in tried.values()),
            correct=tuple(columns.flag(value, "is_correct", where) for value in tried.values()),
        ),
    )
