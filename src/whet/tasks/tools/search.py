"""A tool that searches a collection of texts by BM25 (Robertson & Zaragoza 2009), in plain Python.

    score(query, text) = Σ over words of the query: idf · f · (k₁ + 1) / (f + k₁ · (1 − b + b · length / mean length))
    idf                = ln(1 + (N − n + ½) / (n + ½))

f is how often the text has the word, n how many of the N texts have it, and lengths are in words: runs of letters and
digits in lower case. A word that the query has twice counts twice. Equal scores are in the order of the collection.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.files.stored_rows import stored_rows

K1, B = 1.2, 0.75
MOST = 10  # results of one search
LONGEST_SHOWN = 1_000  # characters of one result
WORD = re.compile(r"[^\W_]+")
TEXT_FILES = (".txt", ".md")
TEXTS = ("text", "contents", "content")  # columns that hold the text of a row


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One text of a collection."""

    name: str
    title: str
    text: str


class Collection:
    """Texts, and which words occur in which of them."""

    def __init__(self, entries: Iterator[Entry] | list[Entry]) -> None:
        self.entries = list(entries)
        self._lengths: list[int] = []
        self._places: dict[str, list[tuple[int, int]]] = {}  # word → (text, how often)
        for place, entry in enumerate(self.entries):
            words = words_of(f"{entry.title} {entry.text}")
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._places.setdefault(word, []).append((place, count))

    def scores(self, query: str) -> list[tuple[float, Entry]]:
        """The texts with a word of the query, best first."""
        total = len(self.entries)
        mean = sum(self._lengths) / max(1, total)
        found: dict[int, float] = {}
        for word in words_of(query):
            places = self._places.get(word, [])
            idf = math.log(1 + (total - len(places) + 0.5) / (len(places) + 0.5))
            for place, count in places:
                weight = count + K1 * (1 - B + B * self._lengths[place] / mean)
                found[place] = found.get(place, 0.0) + idf * count * (K1 + 1) / weight
        return [(found[place], self.entries[place]) for place in sorted(found, key=lambda one: (-found[one], one))]

    def tool(self) -> Callable[..., object]:
        """The function that is called."""

        def search(query: str, most: int = 3) -> str:
            """Searches a collection of texts for words and gives the texts that fit best.

            Args:
                query: the words to look for
                most: how many texts, at most 10
            """
            results = self.scores(query)[: max(1, min(most, MOST))]
            if not results:
                return "(no text has any of these words)"
            return "\n\n".join(_shown(score, entry) for score, entry in results)

        return search


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _shown(score: float, entry: Entry) -> str:
    text = entry.text if len(entry.text) <= LONGEST_SHOWN else f"{entry.text[:LONGEST_SHOWN]} …"
    title = f" {entry.title}" if entry.title else ""
    return f"[{entry.name}]{title} (score {score:.3f})\n{text}"


@lru_cache(maxsize=4)
def read_collection(path: str) -> Collection:
    """The texts of a folder (.txt and .md files), or of rows with a column `text`, and perhaps `title` and `id`."""
    folder = Path(path).expanduser()
    files = sorted(file for ending in TEXT_FILES for file in folder.rglob(f"*{ending}")) if folder.is_dir() else []
    entries = [_of_file(file, folder) for file in files] if files else list(_of_rows(path))
    if not entries:
        raise UserError(f"{path} has no texts to search: give a folder of .txt files, or rows with a column text")
    return Collection(entries)


def _of_file(file: Path, folder: Path) -> Entry:
    try:
        return Entry(name=file.relative_to(folder).as_posix(), title="", text=file.read_text("utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as a text file: {error}") from error


def _of_rows(path: str) -> Iterator[Entry]:
    for where, raw in stored_rows(path):
        if raw.problem:
            raise UserError(raw.problem)
        row: dict[str, Any] = dict(raw.columns)
        column = next((name for name in TEXTS if isinstance(row.get(name), str)), None)
        if column is None:
            raise UserError(f"{where} has no text to search: its columns are {', '.join(row) or 'none'}, not text")
        yield Entry(name=str(row.get("id", raw.line)), title=str(row.get("title") or ""), text=row[column])
