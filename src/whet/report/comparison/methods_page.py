"""comparison.html of a contest of methods: one file that needs nothing else, made from what judging left on disk."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from whet.errors import UserError
from whet.report.comparison.method_figures import curves_figure, frontier_figure, overview_figure
from whet.report.comparison.methods import START_COLOUR, Values, judged_methods, style
from whet.report.comparison.methods_samples import side_by_side
from whet.report.comparison.methods_table import Cell, document, failures, header, legend, method_row, start_row
from whet.report.comparison.methods_verdict import verdict
from whet.report.comparison.overoptimisation import overoptimisation_figure
from whet.report.markup import Markup, element, join, verbatim
from whet.runs.judged import START, JudgedDirectory

# Pictures are ours and come as data; nothing else is loaded and nothing runs, whatever a completion says.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
PARTS = ("title", "task", "settings", "truth", "start", "methods", "best_of_n", "way", "path", "curves")
CAPTIONS = {
    "overview": ("Who is better", "Reward, wins against the start model and length; the best method at the top."),
    "frontier": ("Reward against KL", "How much each method gained for how far it went from the start model."),
    "overoptimisation": (
        "Over-optimisation",
        "Dashed is what the reward model promises, solid what it is worth: where they part, the reward model is being "
        "exploited. On the left the start model's own best-of-n, with n above the points.",
    ),
    "curves": ("On the way", "What the runs logged while they trained."),
}


def write_methods_page(directory: JudgedDirectory) -> dict[str, bytes]:
    """Writes the pictures, comparison.md and comparison.html into the directory; returns the pictures by name.

    Without the files of completions the page shows none.
    """
    results = directory.results()
    absent = [part for part in PARTS if part not in results]
    if absent:
        raise UserError(
            f"{directory.results_path} has no {absent[0]!r}: it is no comparison of methods; judge them again"
        )
    drawn = {
        "overview": overview_figure(results),
        "frontier": frontier_figure(results),
        "overoptimisation": overoptimisation_figure(results),
        "curves": curves_figure(results),
    }
    pictures = {name: picture for name, picture in drawn.items() if picture is not None}
    captions = [(CAPTIONS[name][0], directory.picture_path(name).name) for name in pictures]
    names = [name for name in (START, *_shown(results)) if directory.has_samples(name)]
    samples = {name: directory.samples(name) for name in names}
    directory.write_report(page=_page(results, pictures, samples), table=document(results, captions), pictures=pictures)
    return pictures


def _shown(results: Values) -> dict[str, Values]:
    """What the files of completions that are shown are called, one for each method: of its first finished seed."""
    return {
        next(seed["samples"] for seed in method["seeds"] if seed["failure"] is None): method
        for method in judged_methods(results)
    }


def _page(results: Values, pictures: Mapping[str, bytes], samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{results['title']} · whet comparison"),
        element("style", verbatim(_part("page.css") + _part("methods.css"))),
    )
    main = element(
        "main",
        element("h1", results["title"]),
        element("div", *(element("span", fact) for fact in _facts(results)), class_="facts"),
        element("div", *(element("p", sentence) for sentence in verdict(results)), class_="card verdict"),
        _table(results),
        *(_picture(name, picture) for name, picture in pictures.items()),
        _side_by_side(results, samples),
        element("h2", "How it was measured"),
        element("ul", *(element("li", line) for line in (*legend(results), *failures(results))), class_="card notes"),
        element("footer", _footer(has_samples=bool(samples))),
    )
    return join(verbatim("<!doctype html>\n"), element("html", head, element("body", main), lang="en"))


def _side_by_side(results: Values, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    shown = [(method, samples[name]) for name, method in _shown(results).items() if name in samples]
    return side_by_side(results, samples.get(START, ()), shown)


def _footer(*, has_samples: bool) -> str:
    where = "all completions in samples/" if has_samples else "the completions were left out"
    return f"Written by whet; all numbers are in final_results.json, {where}."


def _facts(results: Values) -> list[str]:
    count = len(results["methods"])
    seeds = sorted({seed["seed"] for method in results["methods"] for seed in method["seeds"]})
    return [
        f"task {results['task']}",
        f"{count} method{'s' if count > 1 else ''}, all from {results['start_name']}",
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        f"{results['prompts']} held-out prompts",
    ]


def _table(results: Values) -> Markup:
    heads = element("tr", *(element("th", name, class_=_side(index)) for index, name in enumerate(header(results))))
    rows = [_row(start_row(results), START_COLOUR)]
    rows += [_row(method_row(results, method), style(method["colour"])["color"]) for method in results["methods"]]
    return element("div", element("table", heads, *rows), class_="card table contest")


def _row(cells: Sequence[Cell], colour: str) -> Markup:
    """The first cell carries the colour that the method has in every picture."""
    parts = []
    for index, cell in enumerate(cells):
        dot = element("span", class_="swatch", style=f"background: {colour}") if index == 0 else ""
        small = [element("div", line, class_="small") for line in cell.small]
        parts.append(
            element("td", dot, element("b", cell.main) if index == 0 else cell.main, *small, class_=_side(index))
        )
    return element("tr", *parts)


def _side(index: int) -> str | None:
    return "value" if index else None


def _picture(name: str, picture: bytes) -> Markup:
    title, caption = CAPTIONS[name]
    source = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    return join(
        element("h2", title),
        element("p", caption, class_="lead"),
        element("div", element("img", src=source, alt=f"{title}: {caption}"), class_="picture"),
    )


def _part(name: str) -> str:
    return (resources.files("whet.report") / "template" / name).read_text("utf-8")
