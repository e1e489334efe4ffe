"""Completions of the start model and of every method for the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whet.report.comparison.methods import START_COLOUR, Values, style
from whet.report.markup import Markup, element, join
from whet.report.numbers import number

SHOWN = 24  # prompts on the page; all of them are in samples/
MARKS = {"won": "ok", "tied": "even", "lost": "warning"}  # and how the page shades them
SCORES = (("gold", "gold"), ("score", "score by the task"), ("proxy", "proxy"), ("judge", "judge"))

Rows = Sequence[Mapping[str, Any]]


def side_by_side(results: Values, start: Rows, methods: Sequence[tuple[Values, Rows]]) -> Markup:
    """The first prompts with the first completion of everybody."""
    firsts = [row for row in start if row["sample"] == 0]
    if not firsts:
        return join()
    others = [(method, {row["id"]: row for row in rows if row["sample"] == 0}) for method, rows in methods]
    margin = results["settings"]["tie_margin"]
    cards = []
    for row in firsts[:SHOWN]:
        answers = [_answer(results["start_name"], START_COLOUR, row, "")]
        for method, own in others:
            if row["id"] in own:
                colour = style(method["colour"])["color"]
                answers.append(_answer(method["method"], colour, own[row["id"]], _mark(own[row["id"]], row, margin)))
        prompt = element("div", row["prompt"], class_="text")
        cards.append(
            element(
                "div",
                element("div", prompt, class_="group-prompt"),
                element("div", *answers, class_="answers"),
                class_="card group",
            )
        )
    lead = f"The first {len(cards)} of {len(firsts)} held-out prompts, one completion of each model"
    lead += "; methods with their first seed." if methods else "."
    return element(
        "section", element("h2", "Side by side"), element("p", lead, class_="lead"), *cards, class_="contest"
    )


def _answer(name: str, colour: str, row: Mapping[str, Any], mark: str) -> Markup:
    known = [(label, row[key]) for key, label in SCORES if row.get(key) is not None]
    scores = [element("span", f"{label} {number(value)}") for label, value in known]
    verdict = element("span", mark, class_=f"badge {MARKS[mark]}") if mark else ""
    cut = element("span", "cut off", class_="end") if row["finish"] == "length" else ""
    heading = element(
        "div",
        element("span", class_="swatch", style=f"background: {colour}"),
        element("b", name),
        verdict,
        element("span", f"{row['tokens']} tokens", class_="small"),
        class_="who",
    )
    body = element("div", row["text"].strip(), class_="text" if row["text"].strip() else "text empty")
    return element("div", heading, body, cut, element("div", *scores, class_="small scores"), class_="reply")


def _mark(row: Mapping[str, Any], start: Mapping[str, Any], margin: float) -> str:
    """What the judge says of the completion beside the start model's; nothing without a judge."""
    if row["judge"] is None or start["judge"] is None:
        return ""
    difference = row["judge"] - start["judge"]
    if abs(difference) <= margin:
        return "tied"
    return "won" if difference > 0 else "lost"
