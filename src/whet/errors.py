"""The two expected errors, and escaping of untrusted text. Any other traceback is a bug."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

# Characters that a terminal acts on or hides: controls (C0, DEL, C1), lone surrogates, line separators, direction
# changes, and invisible ones: fillers, variation selectors, tags. Joiners (U+200C, U+200D) and emoji styles (U+FE0E,
# U+FE0F) are allowed, because emoji and Persian need them, but not one after another.
ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<=[\u200c\u200d])[\u200c\u200d\ufe0e\ufe0f]|(?<=[\ufe0e\ufe0f])[\ufe0e\ufe0f]"
)


class UserError(Exception):
    """Invalid input: one line with the problem, the place and the fix. Exit code 2."""


class RunFailed(Exception):
    """A failure at run time: a reward raised, the loss is not finite, the disk is full. Exit code 1."""


def escaped(text: str, *, keep: str = "") -> str:
    """The text in one line, with \\x1b for ESC etc.; characters in `keep` are not escaped."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for an unknown word, or nothing if none is like it."""
    by_case = {name.lower(): name for name in known}
    typed = word.lower()
    close = get_close_matches(typed, by_case, n=1, cutoff=0.65)
    close = close or get_close_matches(typed, [name for name in by_case if _is_like(typed, name)], n=1, cutoff=0)
    return f"; did you mean {by_case[close[0]]!r}?" if close else ""


def _is_like(word: str, name: str) -> bool:
    """Whether one is the beginning of the other, or a single letter differs."""
    shorter, longer = sorted((word, name), key=len)
    begins = len(shorter) >= 3 and longer.startswith(shorter)
    return begins or (len(word) == len(name) > 1 and sum(a != b for a, b in zip(word, name, strict=True)) == 1)
