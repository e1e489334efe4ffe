"""The two ways in which whet stops, and how text of others is quoted. Any other traceback that users see is a bug."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

# What does something to a terminal instead of being shown: controls (C0, DEL, C1), half characters, separators of
# lines, changes of direction, and what is invisible, in which text can hide: fillers, selectors of variants, tags.
# Joiners (U+200C, U+200D) and the styles of emoji (U+FE0E, U+FE0F) stay, because emoji and Persian need them, but not
# where one follows another, which nothing that shows does. Braille without dots (U+2800) stays: it is a space.
ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<=[\u200c\u200d])[\u200c\u200d\ufe0e\ufe0f]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]"
)


class UserError(Exception):
    """The input is wrong: one line that says what, where and how to fix it. Exit code 2."""


class RunFailed(Exception):
    """The input was fine and the run broke: a reward raised, the loss is not finite, the disk is full. Exit code 1."""


def escaped(text: str, *, keep: str = "") -> str:
    """The text with \\x1b for ESC and so on, in one line; `keep`, such as a newline, stays as it is."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that is not known: `; did you mean 'x'?`, or nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
