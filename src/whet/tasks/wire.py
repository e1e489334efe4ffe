"""What the grader and its worker say to each other: one JSON object per line.

To the worker:    a `Setup`, then any number of batches {"examples": […], "texts": […]}.
From the worker:  {"ready": true} once, then for each batch any number of {"at": function, "row": n | null} and one of
                  {"scores": […]}, {"failed": sentence, "row": n | null} or {"user_error": sentence}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whet.records import Example, Message, Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the worker is to judge with: reward functions, or the score of a task where there are none."""

    task: str
    options: Mapping[str, Any]
    rewards: tuple[tuple[str, float], ...]
    load_limit_seconds: float
    time_limit_seconds: float
    path: tuple[str, ...]  # where the parent looks for modules


def pack_setup(setup: Setup) -> dict[str, Any]:
    return {**asdict(setup), "options": dict(setup.options)}


def unpack_setup(data: Mapping[str, Any]) -> Setup:
    pairs = tuple((str(spec), weight) for spec, weight in data["rewards"])
    return Setup(**{**data, "rewards": pairs, "path": tuple(data["path"])})


def pack_batch(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, Any]:
    return {"examples": [_pack_example(example) for example in examples], "texts": list(texts)}


def unpack_batch(data: Mapping[str, Any]) -> tuple[list[Example], list[str]]:
    return [_unpack_example(example) for example in data["examples"]], data["texts"]


def pack_score(score: Score) -> dict[str, Any]:
    return {"reward": score.reward, "parts": dict(score.parts)}


def unpack_score(data: Mapping[str, Any]) -> Score:
    return Score(reward=data["reward"], parts=data["parts"])


def _pack_example(example: Example) -> dict[str, Any]:
    prompt = example.prompt
    plain = prompt if isinstance(prompt, str) else [{"role": m.role, "content": m.content} for m in prompt]
    return {
        "id": example.id,
        "prompt": plain,
        "answer": example.answer,
        "columns": dict(example.columns),
        "twin": example.twin,
    }


def _unpack_example(data: Mapping[str, Any]) -> Example:
    prompt = data["prompt"]
    messages = prompt if isinstance(prompt, str) else tuple(Message(**message) for message in prompt)
    return Example(id=data["id"], prompt=messages, answer=data["answer"], columns=data["columns"], twin=data["twin"])
