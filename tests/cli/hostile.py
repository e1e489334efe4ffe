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
# Unicode's DerivedCoreProperties.txt, Default_Ignorable_Code_Point, without U+200C, U+200D, U+FE0E and U+FE0F.
IGNORABLE = ((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
             (0x200B, 0x200B), (0x200E, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0D),
             (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
             (0xE0000, 0xE0FFF))  # fmt: skip
INVISIBLE = frozenset(chr(point) for first, last in IGNORABLE for point in range(first, last + 1))


def does_something(character: str) -> bool:
    """By Unicode's own tables: controls, separators of lines, half characters, changes of direction, the invisible."""
    category = unicodedata.category(character)
    return (
        (category in {"Cc", "Zl", "Zp", "Cs"} and character not in "\n\t")
        or unicodedata.bidirectional(character) in REORDERING
        or character in INVISIBLE
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
