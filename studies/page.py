"""docs/preferences.md: the prose of a template, and in its marked places what the results of the studies say.

`python -m studies.page docs/preferences.template.md docs/preferences.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from studies.results import Study, read_study
from studies.tables import contest_lines, rank_lines, reward_model_lines
from whet.errors import UserError

STUDIES = Path(__file__).resolve().parent
NOTICE = "<!-- Written by `make docs` from preferences.template.md and the results in studies/. Change those. -->\n"
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)


def render(template: str, studies: Path) -> str:
    """The page: every marked line of the template gives way to the tables of the study that it names."""
    marked = set(MARK.findall(template))
    there = {folder.parent.name for folder in studies.glob("*/results")}
    if marked != there:
        raise UserError(f"the template marks {sorted(marked)}, but there are results of {sorted(there)}")
    return NOTICE + MARK.sub(lambda mark: "\n".join(_lines(read_study(studies / mark[1] / "results"))), template)


def _lines(study: Study) -> Iterator[str]:
    """Who is better than the start, and how good the models are that say so; of single runs how good each model is."""
    if study.seeds[0].contest is None:
        yield from reward_model_lines(study)
    else:
        ranks = list(rank_lines(study))
        yield from contest_lines(study)
        yield from ["", *ranks] if ranks else []


def main(arguments: Sequence[str]) -> None:
    """Reads the template and the results, writes the page."""
    if len(arguments) != 2:
        raise UserError("give the template and the page: python -m studies.page A.template.md A.md")
    template, page = map(Path, arguments)
    page.write_text(render(template.read_text("utf-8"), STUDIES), "utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
