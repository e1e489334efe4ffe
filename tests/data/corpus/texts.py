"""Texts for tests: words in a random order with some rules, so that there is something to learn."""

import random
from pathlib import Path

WORDS = ("the", "king", "is", "dead", "long", "live", "queen", "and", "all", "men", "came", "to", "see", "her", "crown")


def invented(lines: int, *, seed: int = 0) -> str:
    """So many lines of words, each followed by one of three others."""
    draw = random.Random(seed)
    text = []
    for _ in range(lines):
        place = draw.randrange(len(WORDS))
        words = []
        for _ in range(8):
            words.append(WORDS[place])
            place = (place + draw.choice((1, 1, 5))) % len(WORDS)
        text.append(" ".join(words) + ".")
    return "\n".join(text) + "\n"


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path
