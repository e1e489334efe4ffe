"""The final answer in a completion: what stands in the last <answer> block, else the last line."""

import re

OPEN = re.compile("<answer>", re.IGNORECASE)
CLOSE = re.compile("</answer>", re.IGNORECASE)
PREFIX = re.compile(r"^\W{0,4}(?:the )?(?:final )?(?:answer|solution|moves)(?: is| are)?\s*[:=][*_\s]*", re.IGNORECASE)


def answer_block(text: str) -> str | None:
    """What stands in the last <answer> block; None without one."""
    ends = [found.start() for found in CLOSE.finditer(text)]
    starts = [found.end() for found in OPEN.finditer(text, 0, ends[-1])] if ends else []
    return text[starts[-1] : ends[-1]] if starts else None


def final_answer(text: str) -> str:
    """The last <answer> block; without one, the last line that is not empty, and "Answer:" before it is dropped."""
    block = answer_block(text)
    if block is not None:
        return block.strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PREFIX.sub("", lines[-1]).strip() if lines else ""
