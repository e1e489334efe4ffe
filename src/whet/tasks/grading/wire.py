"""The protocol between the grader and its worker: one JSON object per line.

To the worker:    a `WorkerSetup`, then any number of batches {"examples": […], "texts": […], "sampled": {…} | null}.
From the worker:  {"ready": true, "wants_samples": whether a function asks for `Sampled`} once, then for each batch at
                  most one {"at": function, "row": n | null} for each function and row, and one of {"scores": […]},
                  {"failed": sentence, "row": n | null, "traceback": text} or {"user_error": sentence}.
                  {"forked": true} at any time: the user's code forked the worker and the copy returned.

Every line also has {"request": n}: 0 is the setup, and a reply repeats the number of its request. The user's code can
write to the worker's pipe, so every reply is validated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from whet.errors import UserError
from whet.records import Example, Message, Sampled, Score
from whet.tasks.grading.process import ChildGarbled
from whet.tasks.grading.reward_arguments import are_extras, are_metrics
from whet.tasks.protocol import is_reward

OUT_OF_MEMORY = 112  # the exit code of a worker that reached its limit


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """What the worker grades with: reward functions, or the score of a task if there are none."""

    task: str
    options: Mapping[str, Any]
    rewards: tuple[tuple[str, float], ...]
    load_limit_seconds: float
    time_limit_seconds: float
    memory_limit_gb: float | None
    may_abstain: bool  # rows may get no reward here: a reward model gives one too
    path: tuple[str, ...]  # the parent's sys.path


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """Progress: the function that starts now."""

    function: str
    row: int | None  # if known


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An error of the user's code on a batch."""

    message: str
    row: int | None  # if known
    traceback: str = ""  # if the user's code raised


def pack_setup(setup: WorkerSetup) -> dict[str, Any]:
    return {**asdict(setup), "options": dict(setup.options)}


def unpack_setup(data: Mapping[str, Any]) -> WorkerSetup:
    pairs = tuple((str(spec), weight) for spec, weight in data["rewards"])
    known = {key: value for key, value in data.items() if key != "request"}
    return WorkerSetup(**{**known, "rewards": pairs, "path": tuple(data["path"])})


def pack_batch(examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> dict[str, Any]:
    facts = None if sampled is None else asdict(replace(sampled, logprobs=(), turns=(), failures=()))
    return {"examples": [pack_example(example) for example in examples], "texts": list(texts), "sampled": facts}


def unpack_batch(data: Mapping[str, Any]) -> tuple[list[Example], list[str], Sampled | None]:
    facts = data["sampled"]
    if facts is not None:
        tokens, finish = tuple(map(tuple, facts["tokens"])), tuple(facts["finish"])
        facts = Sampled(**{**facts, "tokens": tokens, "finish": finish, "logprobs": (), "turns": (), "failures": ()})
    return [unpack_example(example) for example in data["examples"]], data["texts"], facts


def pack_score(score: Score) -> dict[str, Any]:
    return {"reward": score.reward, "parts": dict(score.parts), **score.remarks}


def read_ready(data: Mapping[str, Any]) -> bool:
    """The reply to the setup, whether a function asks for `Sampled`; raises the worker's `UserError`."""
    match data:
        case {"ready": True, "wants_samples": bool(wanted), **rest} if not rest:
            return wanted
        case {"user_error": str(message), **rest} if not rest:
            raise UserError(" ".join(message.split()))
    raise _invalid(data)


def unpack_reply(data: Mapping[str, Any], rows: int) -> At | Failure | list[Score]:
    """The reply to a batch of this many rows; raises the worker's `UserError`."""
    match data:
        case {"at": str(function), "row": row, **rest} if not rest and _is_row(row, rows):
            return At(function=function, row=row)
        case {"failed": str(message), "row": row, "traceback": str(text), **rest} if not rest and _is_row(row, rows):
            return Failure(message=" ".join(message.split()), row=row, traceback=text)
        case {"user_error": str(message), **rest} if not rest:
            raise UserError(" ".join(message.split()))
        case {"scores": list(scores), **rest} if not rest:
            if len(scores) != rows:
                raise ChildGarbled(f"{len(scores)} scores for {rows} completions")
            return [_unpack_score(score, row) for row, score in enumerate(scores)]
    raise _invalid(data)


def _invalid(data: Mapping[str, Any]) -> ChildGarbled:
    if data == {"forked": True}:
        return ChildGarbled("the reply of a forked copy")
    return ChildGarbled(f"an object with the keys {sorted(data)!s:.60}, which is not a reply")


def _unpack_score(data: object, row: int) -> Score:
    match data:
        case {"reward": reward, "parts": dict(parts), **rest} if rest.keys() <= {"extra", "logged"}:
            extra: Any = rest.get("extra", {})
            logged: Any = rest.get("logged", {})
            numbers = all(type(value) in (int, float) and is_reward(value) for value in (reward, *parts.values()))
            if numbers and are_extras(extra) and are_metrics(logged):
                plain = {name: float(value) for name, value in parts.items()}
                return Score(reward=float(reward), parts=plain, extra=extra, logged=logged)
    raise ChildGarbled(f"something else than a score for row {row}")


def _is_row(value: object, rows: int) -> bool:
    return value is None or (type(value) is int and 0 <= value < rows)


def pack_example(example: Example) -> dict[str, Any]:
    """As JSON."""
    return {
        "id": example.id,
        "prompt": example.plain_prompt,
        "answer": example.answer,
        "columns": dict(example.columns),
        "twin": example.twin,
    }


def unpack_example(data: Mapping[str, Any]) -> Example:
    prompt = data["prompt"]
    messages = prompt if isinstance(prompt, str) else tuple(map(Message.of, prompt))
    return Example(id=data["id"], prompt=messages, answer=data["answer"], columns=data["columns"], twin=data["twin"])
