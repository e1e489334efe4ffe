"""Text that does something to a terminal, or to a library that prints to one, when it is printed as it is."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from tests.cli.tiny import Outcome

# Sets the clipboard, clears the screen, overwrites the line, begins C1's form of a colour, reverses what follows,
# hides characters, is markup of the library that prints tables, and ends tags that were never begun.
HOSTILE = (
    "\x1b]52;c;aGk=\x07\x1b[2J\b\x7f\x9b31m\u202eevil\u2066\u200f\ufeff\ud83d"
    "[red]x[/red][link=http://a.b]y[/link][/][/b] :smile: 👩\u200d🚀"
)
SEEN = (
    r"\x1b]52;c;aGk=\x07\x1b[2J\x08\x7f\x9b31m\u202eevil\u2066\u200f\ufeff\ud83d"
    "[red]x[/red][link=http://a.b]y[/link][/][/b] :smile: 👩\u200d🚀"
)
# What a file may be called. The slash of [/] stands between a directory and what it holds.
NAME, NAME_SEEN = "\x1b[2J\x9b\u202e[red][/]x\x7f", r"\x1b[2J\x9b\u202e[red][/]x\x7f"

REORDERING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
MARKS = {"\u061c", "\u200b", "\u200e", "\u200f", "\u2060", "\ufeff"}


def does_something(character: str) -> bool:
    """By Unicode's own tables: controls, separators of lines, half characters, changes of direction, the invisible."""
    category = unicodedata.category(character)
    return (
        (category in {"Cc", "Zl", "Zp", "Cs"} and character not in "\n\t")
        or unicodedata.bidirectional(character) in REORDERING
        or character in MARKS
    )


def harmless(result: Outcome) -> str:
    """All that the command printed, none of which may do anything."""
    printed = result.out + result.err
    assert "Traceback" not in printed
    assert [ascii(character) for character in printed if does_something(character)] == []
    return printed


def file_called(directory: Path, ending: str, text: str) -> Path:
    """A file whose name is hostile."""
    path = directory / f"{NAME}{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
