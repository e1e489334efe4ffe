"""The final answer in a completion: what stands in the last <answer> block, else the last line."""

import re

BLOCK = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
PREFIX = re.compile(r"^\W*(?:(?:the )?(?:final )?(?:answer|solution|moves)(?: is| are)?)\s*[:=]\s*", re.IGNORECASE)


def final_answer(text: str) -> str:
    """The last <answer> block; without one, the last line that is not empty, and "Answer:" before it is dropped."""
    blocks = BLOCK.findall(text)
    if blocks:
        return str(blocks[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PREFIX.sub("", lines[-1]).strip() if lines else ""
