"""Anchors of headings, as GitHub makes them."""

import re


def slug(heading: str, separator: str = "-") -> str:
    """Lower case, without punctuation, a hyphen for every space; Python-Markdown's toc calls it so too."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def anchors(markdown: str) -> list[str]:
    """The anchors of a page: a heading that comes again gets a number."""
    text = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE):
        plain = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        number = sum(bool(re.fullmatch(rf"{re.escape(plain)}(-\d+)?", other)) for other in found)
        found.append(f"{plain}-{number}" if plain in found else plain)
    return found
