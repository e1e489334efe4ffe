"""report.html: one file that needs nothing else, made from a run directory, finished or not."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from whet.errors import RunFailed, UserError
from whet.report.markup import Markup, element, join, verbatim
from whet.report.numbers import duration
from whet.report.run.charts import chart
from whet.report.run.curves import training_curves
from whet.report.run.headline import headline
from whet.report.run.health import Finding, findings
from whet.report.run.panels import Panel, panels
from whet.report.run.samples import before_after, last_rollouts
from whet.runs.directory import Run
from whet.runs.inputs import Inputs
from whet.runs.logs import reason, write_atomic


def write_report(run_path: Path) -> Path:
    """Writes training_curves.png and report.html into a run directory; returns the path of the report."""
    run = Run.open(run_path, is_writer=False)
    metrics, results = run.metrics(), run.results()
    drawn = panels(metrics, run.timings())
    title, facts = _title(run, results), _facts(run, results, metrics)
    picture = training_curves(drawn, title=title, subtitle="   ".join(facts))
    page = _page(run, title, facts, drawn).encode()
    try:
        write_atomic(run.curves_path, picture)
        write_atomic(run.report_path, page)
    except OSError as error:
        raise RunFailed(f"cannot write the report of {run_path}: {reason(error)}") from error
    return run.report_path


def _page(run: Run, title: str, facts: Sequence[str], drawn: Sequence[Panel]) -> Markup:
    metrics, results = run.metrics(), run.results()
    style, script = _part("page.css"), _part("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} · whet report"),
        element("style", verbatim(style)),
    )
    main = element(
        "main",
        element("h1", title),
        element("div", *(element("span", fact) for fact in facts), class_="facts"),
        headline(metrics, results),
        _health([*_doubts(run, results), *findings(metrics)]),
        _curves(drawn),
        _samples(run),
        _setup(run, results),
        element("footer", f"Written by whet from {run.path.name}."),
    )
    body = element("body", main, element("script", verbatim(script)))
    return join(verbatim("<!doctype html>\n"), element("html", head, body, lang="en"))


def _title(run: Run, results: Mapping[str, Any] | None) -> str:
    return str(results["recipe"]) if results else re.sub(r"^\d{8}-\d{6}-", "", run.path.name)


def _facts(run: Run, results: Mapping[str, Any] | None, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    try:
        config = yaml.safe_load(run.config_yaml())
    except yaml.YAMLError as error:
        raise UserError(f"{run.path}: its config is not valid YAML ({reason(error)}); put it back") from error
    if not isinstance(config, dict):
        raise UserError(f"{run.path}: its config is no mapping of keys to values; put it back")
    done = max((row["step"] for row in metrics), default=0)
    if results is None:
        steps = f"{done:,} of {config['steps']:,} steps" if "steps" in config else f"{done:,} steps"
        return [run.path.name, steps, "not finished"]
    time = duration(results["seconds"])
    return [run.path.name, f"{results['loop']} loop", f"{results['steps']:,} steps", f"seed {results['seed']}", time]


def _policy(script: str) -> str:
    """What the browser may do with the page: no network, and no script but ours, whatever a completion says."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    ours = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def _part(name: str) -> str:
    return (resources.files("whet.report") / "template" / name).read_text("utf-8")


def _health(found: Sequence[Finding]) -> Markup:
    rows = [
        element(
            "li",
            element("span", finding.level, class_=f"badge {finding.level}"),
            element("span", _capital(finding.sentence)),
        )
        for finding in found
    ]
    return join(element("h2", "Health"), element("ul", *rows, class_="findings card"))


def _doubts(run: Run, results: Mapping[str, Any] | None) -> list[Finding]:
    """What the numbers of the page do not show of the run: files that changed on its way, and files that were lost."""
    changed = (run.inputs() or Inputs()).accepted_sentences
    lost = [f"lost: {sentence}" for sentence in (results or {}).get("lost", ())]
    return [Finding("warning", sentence) for sentence in (*changed, *lost)]


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _curves(drawn: Sequence[Panel]) -> Markup:
    if not drawn:
        return join()
    lead = "Faint lines are single steps, strong lines their moving mean. Point at a chart to read it."
    charts = element("div", *(chart(panel) for panel in drawn), class_="charts")
    return join(element("h2", "Curves"), element("p", lead, class_="lead"), charts)


def _samples(run: Run) -> Markup:
    steps, sampled = run.answer_steps(), run.rollout_steps()
    pairs = rollouts = join()
    if len(steps) > 1:
        first, last = steps[0], steps[-1]
        pairs = before_after(run.answers(first), run.answers(last), first_step=first, last_step=last)
    if sampled:
        rollouts = last_rollouts(run.rollouts(sampled[-1]), step=sampled[-1])
    return join(pairs, rollouts)


def _setup(run: Run, results: Mapping[str, Any] | None) -> Markup:
    config = element("div", element("h3", "Config"), element("pre", run.config_yaml().strip()), class_="card")
    tables = [
        element("div", element("h3", heading), _facts_table(results[key]), class_="card")
        for heading, key in (("Machine", "machine"), ("Versions", "versions"))
        if results and results.get(key)
    ]
    right = element("div", *tables, class_="stack") if tables else join()
    return join(element("h2", "Setup"), element("div", config, right, class_="columns"))


def _facts_table(facts: Mapping[str, Any]) -> Markup:
    return element(
        "dl", *(part for name, value in facts.items() for part in (element("dt", name), element("dd", str(value))))
    )
