r"""Where a solution states its final answer.

The marks, the strongest first: \boxed{…}, an <answer> block, "#### …", and "the answer is …" or "Answer: …". The last
one of a kind counts. Where boxes, blocks and "####" contradict each other, there is no answer; different boxes or
blocks on one line are a list.
"""

import re

from whet.tasks.maths.equality import vote_key
from whet.tasks.pattern_worker import last_match

NUMBER = re.compile(
    r"(?:(?<![\w.)\]}])[-+])?"  # a sign, not a minus between two terms
    r"\$?(?<![\w.])"
    r"(?:\d+ \d+/\d+|(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"  # 1 1/2; 1,234.5; 12.5; .5
    r"(?:[eE][-+]?\d{1,3}(?!\w))?(?: ?/ ?\d+(?:\.\d+)?)?)"
    r"(?:\s?(?:%|percent\b))?"
)
BOX = re.compile(r"\\f?box(?:ed)? ?\{")
BARE_BOX = re.compile(r"\\boxed ([^\s{}$]+)")
HASHES = re.compile(r"####[ \t]*([^\n]*)")  # GSM8K (Cobbe et al. 2021)
OPEN, CLOSE = re.compile("<answer>", re.IGNORECASE), re.compile("</answer>", re.IGNORECASE)
STATED = re.compile(
    r"(?:\banswer\b[^\n.:=]{0,40}?(?:\bis\b|:|=)|^[*_\s]{0,4}A:)[ \t*_:]{0,8}", re.IGNORECASE | re.MULTILINE
)
IN_DOLLARS = re.compile(r"\$\$?([^$\n]{1,200})\$\$?(?!\d)")
SENTENCE_END = re.compile(r"[.!?;](?=\s|$|\*)|\n|\*\*|<")


def final_answer(text: str, *, last_number: bool = False) -> str | None:
    """What the text states as its answer; with `last_number`, its last number if it marks none."""
    marked = marked_answers(text)
    if marked:
        return marked[0] if len(set(map(vote_key, marked))) == 1 and _bare(marked[0]) else None
    stated = list(STATED.finditer(text))
    if stated:
        return _sentence(text[stated[-1].end() : stated[-1].end() + 400])
    return last_match(NUMBER, text.replace("−", "-").replace("–", "-")) if last_number else None


def marked_answers(text: str) -> list[str]:
    r"""The answer by each mark that is used, of \boxed{…}, <answer> and "####"."""
    blocks = [_listed(last_boxes(block)) or block for block in last_blocks(text)]
    line = last_match(HASHES, text)
    of_marks = (_listed(last_boxes(text)), _listed(blocks), None if line is None else _listed(last_boxes(line)) or line)
    return [one.strip() for one in of_marks if one is not None]


def is_marked_once(text: str) -> bool:
    r"""Whether the text states its answer by one \boxed{…}, <answer> block or "####", or by one box in one block."""
    closed = _closing_braces(text)
    boxes = sum(found.end() in closed for found in BOX.finditer(text))
    blocks = len(CLOSE.findall(text))
    within = int(boxes == 1 and blocks == 1 and len(last_boxes(answer_block(text) or "")) == 1)
    return boxes + blocks + text.count("####") - within == 1 and final_answer(text) is not None


def answer_block(text: str) -> str | None:
    """What stands in the last <answer> block; None without one."""
    found = last_blocks(text)
    return found[-1] if found else None


def last_blocks(text: str) -> list[str]:
    """What stands in the <answer> blocks of the line in which the last one begins."""
    ends = [found.start() for found in CLOSE.finditer(text)]
    starts = [found.end() for found in OPEN.finditer(text, 0, ends[-1])] if ends else []
    if not starts:
        return []
    line = text.rfind("\n", 0, starts[-1])
    beside = [end for end in ends[:-1] if line < end < starts[-1]]
    before = [text[max((start for start in starts if start <= end), default=end) : end] for end in beside[-1:]]
    return [*before, text[starts[-1] : ends[-1]]]


def boxed(text: str) -> str | None:
    r"""The contents of the last complete \boxed{…} or \fbox{…}; else what follows the last \boxed."""
    found = last_boxes(text)
    return found[-1] if found else None


def last_boxes(text: str) -> list[str]:
    r"""The contents of the complete boxes of the last line that has one; else what follows the last bare \boxed."""
    closed = _closing_braces(text)
    complete = [found for found in BOX.finditer(text) if found.end() in closed]
    if not complete:
        return BARE_BOX.findall(text)[-1:]
    last = complete[-1].start()
    line = text.rfind("\n", 0, last)
    starts = [one.end() for one in complete if one.start() == last or line < closed[one.end()] < last]
    return [text[start : closed[start]] for start in starts]


def _listed(answers: list[str]) -> str | None:
    """The one answer; different ones of a line as a list, so that alternatives are not an answer each."""
    return ", ".join(dict.fromkeys(answers)) if answers else None


def _closing_braces(text: str) -> dict[int, int]:
    """After an opening brace → its closing one."""
    open_at: list[int] = []
    closed: dict[int, int] = {}
    for place, letter in enumerate(text):
        if letter == "{":
            open_at.append(place + 1)
        elif letter == "}" and open_at:
            closed[open_at.pop()] = place
    return closed


def _sentence(rest: str) -> str | None:
    """The answer in what follows "the answer is": a formula between dollars, or all up to the end of the sentence.

    It may begin on the next line.
    """
    rest = rest.lstrip()
    formula = IN_DOLLARS.match(rest)
    if formula:
        return formula[1].strip() or None
    end = SENTENCE_END.search(rest)
    return rest[: end.start() if end else len(rest)].strip() or None


def _bare(text: str) -> str:
    return re.sub(r"[\s$]", "", text)
