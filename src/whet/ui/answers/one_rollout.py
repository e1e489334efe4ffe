"""One rollout, token by token: whatever its row holds for each sampled token; and short texts of several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import compress
from typing import Any

from whet.errors import RunFailed, UserError
from whet.ui.answers.query import Query
from whet.ui.answers.sources import Sources

TOKENS = 20_000  # of a rollout that are told
PIECE = 2_000  # characters of a token
TEXT = 200_000  # characters of a prompt or completion
TURNS = 1_000  # of a conversation
EXCERPT = 300  # characters of a text in a list
PLACES = 60  # excerpts of one answer
# Fields that are told by themselves; every other one is told as a column of tokens or as a remark.
KNOWN = (
    "group",
    "id",
    "prompt",
    "text",
    "tokens",
    "mask",
    "finish",
    "version",
    "reward",
    "parts",
    "trained",
    "advantage",
    "turns",
)
# What whet.train.online.token_record writes of single tokens in another form than one value for each.
SPELLED = ("pieces", "top_tokens", "top_logprobs", "top_pieces")
CLIPPED = "clipped"  # places of tokens


def whole(sources: Sources, query: Query) -> dict[str, Any]:
    """The rollout with its tokens and with the others of its group; its place is given, or its row in the step."""
    files = sources.rollouts(sources.library.run(query.text("run")))
    step = query.number("step")
    listed = files.summaries(step)
    if query.values.get("row"):
        place = query.number("row")
        if place >= len(listed):
            raise UserError(f"step {step} has {len(listed):,} rollouts, and none at row {place}")
        group, number = listed[place].group, listed[place].number
    else:
        group, number = query.number("group"), query.number("number")
    row = files.row(step, group, number)
    siblings = [asdict(one) for one in listed if one.group == group]
    return {"step": step, "group": group, "number": number, "siblings": siblings, **told(row)}


def excerpts(sources: Sources, query: Query) -> dict[str, Any]:
    """The beginnings of prompt and completion of rollouts at `STEP-GROUP-NUMBER,…`."""
    files = sources.rollouts(sources.library.run(query.text("run")))
    found: dict[str, dict[str, Any]] = {}
    for place in query.text("places").split(",")[:PLACES]:
        parts = place.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
            raise UserError("places must be STEP-GROUP-NUMBER")
        try:
            row = files.row(*map(int, parts))
        except (UserError, RunFailed) as error:
            found[place] = {"problem": str(error)}
            continue
        texts = {name: str(row.get(name, ""))[:EXCERPT] for name in ("prompt", "text")}
        found[place] = {**texts, "advantage": _number(row.get("advantage"))}
    return {"excerpts": found}


def told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the page; lists with a value for each token are columns of the sampled ones."""
    tokens, mask = _list(row.get("tokens")), [one is True for one in _list(row.get("mask"))]
    sampled = sum(mask)
    columns = {}
    for name, values in row.items():
        if name not in (*KNOWN, *SPELLED) and isinstance(values, list):
            aligned = _marked(values, sampled) if name == CLIPPED else _aligned(values, mask)
            if aligned is not None:
                columns[name] = [_number(value) for value in aligned[:TOKENS]]
    if not any(name.startswith("advantage") for name in columns) and _number(row.get("advantage")) is not None:
        columns["advantage"] = [row["advantage"]] * min(sampled, TOKENS)
    left_out = sampled - TOKENS if sampled > TOKENS else 0
    remarks = {
        name: value if isinstance(value, int | float | bool) else str(value)[:PIECE]
        for name, value in row.items()
        if name not in (*KNOWN, *SPELLED, *columns) and not isinstance(value, list | dict)
    }
    return {
        "id": str(row.get("id", "")),
        **{name: _cut(str(row.get(name, "")), TEXT) for name in ("prompt", "text", "finish")},
        **{name: _number(row.get(name)) for name in ("reward", "advantage", "version")},
        "trained": row.get("trained") is True,
        "parts": {str(name): _number(value) for name, value in _mapping(row.get("parts")).items()},
        "ids": [one if isinstance(one, int) else None for one in _aligned(tokens, mask) or []][:TOKENS],
        "pieces": _pieces(row, sampled),
        "turns": [_turn(one) for one in _list(row.get("turns")) if isinstance(one, dict)][:TURNS],
        "columns": columns,
        "alternatives": _alternatives(row, mask),
        "remarks": remarks,
        "tokens_left_out": left_out,
    }


def _turn(given: Mapping[str, Any]) -> dict[str, Any]:
    """How many tokens the policy sampled in a turn, and what its environment answered."""
    tokens = given.get("tokens")
    return {
        "tokens": tokens if type(tokens) is int and tokens >= 0 else 0,
        "observation": _cut(str(given.get("observation", "")), PIECE),
        "reward": _number(given.get("reward")),
    }


def _aligned(values: Sequence[Any], mask: Sequence[bool]) -> list[Any] | None:
    """The values of the sampled tokens, from a list over them or over all tokens; None if it is neither."""
    if mask and len(values) == len(mask):
        return list(compress(values, mask))
    return list(values) if len(values) == sum(mask) else None


def _pieces(row: Mapping[str, Any], sampled: int) -> list[str] | None:
    """The text of each sampled token, "" for a special one; by character where that fits; else None."""
    given = row.get("pieces")
    if isinstance(given, list) and len(given) == sampled:
        return [_cut(str(piece), PIECE) for piece in given[:TOKENS]]
    text, ended = str(row.get("text", "")), 1 if row.get("finish") == "stop" else 0
    return [*text, *[""] * ended][:TOKENS] if len(text) + ended == sampled else None


def _marked(places: Sequence[Any], count: int) -> list[bool] | None:
    """Which of the tokens are named; None if anything else is."""
    if not all(type(place) is int and 0 <= place < count for place in places):
        return None
    named = set(places)
    return [place in named for place in range(count)]


def _alternatives(row: Mapping[str, Any], mask: Sequence[bool]) -> list[list[list[Any]]] | None:
    """For each sampled token the likeliest ones in its place, as text and log-prob."""
    texts, logprobs = (_aligned(_list(row.get(name)), mask) for name in ("top_pieces", "top_logprobs"))
    if not texts or not logprobs:
        return None
    return [
        [[_cut(str(text), PIECE), _number(logprob)] for text, logprob in zip(_list(some), _list(their), strict=False)]
        for some, their in zip(texts[:TOKENS], logprobs[:TOKENS], strict=True)
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | bool | None:
    is_number = type(value) in (int, float) and -math.inf < value < math.inf
    return value if is_number or isinstance(value, bool) else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
