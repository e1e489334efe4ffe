"""The two ways in which whet stops, and how text of others is quoted. Any other traceback that users see is a bug."""

import re

# What does something to a terminal instead of being shown: controls (C0, DEL, C1), half characters, separators of
# lines, changes of direction, and what is invisible. Joiners (U+200C, U+200D) stay: emoji and Persian need them.
ACTIVE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


class UserError(Exception):
    """The input is wrong: one line that says what, where and how to fix it. Exit code 2."""


class RunFailed(Exception):
    """The input was fine and the run broke: a reward raised, the loss is not finite, the disk is full. Exit code 1."""


def escaped(text: str, *, keep: str = "") -> str:
    """The text with \\x1b for ESC and so on, in one line; `keep`, such as a newline, stays as it is."""
    return ACTIVE.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)
