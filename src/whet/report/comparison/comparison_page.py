"""comparison.md and comparison.html, a self-contained file, from the files of a comparison."""

import base64
from typing import Any

from whet.evaluate.win_rates import WIN, outcome
from whet.report.comparison.comparison_curves import curves_figure
from whet.report.comparison.contest_figures import contest_figures
from whet.report.comparison.contest_view import contest_view
from whet.report.comparison.entries import START_COLOUR, ComparisonView, Values, document, style
from whet.report.comparison.sweep_results import sweep_view
from whet.report.comparison.verdict import measured_methods
from whet.report.formatting import render
from whet.runs.experiment_directories import START, ComparisonDirectory

CAPTIONS = {
    "overview": ("Who is better", "Reward, wins against the start model and length; the best method at the top."),
    "frontier": ("Reward against KL", "How much each method gained for how far it went from the start model."),
    "overoptimisation": (
        "Over-optimisation",
        "Dashed is what the reward model promises, solid what it is worth: where they part, the reward model is being "
        "exploited. On the left the start model's own best-of-n, with n above the points.",
    ),
    "curves": ("Training curves", "What the runs logged while they trained."),
}
SHOWN = 24  # prompts on the page; samples/ has all of them
SCORES = {"gold": "gold", "score": "score by the task", "proxy": "proxy", "judge": "judge"}


def write_page(directory: ComparisonDirectory) -> ComparisonView:
    """Writes figures, comparison.md and comparison.html from comparison.json; returns the view.

    Completions are shown only if their files exist.
    """
    results = directory.results()
    is_contest = results["kind"] == "contest"
    comparison = contest_view(results) if is_contest else sweep_view(results)
    pictures = contest_figures(results) if is_contest else {}
    curves = curves_figure(comparison)
    pictures |= {"curves": curves} if curves is not None else {}
    prompts, lead = _side_by_side(directory, results) if is_contest else ([], "")
    where = ", all completions in samples/" if prompts else ", the completions were left out"
    page = render(
        "comparison.html",
        title=comparison.title,
        facts=comparison.facts,
        comparison=comparison,
        pictures=[
            {"title": CAPTIONS[name][0], "caption": CAPTIONS[name][1], "data": base64.b64encode(picture).decode()}
            for name, picture in pictures.items()
        ],
        prompts=prompts,
        prompts_lead=lead,
        where=where if is_contest else "",
    )
    captions = [(CAPTIONS[name][0], directory.picture_path(name).name) for name in pictures]
    directory.write_report(page=page, table=document(comparison, captions), pictures=pictures)
    return comparison


def _side_by_side(directory: ComparisonDirectory, results: Values) -> tuple[list[dict[str, Any]], str]:
    """The first prompts with one completion of every model; for a method, of its first finished seed."""
    start = _first_samples(directory, START)
    others = []
    for method in measured_methods(results):
        name = next(seed["samples"] for seed in method["seeds"] if seed["failure"] is None)
        others.append((method, _first_samples(directory, name)))
    margin = results["settings"]["tie_margin"]
    prompts = []
    for row in list(start.values())[:SHOWN]:
        replies = [_reply(results["start_name"], START_COLOUR, row, "")]
        for method, own in others:
            if row["id"] in own:
                mark = _mark(own[row["id"]], row, margin)
                replies.append(_reply(method["method"], style(method["colour"])["color"], own[row["id"]], mark))
        prompts.append({"text": row["prompt"], "replies": replies})
    lead = f"The first {len(prompts)} of {len(start)} held-out prompts, one completion of each model"
    return prompts, lead + ("; methods with their first seed." if any(own for _, own in others) else ".")


def _first_samples(directory: ComparisonDirectory, name: str) -> dict[str, Values]:
    """Prompt id → first completion."""
    return {row["id"]: row for row in directory.samples(name) if row["sample"] == 0}


def _reply(name: str, shade: str, row: Values, mark: str) -> dict[str, Any]:
    scores = [(label, row[key]) for key, label in SCORES.items() if row[key] is not None]
    return {"name": name, "shade": shade, "row": row, "mark": mark, "scores": scores}


def _mark(row: Values, start: Values, margin: float) -> str:
    """The judge's verdict on a completion against the start model's; empty without a judge."""
    if row["judge"] is None or start["judge"] is None:
        return ""
    found = outcome(row["judge"], start["judge"], tie_margin=margin)
    return "tied" if 0 < found < WIN else "won" if found else "lost"
