"""What reward functions are called with: TRL's keywords, the columns of the task, and callbacks that log."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.records import Example, Sampled

ALWAYS_OFFERED = ("prompts", "completions", "answer")
OF_SAMPLES = ("completion_ids", "token_counts", "finish", "trainer_state")  # where completions were sampled
OURS = ("token_counts", "finish")  # not in TRL: a column of this name comes first
LOGGING = ("log_extra", "log_metric")
MOST_NAMES = 64  # of extra columns and of metrics, each
NAME_CHARACTERS = 100
EXTRA_CHARACTERS = 2000  # of a value in an extra column; the rest is left out


class NotLoggable(ValueError):
    """A reward function logged something that is no metric or no column."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerState:
    """The part of transformers' TrainerState that exists here."""

    global_step: int  # finished steps
    max_steps: int  # of the run


@dataclass(slots=True)
class Logged:
    """What the functions of one batch log."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def callbacks(self) -> dict[str, Callable[..., None]]:
        """`log_extra(column, values)` and `log_metric(name, value)`, as in TRL.

        Functions, not methods: arguments are deep-copied, which would copy the object of a method.
        """

        def log_extra(column: str, values: Iterable[Any]) -> None:
            self.columns[_name(column, self.columns)].extend(plain_value(value) for value in values)

        def log_metric(name: str, value: float) -> None:
            number = float(value)
            if not math.isfinite(number):
                raise NotLoggable(f"log_metric({name!r}, {number}): the value must be a finite number")
            self.metrics[_name(name, self.metrics)].append(number)

        return {"log_extra": log_extra, "log_metric": log_metric}

    def extras(self, rows: int) -> list[dict[str, Any]]:
        """The extra columns row by row."""
        for name, values in self.columns.items():
            if len(values) != rows:
                raise NotLoggable(f"log_extra got {len(values)} values of {name!r} for {rows} completions")
        return [{name: values[row] for name, values in self.columns.items()} for row in range(rows)]

    def means(self) -> dict[str, float]:
        """The mean of each metric over the calls that logged it."""
        return {name: math.fsum(values) / len(values) for name, values in self.metrics.items()}


def offered_to_all(examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> dict[str, Any]:
    """All arguments but the callbacks: lists with one entry per row, None where a row lacks the column."""
    names = dict.fromkeys(name for example in examples for name in example.columns)
    columns = {name: [example.columns.get(name) for example in examples] for name in names}
    pairs = zip(examples, texts, strict=True)
    facts = {} if sampled is None else _of_samples(sampled)
    unclaimed = {name: values for name, values in facts.items() if name not in OURS or name not in columns}
    return {
        **columns,
        **unclaimed,
        "answer": [example.answer for example in examples],
        "prompts": [example.plain_prompt for example in examples],
        "completions": [
            text if isinstance(example.prompt, str) else [{"role": "assistant", "content": text}]
            for example, text in pairs
        ],
    }


def plain_value(value: object) -> Any:
    """A value of an extra column as JSON; what is no JSON value is written as text."""
    if value is None or isinstance(value, bool | int):
        return value if value is None or abs(value) <= 2**63 else str(value)[:EXTRA_CHARACTERS]
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    return str(value)[:EXTRA_CHARACTERS]


def are_extras(columns: object) -> bool:
    """Whether this is a row that `Logged.extras` could have given."""
    return _are_named(columns) and all(_is_plain(value) for value in columns.values())  # type: ignore[attr-defined]


def are_metrics(values: object) -> bool:
    """Whether this is what `Logged.means` could have given."""
    return _are_named(values) and all(
        type(value) in (int, float) and math.isfinite(value)
        for value in values.values()  # type: ignore[attr-defined]
    )


def _of_samples(sampled: Sampled) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "token_counts": [len(ids) for ids in sampled.tokens],
        "finish": list(sampled.finish),
        "trainer_state": TrainerState(global_step=sampled.step, max_steps=sampled.steps),
    }
    if all(token >= 0 for ids in sampled.tokens for token in ids):  # a server may not tell the ids
        facts["completion_ids"] = [list(ids) for ids in sampled.tokens]
    return facts


def _name(name: object, taken: Mapping[str, object]) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS or not name.isprintable():
        raise NotLoggable(f"the name {name!r:.60} must be printable text of 1 to {NAME_CHARACTERS} characters")
    if name not in taken and len(taken) >= MOST_NAMES:
        raise NotLoggable(f"{name!r} is one name too many: at most {MOST_NAMES} can be logged")
    return name


def _are_named(values: object) -> bool:
    return (
        isinstance(values, dict)
        and len(values) <= MOST_NAMES
        and all(isinstance(name, str) and len(name) <= NAME_CHARACTERS for name in values)
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= EXTRA_CHARACTERS
    return value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))
