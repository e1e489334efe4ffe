"""The program in a completion: its last Python block, or the whole text if it has no block."""

import re

FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*([\w+#.-]*)[^\n`]*$", re.MULTILINE)
PYTHON = ("python", "py", "python3", "")
# A continued function ends where another top-level statement begins, as in the evaluation of HumanEval.
NEXT_STATEMENT = re.compile(r"\n(?=(?:class|def|if|print|assert|import|from)\b|[#@])")
THOUGHT, THOUGHT_ENDS = "<think>", "</think>"


def program_of(text: str) -> str:
    """What a completion submits; nothing if it is still thinking."""
    _, _, after = text.rpartition(THOUGHT_ENDS)
    if THOUGHT in after:
        return ""
    blocks = _blocks(after)
    python = [code for language, code in blocks if language in PYTHON]
    return python[-1] if python else after


def continued(beginning: str, beside: str, entry_point: str, code: str) -> str:
    """The program that code makes of the beginning of a function: a version of its own, or the rest of it."""
    if re.search(rf"^(?:async )?def {re.escape(entry_point)}\b", code, re.MULTILINE):
        return f"{beside}\n{code}"
    return beginning + NEXT_STATEMENT.split(code, maxsplit=1)[0]


def _blocks(text: str) -> list[tuple[str, str]]:
    """The language and the code of each fenced block; a last one may lack its end, as when a length limit cut it."""
    found: list[tuple[str, str]] = []
    start: tuple[str, int] | None = None
    for fence in FENCE.finditer(text):
        if start is None:
            start = (fence[1].lower(), fence.end() + 1)
        else:
            found.append((start[0], text[start[1] : fence.start()]))
            start = None
    return [*found, (start[0], text[start[1] :])] if start else found
