"""What the grader and its worker say to each other: one JSON object per line.

To the worker:    a `Setup`, then any number of batches {"examples": […], "texts": […]}.
From the worker:  {"ready": true} once, then for each batch at most one {"at": function, "row": n | null} for each
                  function and row, and one of {"scores": […]}, {"failed": sentence, "row": n | null} or
                  {"user_error": sentence}. {"forked": true} at any time: a copy of the worker came back from the
                  user's code too.

Every line also has {"request": n}: 0 is the setup, and an answer repeats the number of what it answers. The user's code
can reach the worker's pipe, so nothing is believed before it has been looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whet.records import Example, Message, Score
from whet.tasks.grading.process import ChildGarbled
from whet.tasks.protocol import is_reward

OUT_OF_MEMORY = 112  # the exit code of a worker that reached its limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the worker is to judge with: reward functions, or the score of a task where there are none."""

    task: str
    options: Mapping[str, Any]
    rewards: tuple[tuple[str, float], ...]
    load_limit_seconds: float
    time_limit_seconds: float
    memory_limit_gb: float | None
    may_abstain: bool  # a row may be left without a reward: somebody else gives one too
    path: tuple[str, ...]  # where the parent looks for modules


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """What the worker begins now."""

    function: str
    row: int | None  # where it is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a batch has no scores."""

    message: str
    row: int | None  # where it is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """What the user has to put right."""

    message: str


def pack_setup(setup: Setup) -> dict[str, Any]:
    return {**asdict(setup), "options": dict(setup.options)}


def unpack_setup(data: Mapping[str, Any]) -> Setup:
    pairs = tuple((str(spec), weight) for spec, weight in data["rewards"])
    known = {key: value for key, value in data.items() if key != "request"}
    return Setup(**{**known, "rewards": pairs, "path": tuple(data["path"])})


def pack_batch(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, Any]:
    return {"examples": [_pack_example(example) for example in examples], "texts": list(texts)}


def unpack_batch(data: Mapping[str, Any]) -> tuple[list[Example], list[str]]:
    return [_unpack_example(example) for example in data["examples"]], data["texts"]


def pack_score(score: Score) -> dict[str, Any]:
    return {"reward": score.reward, "parts": dict(score.parts)}


def unpack_loaded(data: Mapping[str, Any]) -> Refusal | None:
    """What the worker said about the setup; nothing if all is well."""
    match data:
        case {"ready": True, **rest} if not rest:
            return None
        case {"user_error": str(message), **rest} if not rest:
            return Refusal(message=" ".join(message.split()))
    raise _no_answer(data)


def unpack_reply(data: Mapping[str, Any], rows: int) -> At | Failure | Refusal | list[Score]:
    """What the worker said about a batch of so many rows."""
    match data:
        case {"at": str(function), "row": row, **rest} if not rest and _is_row(row, rows):
            return At(function=function, row=row)
        case {"failed": str(message), "row": row, **rest} if not rest and _is_row(row, rows):
            return Failure(message=" ".join(message.split()), row=row)
        case {"user_error": str(message), **rest} if not rest:
            return Refusal(message=" ".join(message.split()))
        case {"scores": list(scores), **rest} if not rest:
            if len(scores) != rows:
                raise ChildGarbled(f"{len(scores)} scores for {rows} completions")
            return [_unpack_score(score, row) for row, score in enumerate(scores)]
    raise _no_answer(data)


def _no_answer(data: Mapping[str, Any]) -> ChildGarbled:
    if data == {"forked": True}:
        return ChildGarbled("the answer of a forked copy")
    return ChildGarbled(f"an object with the keys {sorted(data)!s:.60}, which is no answer")


def _unpack_score(data: object, row: int) -> Score:
    match data:
        case {"reward": reward, "parts": dict(parts), **rest} if not rest:
            if all(type(value) in (int, float) and is_reward(value) for value in (reward, *parts.values())):
                return Score(reward=float(reward), parts={name: float(value) for name, value in parts.items()})
    raise ChildGarbled(f"something else than a score for row {row}")


def _is_row(value: object, rows: int) -> bool:
    return value is None or (type(value) is int and 0 <= value < rows)


def _pack_example(example: Example) -> dict[str, Any]:
    return {
        "id": example.id,
        "prompt": example.plain_prompt,
        "answer": example.answer,
        "columns": dict(example.columns),
        "twin": example.twin,
    }


def _unpack_example(data: Mapping[str, Any]) -> Example:
    prompt = data["prompt"]
    messages = prompt if isinstance(prompt, str) else tuple(Message(**message) for message in prompt)
    return Example(id=data["id"], prompt=messages, answer=data["answer"], columns=data["columns"], twin=data["twin"])
