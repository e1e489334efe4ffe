"""docs/testing.md: the prose of a template, and in its marked place what the planted bugs have shown.

`python -m tests.mutants.page docs/testing.template.md docs/testing.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.report import ACCEPTED, RESULTS, VERDICTS, Key, accepted, key_of

NOTICE = "<!-- Written by `make docs` from testing.template.md and the results in tests/mutants. Change those. -->\n"
MARK = "<!-- here: mutants -->"


def render(template: str, results: Mapping[str, Any], known: Mapping[Key, str]) -> str:
    """The page: the marked line of the template gives way to the tables."""
    if template.count(MARK) != 1:
        raise SystemExit(f"error: the template must have one line {MARK}")
    return NOTICE + template.replace(MARK, "\n".join(lines(results, known)))


def lines(results: Mapping[str, Any], known: Mapping[Key, str]) -> Iterator[str]:
    """A line for each file, then every survivor with the reason why it may live, or none."""
    files: Mapping[str, Any] = results["files"]
    total = {verdict: sum(counts[verdict] for counts in files.values()) for verdict in VERDICTS}
    alive = [(file, row) for file, counts in files.items() for row in counts["survivors"]]
    reasons = [known.get(key_of(file, row)) for file, row in alive]
    excused = sum(reason is not None for reason in reasons)
    count = sum(total.values())
    noticed = count - len(alive)
    yield (
        f"Of {count:,} bugs the tests notice {noticed:,}: **{_share(noticed, count)}**, or"
        f" **{_share(noticed, count - excused)}** without the {excused} that change nothing a test could see"
        f" (below). {total['timeout']} of the noticed ones ran into the time limit and {total['crashed']} ended the"
        f" process. Python {results['python']}, torch {results['torch']}."
    )
    yield ""
    yield "| file | bugs | noticed | without those that change nothing | survivors, with a reason |"
    yield "|---|---|---|---|---|"
    for file, counts in files.items():
        yield _file_line(file, counts, known)
    yield ""
    yield from _survivors(alive, known)


def _file_line(file: str, counts: Mapping[str, Any], known: Mapping[Key, str]) -> str:
    count = sum(counts[verdict] for verdict in VERDICTS)
    left = len(counts["survivors"])
    excused = sum(key_of(file, row) in known for row in counts["survivors"])
    shares = f"{_share(count - left, count)} | {_share(count - left, count - excused)}"
    return f"| `{file}` | {count} | {shares} | {left}, {excused} |"


def _survivors(alive: Sequence[tuple[str, Mapping[str, Any]]], known: Mapping[Key, str]) -> Iterator[str]:
    for title, is_wanted in (("Survivors that a test should notice", False), ("Survivors with a reason", True)):
        some = [(file, row) for file, row in alive if (key_of(file, row) in known) is is_wanted]
        if not some:
            continue
        yield f"### {title}"
        yield ""
        for file, row in some:
            reason = known.get(key_of(file, row))
            yield f"- `{file}`, {_code(row['in']) if row['in'] else 'at the import'}: {_code(row['line'])} →"
            yield f"  {_code(row['as'])}" + (f": {reason}" if reason else "")
        yield ""


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _share(some: int, count: int) -> str:
    return f"{some / count:.1%}" if count else "–"


def main(arguments: Sequence[str]) -> None:
    """Reads the template and the results, writes the page."""
    if len(arguments) != 2:
        raise SystemExit("error: give the template and the page: python -m tests.mutants.page A.template.md A.md")
    template, page = map(Path, arguments)
    results = json.loads(RESULTS.read_text("utf-8"))
    page.write_text(render(template.read_text("utf-8"), results, accepted(ACCEPTED)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
