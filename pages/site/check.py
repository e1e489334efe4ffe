"""What a built site must not have: requests to other hosts, links that lead nowhere, templates.

`python -m pages.site.check site` prints what it finds, and exits with 1; `make site` does that.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {  # elements whose attribute makes a browser load something
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "link": ("href",),
}
NOT_LOADED = {"canonical", "next", "prev", "alternate"}  # relations of <link> that only name a page
OUTSIDE = re.compile(r"^\s*(?:\w+:)?//")
IN_STYLE = re.compile(r"(?:url\(|@import\s+)\s*[\"']?((?:\w+:)?//[^\"')\s]+)")


class _Page(HTMLParser):
    """What a page loads, links to and names."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if not (tag == "link" and set(given.get("rel", "").split()) & NOT_LOADED):
            self.loaded += [given[name] for name in LOADED.get(tag, ()) if name in given]
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        self.names |= {given[name] for name in ("id", "name") if name in given}


def problems(site: Path) -> Iterator[str]:
    """One line for each."""
    read = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html"))}
    if not read:
        yield f"{site} has no pages"
    for path, page in read.items():
        name = path.relative_to(site.resolve())
        if ".template" in path.name:
            yield f"{name} is a template"
        yield from (f"{name} loads {one}" for one in page.loaded if OUTSIDE.match(one))
        if path.name == "404.html":  # its links are those of the root of a server
            continue
        for link in page.links:
            yield from (f"{name} links to {link}: {why}" for why in _broken(link, path, read))
    for path in sorted(site.rglob("*.css")):
        for one in IN_STYLE.findall(path.read_text("utf-8")):
            yield f"{path.relative_to(site)} loads {one}"


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text("utf-8"))
    return page


def _broken(link: str, path: Path, read: dict[Path, _Page]) -> Iterator[str]:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return
    aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
    if not aim.exists():
        yield "there is no such file"
    elif parts.fragment and aim in read and unquote(parts.fragment) not in read[aim].names:
        yield "the page has no such anchor"


def main(arguments: Sequence[str]) -> int:
    """Prints the problems of the site that is named; returns the exit code."""
    (folder,) = arguments
    found = list(problems(Path(folder)))
    for line in found:
        print(line)  # noqa: T201
    print(f"{folder}: {len(found)} problems")  # noqa: T201
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
