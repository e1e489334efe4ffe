"""Tables and links of pages that are written from the code."""

from __future__ import annotations

from whet.train.explain.formula import is_arxiv


def paper_link(paper: str) -> str:
    """A link to arXiv for a number, anything else as it is."""
    return f"[arXiv {paper}](https://arxiv.org/abs/{paper})" if is_arxiv(paper) else paper


def header(*columns: str) -> tuple[str, str]:
    """The first two lines of a table."""
    return row_line(*columns), "|" + "---|" * len(columns)


def row_line(*cells: str) -> str:
    """One line of a table."""
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
