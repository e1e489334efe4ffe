"""The pages of the site: those of the repository, with links that lead inside of it.

`python -m pages.site.staging build/pages` writes them; `make site` does that. README.md becomes the first page. Links
to files that are no page, such as source code, become plain text: the site is to work without the repository.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from whet.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Path(__file__).with_name("mkdocs.yml")
ASSETS = Path(__file__).with_name("assets")
TEMPLATE = ".template.md"
BESIDE = {  # pages of the repository that are not in docs/ → their place in the site
    "README.md": "index.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "studies/README.md": "studies.md",
}
PICTURES = (".png", ".svg", ".jpg", ".gif")
BLOCKS = {"details": "block", "summary": "span"}  # elements with Markdown inside, which GitHub reads as such
BLOCK = re.compile(rf"<({'|'.join(BLOCKS)})>")
FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ITEM = re.compile(r"^(\s*)([-*]|\d+\.) ")


def pages(root: Path = ROOT) -> dict[Path, str]:
    """The file of every page → its place in the site."""
    of_docs = [path for path in sorted((root / "docs").rglob("*.md")) if not path.name.endswith(TEMPLATE)]
    found = {path: path.relative_to(root / "docs").as_posix() for path in of_docs}
    return found | {root / name: place for name, place in BESIDE.items()}


def navigation(settings: Path = SETTINGS) -> list[str]:
    """The places of all pages in the order of the site."""
    return list(_places(yaml.safe_load(settings.read_text("utf-8"))["nav"]))


def stage(target: Path, root: Path = ROOT) -> list[Path]:
    """Writes all pages with their pictures into an empty or absent folder; returns the files of the pages."""
    every = pages(root)
    listed = navigation()
    missing, unknown = sorted(set(every.values()) - set(listed)), sorted(set(listed) - set(every.values()))
    if missing or unknown or len(set(listed)) != len(listed):
        raise UserError(f"the navigation in {SETTINGS} lacks {missing}, and knows {unknown} that is no page")
    if target.exists():
        shutil.rmtree(target)
    written = []
    for path, place in every.items():
        page = target / place
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_staged(path.read_text("utf-8"), path, place, every, target, root), "utf-8")
        written.append(page)
    shutil.copytree(ASSETS, target / "assets")
    return written


def outside_of_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it is prose."""
    fence = ""
    for line in text.splitlines():
        found = FENCE.match(line)
        is_edge = found is not None and fence in ("", found[1])
        if found is not None and is_edge:
            fence = "" if fence else found[1]
        yield line, not fence and not is_edge


def _places(entries: Sequence[Any]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from _places(inside)


def _staged(text: str, path: Path, place: str, every: dict[Path, str], target: Path, root: Path) -> str:
    lines: list[str] = []
    for line, is_prose in outside_of_fences(text):
        if not is_prose:
            lines.append(line)
            continue
        if lines and lines[-1].strip() and _begins_block(line, lines[-1]):
            lines.append("")  # GitHub begins a list or table without a blank line, Python-Markdown does not
        item = ITEM.match(line)
        deeper = f"{item[1]}{line}" if item is not None and 0 < len(item[1]) < 4 else line  # twice as far, as it needs
        deeper = BLOCK.sub(lambda found: f'<{found[1]} markdown="{BLOCKS[found[1]]}">', deeper)
        lines.append(LINK.sub(lambda found: _linked(found, path, place, every, target, root), deeper))
    return "\n".join(lines) + "\n"


def _begins_block(line: str, before: str) -> bool:
    if line.startswith("|"):
        return not before.startswith("|")
    return bool(re.match(r"([-*]|\d+\.) ", line)) and not ITEM.match(before) and not before.startswith(" ")


def _linked(found: re.Match[str], path: Path, place: str, every: dict[Path, str], target: Path, root: Path) -> str:
    """A link with its target in the site; a link that leads out of it is its text alone."""
    mark, text, link = found.groups()
    if re.match(r"\w+:", link) or link.startswith("#"):
        return found[0]
    file, _, anchor = link.partition("#")
    aim = Path(os.path.normpath(path.parent / file))
    here = Path(place).parent
    if aim in every:
        return f"{mark}[{text}]({Path(os.path.relpath(every[aim], here)).as_posix()}{'#' * bool(anchor)}{anchor})"
    if aim.suffix in PICTURES and aim.is_file():
        name = aim.relative_to(root).as_posix()
        copy = target / (name.removeprefix("docs/") if name.startswith("docs/") else f"pictures/{name}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(aim, copy)
        return f"{mark}[{text}]({Path(os.path.relpath(copy, target / here)).as_posix()})"
    return text


def main(arguments: Sequence[str]) -> None:
    """Writes the pages into the folder that is named."""
    (folder,) = arguments
    print(f"{len(stage(Path(folder).resolve()))} pages: {folder}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
