"""redteam.html, a self-contained page of what `whet redteam` found."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.errors import RunFailed
from whet.report.formatting import render
from whet.report.redteam import view
from whet.runs.layout import RED_TEAM
from whet.runs.logs import json_bytes, reason, write_atomic


def write_page(found: Mapping[str, Any], directory: Path) -> tuple[Path, Path]:
    """Writes redteam.json and redteam.html into the directory; returns their paths."""
    numbers, page = directory / RED_TEAM, directory / "redteam.html"
    html = render("redteam.html", title=str(found["model"]), facts=["red team"], attack=section(found))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(numbers, json_bytes(found, indent=2) + b"\n")
        write_atomic(page, html.encode())
    except OSError as error:
        raise RunFailed(f"cannot write into {directory}: {reason(error)}") from error
    return numbers, page


def section(found: Any) -> dict[str, Any] | None:
    """What the page shows; None where this is not what `whet redteam` writes, because files of a run may be damaged."""
    try:
        if "sets" in found:
            return {
                "verdict": [str(line) for line in found["verdict"]],
                "sets": view.set_rows(found),
                "wrong": [_wrong(one, row) for one in found["sets"] for row in one["wrong"]],
            }
        return {
            "verdict": [str(line) for line in found["verdict"]],
            "lead": view.lead(found),
            "rule": str(found["rule"]),
            "header": view.HEADER,
            "rows": view.probe_rows(found),
            "facts": view.facts(found),
            "examples": view.examples(found),
        }
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _wrong(one: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "about": f"{one['name']}, {row['id']}",
        "prompt": view.cut(row["question"]),
        "answer": view.cut(row["answer"]),
    }
