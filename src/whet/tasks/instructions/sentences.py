"""Words and sentences of a text by fixed rules, without downloaded models."""

import re

WORD = re.compile(r"\w+")
# The end of a sentence: . ! ? … (or their full-width forms) with closing quotes or brackets, before space or the end.
END = re.compile(r"(?:[.!?…]+[\"'”’)\]*_]*(?=\s|$)|[。！？।]+)")
SHORT = (
    "mr mrs ms dr prof st jr sr vs etc e.g i.e cf fig no vol approx inc ltd co corp dept est gen col sgt capt rev hon "
    "a.m p.m u.s u.k ph.d"
)
ABBREVIATIONS = frozenset(SHORT.split())
LAST_WORD = re.compile(r"[\w.]+$")


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores."""
    return WORD.findall(text)


def sentences(text: str) -> list[str]:
    """The sentences: up to . ! ? before a space, but not after an abbreviation, an initial, or before a small letter.

    Text after the last end is a sentence too. A line break alone ends none; an empty line does.
    """
    return [one for block in re.split(r"\n\s*\n", text) for one in _of_block(block) if WORD.search(one)]


def _of_block(block: str) -> list[str]:
    found, start = [], 0
    for end in END.finditer(block):
        if _goes_on(block, end):
            continue
        found.append(block[start : end.end()].strip())
        start = end.end()
    return [*found, block[start:].strip()]


def _goes_on(block: str, end: re.Match[str]) -> bool:
    """Whether a full stop belongs to an abbreviation, an initial or a list number, or the next word is in small."""
    if not end[0].startswith("."):
        return False
    before = LAST_WORD.search(block[: end.start()][-40:])
    last = before[0].lower() if before else ""
    is_initial = len(last) == 1 and last.isalpha() and last != "i"
    after = block[end.end() : end.end() + 20].lstrip()
    starts_line = before is not None and block[: before.start()].rpartition("\n")[2].strip() == "" and last.isdigit()
    return last in ABBREVIATIONS or is_initial or starts_line or after[:1].islower()
