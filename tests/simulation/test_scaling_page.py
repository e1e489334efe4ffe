"""docs/scaling.md is what the simulator says today, and the numbers in it are as close as it claims."""

from pathlib import Path

import pytest

from bench.published_clusters import FIT_TO, FITTED, parts, synchronous
from pages.scaling import COUNTS, render
from whet.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE, PAGE = ROOT / "docs" / "scaling.template.md", ROOT / "docs" / "scaling.md"
STALE = "docs/scaling.md is stale: renew it with `make docs`"


def test_the_page_is_fresh() -> None:
    """The tables for one number of GPUs, everything else as it is; all of them take half a minute."""
    few = (8,)
    fresh, page = render(TEMPLATE.read_text("utf-8"), few).splitlines(), PAGE.read_text("utf-8").splitlines()
    others = {f"{count:,}" for count in COUNTS if count not in few}
    kept = [line for line in page if not _cells(line) & others]
    assert kept == fresh, STALE


def _cells(line: str) -> set[str]:
    """The first cells of a row of the tables by number of GPUs."""
    cells = [cell.strip() for cell in line.split("|")[1:]]
    named = cells[:1] and cells[0].startswith("qwen3-")
    return set(cells[1:2] if named else cells[:1])


@pytest.mark.slow
def test_the_whole_page_is_fresh() -> None:
    assert render(TEMPLATE.read_text("utf-8")) == PAGE.read_text("utf-8"), STALE


def test_the_fitted_numbers_reproduce_the_point_that_they_were_fitted_to() -> None:
    found = parts(synchronous(64, FITTED))
    assert found == pytest.approx(FIT_TO, rel=0.01)


def test_a_template_must_mark_every_part() -> None:
    with pytest.raises(UserError, match="the template marks"):
        render("<!-- here: measured -->\n")
