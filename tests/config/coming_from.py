"""docs/coming-from.md as tables: what a setting is called elsewhere, and what in whet."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coming-from.md"
TEXT = PAGE.read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One line of a table, as Markdown; `names` are what stands in backticks of its first cell."""

    section: str
    elsewhere: str
    here: str
    difference: str

    @property
    def names(self) -> list[str]:
        return CODE.findall(self.elsewhere)


def rows() -> list[Row]:
    """The lines of all tables whose second column is whet's."""
    return list(_rows())


def _rows() -> Iterator[Row]:
    section, inside = "", False
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not cells:
            inside = False
        elif len(cells) > 1 and cells[1] == "whet":
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            assert len(cells) == 3, line
            yield Row(section, *cells)
