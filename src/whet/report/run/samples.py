"""Samples on the page: held-out answers before and after training, and rollouts token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from whet.report.markup import Markup, element, join
from whet.report.numbers import number, signed

Row = Mapping[str, Any]

CHANGED, SAME = 40, 20  # examples that are shown, of those whose mark changed and of the others
GROUPS, ROLLOUTS = 2, 8  # groups that are shown, and rollouts of each
HEAT = 6  # shades; the last one means a log-prob of -3 (5 %) or less
COLDEST = -3.0


def before_after(first: Sequence[Row], last: Sequence[Row], *, first_step: int, last_step: int) -> Markup:
    """The greedy answers of two evaluations side by side."""
    before = {row["id"]: row for row in first if row["sample"] == 0}
    pairs = [(before[row["id"]], row) for row in last if row["sample"] == 0 and row["id"] in before]
    if not pairs:
        return join()
    changed = [pair for pair in pairs if pair[0]["correct"] != pair[1]["correct"]]
    same = [pair for pair in pairs if pair[0]["correct"] == pair[1]["correct"]]
    shown = {pair[1]["id"] for pair in changed[:CHANGED] + same[:SAME]}
    learned = sum(after["correct"] for _, after in changed)
    count = (
        f"{len(shown)} of {len(pairs)} held-out examples"
        if len(shown) < len(pairs)
        else f"{len(pairs)} held-out examples"
    )
    lead = f"{count}, answered greedily. {learned} became right, {len(changed) - learned} became wrong."
    heads = [element("th", name) for name in ("Prompt", f"Step {first_step}", f"Step {last_step}")]
    rows = [_pair(*pair) for pair in pairs if pair[1]["id"] in shown]
    return element(
        "section",
        element("h2", "Before and after"),
        element("p", lead, class_="lead"),
        element("label", element("input", type="checkbox", id="changed-only"), "changed only", class_="filter"),
        element("div", element("table", element("tr", *heads), *rows), class_="card table"),
        class_="samples",
    )


def last_rollouts(rows: Sequence[Row], *, step: int) -> Markup:
    """A few groups of one step: reward, its parts, advantage, and every token shaded by its log-prob."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["id"])]
    # A group whose rewards differ shows more; sorted() is stable, so the order is kept otherwise.
    groups = sorted(groups, key=lambda group: len({row["reward"] for row in group}) == 1)[:GROUPS]
    if not groups:
        return join()
    lead = "The stronger the shade, the less likely the token was under the sampler; point at one for its log-prob."
    return element(
        "section",
        element("h2", f"Rollouts of step {step}"),
        element("p", lead, class_="lead"),
        *(_group(group) for group in groups),
    )


def heat(logprob: float) -> int:
    """The shade of a token: 0 for certain, `HEAT` for COLDEST or less."""
    return round(HEAT * min(1.0, logprob / COLDEST)) if logprob < 0 else 0


def _pair(before: Row, after: Row) -> Markup:
    prompt = element(
        "td",
        element("div", after["prompt"], class_="text"),
        element("div", "expected ", element("code", after["answer"]), class_="expected"),
    )
    state = "same" if before["correct"] == after["correct"] else "changed"
    return element("tr", prompt, *(element("td", _answer(row)) for row in (before, after)), class_=state)


def _answer(row: Row) -> Markup:
    right = bool(row["correct"])
    mark = element(
        "div",
        "✓" if right else "✗",
        class_=f"mark {'right' if right else 'wrong'}",
        title="right" if right else "wrong",
    )
    cut = element("span", "cut off", class_="end") if row["finish"] == "length" else ""
    return element("div", mark, element("div", _body(row["text"]), cut), class_="answer")


def _body(said: str) -> Markup:
    return element("div", said, class_="text" if said.strip() else "text empty")


def _group(group: Sequence[Row]) -> Markup:
    rewards = [row["reward"] for row in group]
    more = f", {ROLLOUTS} shown" if len(group) > ROLLOUTS else ""
    heading = element(
        "div",
        element("div", group[0]["prompt"], class_="text"),
        element(
            "div", f"{len(group)} rollouts, mean reward {number(sum(rewards) / len(rewards))}{more}", class_="expected"
        ),
        class_="group-prompt",
    )
    parts = list(dict.fromkeys(name for row in group for name in row["parts"]))
    names = [element("th", name, class_="number") for name in ("reward", "advantage", *parts, "tokens")]
    rows = [_rollout(row, parts) for row in islice(group, ROLLOUTS)]
    table = element("table", element("tr", *names, element("th", "completion")), *rows)
    return element("div", heading, element("div", table, class_="table"), class_="card group")


def _rollout(row: Row, parts: Sequence[str]) -> Markup:
    sign = "up" if row["advantage"] > 0 else "down" if row["advantage"] < 0 else None
    values = [number(row["parts"][name]) if name in row["parts"] else "" for name in parts]
    cells = [
        element("td", element("b", number(row["reward"])), class_="number"),
        element("td", element("span", signed(row["advantage"]), class_=sign), class_="number"),
        *(element("td", value, class_="number") for value in (*values, str(sum(row["mask"])))),
    ]
    cut = element("span", "cut off", class_="end") if row["finish"] == "length" else ""
    return element("tr", *cells, element("td", *_tokens(row), cut, class_="said"))


def _tokens(row: Row) -> list[Markup]:
    """Shaded text where the text of each token is known, else the text above a strip of shaded tokens."""
    chosen = zip(row["tokens"], row["mask"], row["logprobs"], strict=True)
    tokens = [(token, logprob) for token, picked, logprob in chosen if picked]
    pieces = _pieces(row, len(tokens))
    if pieces is None:
        cells = [element("span", class_=f"h{heat(lp)}", title=_label(lp, f"token {token}: ")) for token, lp in tokens]
        return [_body(row["text"]), element("div", *cells, class_="strip")]
    spans = [_token(piece, logprob) for piece, (_, logprob) in zip(pieces, tokens, strict=True)]
    return [element("div", *spans, class_="text")]


def _pieces(row: Row, count: int) -> Sequence[str] | None:
    """The text of each token: as recorded, or by characters where the numbers match; "" is a special token."""
    if "pieces" in row:
        return list(row["pieces"])
    ended = 1 if row["finish"] == "stop" else 0
    return [*row["text"], *[""] * ended] if len(row["text"]) + ended == count else None


def _token(piece: str, logprob: float) -> Markup:
    if not piece:
        return element("span", "end", class_=f"end h{heat(logprob)}", title=_label(logprob))
    return element("span", piece.replace("\n", "⏎\n"), class_=f"token h{heat(logprob)}", title=_label(logprob))


def _label(logprob: float, prefix: str = "") -> str:
    return f"{prefix}log-prob {logprob:.3f} ({100 * math.exp(min(0.0, logprob)):.1f} %)".replace("-0.000", "0.000")
