"""data.html: a survey as one file that needs nothing else. Texts of the data are shown, never run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from whet.data.explore import Survey
from whet.errors import RunFailed
from whet.report.dataset.survey import length_rows, overview
from whet.report.dataset.survey_figure import survey_figure
from whet.report.dataset.survey_panels import Bars, Histogram, Panel, survey_panels
from whet.report.markup import Markup, element, join, verbatim
from whet.report.numbers import number, percent
from whet.report.run.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, ticks
from whet.runs.logs import reason, write_atomic

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
.bar { fill: var(--c); opacity: .75; } .name { font: 12px var(--sans); fill: var(--ink); }
.zero { stroke: var(--ink); stroke-dasharray: 3 3; } .places { margin: 0 0 14px; padding-left: 20px; font-size: 13px; }
.survey { margin-top: 26px; padding: 22px 26px; } .sample { margin-top: 14px; padding: 18px 22px; }
.sample .text { max-height: 22em; margin: 4px 0 14px; }
"""


def write_survey(survey: Survey, found: Mapping[str, Any], directory: Path, *, title: str) -> tuple[Path, Path]:
    """Writes data.png and data.html into the directory; returns their paths."""
    panels = survey_panels(survey)
    subtitle = f"{survey.rows:,} {survey.kind}   format {survey.format}   sha256 {survey.digest[:12]}"
    picture, page = directory / "data.png", directory / "data.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(picture, survey_figure(panels, title=title, subtitle=subtitle))
        write_atomic(page, survey_page(found, panels, title=title).encode())
    except OSError as error:
        raise RunFailed(f"cannot write into {directory}: {reason(error)}") from error
    return picture, page


def survey_page(found: Mapping[str, Any], panels: Sequence[Panel], *, title: str) -> Markup:
    """The whole page."""
    style = (resources.files("whet.report") / "template" / "page.css").read_text("utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · whet data"),
        element("style", verbatim(style + STYLE)),
    )
    about = [f"{found['rows']:,} {found['kind']}", f"format {found['format']}", f"sha256 {found['digest'][:12]}"]
    main = element(
        "main",
        element("h1", title),
        element("div", *(element("span", fact) for fact in about), class_="facts"),
        element("div", _definitions(overview(found)), class_="card survey"),
        element("h2", "Distributions"),
        element("p", "The outermost bins also hold the few texts that lie beyond them.", class_="lead"),
        element("div", *(_chart(panel) for panel in panels), class_="charts"),
        _lengths(length_rows(found)),
        _left_out(found),
        _samples(found["samples"]),
        element("footer", "Written by whet data explore."),
    )
    return join(verbatim("<!doctype html>\n"), element("html", head, element("body", main), lang="en"))


def _definitions(rows: Sequence[tuple[str, str]]) -> Markup:
    return element("dl", *(part for name, told in rows for part in (element("dt", name), element("dd", told))))


def _lengths(rows: Sequence[Sequence[str]]) -> Markup:
    header, *body = rows
    head = element(
        "tr", *(element("th", name, class_="number" if place else None) for place, name in enumerate(header))
    )
    lines = [
        element("tr", *(element("td", cell, class_="number" if place else None) for place, cell in enumerate(row)))
        for row in body
    ]
    return join(
        element("h2", "Lengths"),
        element("div", element("table", element("thead", head), element("tbody", *lines)), class_="card table"),
    )


def _line(cell: str, row: Sequence[str]) -> Markup:
    return element("tr", *(element(cell, told, class_="number" if place else None) for place, told in enumerate(row)))


def _left_out(found: Mapping[str, Any]) -> Markup:
    if not found["skipped"]:
        return join()
    parts: list[Markup] = []
    for why, places in found["skipped_at"].items():
        count = found["skipped"][why]
        more = "" if count == len(places) else f", of which the first {len(places)}"
        parts.append(element("h3", f"{count:,} {why}{more}"))
        parts.append(element("ul", *(element("li", place) for place in places), class_="places quiet"))
    return join(element("h2", "Left out"), element("div", *parts, class_="card sample"))


def _samples(samples: Sequence[Mapping[str, Any]]) -> Markup:
    cards = [
        element(
            "div",
            element("div", f"{sample['id']}, prompt", class_="eyebrow"),
            element("div", sample["prompt"], class_="text"),
            *(
                part
                for name, said in sample["answers"]
                for part in (element("div", name, class_="eyebrow"), element("div", said, class_="text"))
            ),
            class_="card sample",
        )
        for sample in samples
    ]
    return join(element("h2", "Samples"), *cards)


def _chart(panel: Panel) -> Markup:
    heading = element(
        "figcaption",
        element("span", panel.title, class_="chart-title"),
        element("span", panel.unit, class_="chart-unit"),
    )
    legend, parts = (_legend(panel), _steps(panel)) if isinstance(panel, Histogram) else (join(), _bars(panel))
    size = f"0 0 {WIDTH} {HEIGHT}"
    drawing = element("svg", *parts, viewBox=size, role="img", aria_label=f"{panel.title}, {panel.unit}")
    return element("figure", heading, legend, drawing, class_="chart")


def _legend(panel: Histogram) -> Markup:
    keys = [
        element("span", f"{series.label}, median {number(series.median)}", class_=f"key colour{series.colour % 5}")
        for series in panel.series
    ]
    return element("div", *keys, class_="legend")


def _steps(panel: Histogram) -> list[Markup]:
    end = panel.start + panel.width * panel.bins
    highest = 1.06 * max(share for series in panel.series for share in series.shares)

    def x(value: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (value - panel.start) / (end - panel.start):.1f}"

    def y(share: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share / highest:.1f}"

    parts = [_level(level, y(level)) for level in ticks(0, highest, 4)]
    for value in ticks(panel.start, end, 6):
        parts.append(element("text", number(value), class_="tick", x=x(value), y=str(HEIGHT - 5), text_anchor="middle"))
    for series in panel.series:
        corners = [
            f"{x(panel.start + panel.width * edge)},{y(share)}"
            for place, share in enumerate(series.shares)
            for edge in (place, place + 1)
        ]
        outline = " ".join([f"{x(panel.start)},{y(0)}", *corners, f"{x(end)},{y(0)}"])
        drawn = [element("polygon", class_="band", points=outline), element("polyline", class_="curve", points=outline)]
        parts.append(element("g", *drawn, class_=f"colour{series.colour % 5}"))
    if panel.zero and panel.start < 0 < end:
        parts.append(element("line", class_="zero", x1=x(0), x2=x(0), y1=str(TOP), y2=str(HEIGHT - BOTTOM)))
    return parts


def _level(share: float, y: str) -> Markup:
    line = element("line", class_="grid", x1=str(LEFT), x2=str(WIDTH - RIGHT), y1=y, y2=y)
    told = element("text", percent(share), class_="tick", x=str(LEFT - 7), y=y, dy="0.32em", text_anchor="end")
    return join(line, told)


def _bars(panel: Bars) -> list[Markup]:
    names = 84  # pixels for the names
    room = WIDTH - names - 60
    most = max(share for _, share in panel.bars)
    height = min(26.0, (HEIGHT - TOP) / len(panel.bars))
    parts = []
    for place, (name, share) in enumerate(panel.bars):
        top, middle = TOP + place * height, TOP + (place + 0.5) * height
        wide = room * share / most
        thick = f"{0.64 * height:.1f}"
        bar = element(
            "rect",
            class_="bar",
            x=str(names),
            y=f"{top + 0.18 * height:.1f}",
            width=f"{wide:.1f}",
            height=thick,
            rx="2",
        )
        where = {"y": f"{middle:.1f}", "dy": "0.34em"}
        parts.append(element("text", name, class_="name", x=str(names - 8), text_anchor="end", **where))
        parts.append(bar)
        parts.append(element("text", percent(share), class_="tick", x=f"{names + wide + 6:.1f}", **where))
    return [element("g", *parts, class_="colour0")]
