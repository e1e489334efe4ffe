"""The final answer in a completion: what stands in the last <answer> block, else the last line."""

import re

from whet.tasks.maths.extraction import answer_block

PREFIX = re.compile(r"^\W{0,4}(?:the )?(?:final )?(?:answer|solution|moves)(?: is| are)?\s*[:=][*_\s]*", re.IGNORECASE)


def final_answer(text: str) -> str:
    """The last <answer> block; without one, the last line that is not empty, and "Answer:" before it is dropped."""
    block = answer_block(text)
    if block is not None:
        return block.strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PREFIX.sub("", lines[-1]).strip() if lines else ""
