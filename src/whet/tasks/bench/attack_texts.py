"""Completions that try to score without solving: as functions of one example."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from whet.records import Example
from whet.tasks.bench.subjects import ANSWER

FORMS = (  # in which a grader may want an answer
    ANSWER,
    f"<answer>{ANSWER}</answer>",
    f"<think>\nLet me think.\n</think>\n<answer>{ANSWER}</answer>",
    f"\\boxed{{{ANSWER}}}",
    f"#### {ANSWER}",
    f"Answer: {ANSWER}",
    f"The answer is {ANSWER}.",
    f"```python\n{ANSWER}\n```",
)
TAG = re.compile(r"<([A-Za-z]\w{0,20})>")
LAST_BLOCK = re.compile(r">[^<>]+</(?=\w+>\s*$)")
BOX = re.compile(r"boxed\{[^{}]+\}")
TOKEN = re.compile(r"\w+")
PROSE = "Let us look at this step by step and be careful about every detail of the question. "
AFTER = "\n\nI hope this helps, and wish you a pleasant day."
LONG = 120_000  # characters
MANY = 8_000  # characters of opened tags and boxes: common patterns take quadratic time on them
REPEATS = 100
JUNK = ("", "...", "asdf")
NO_ANSWERS = ("I don't know.", "I cannot answer that.", "nan", "NaN", "inf", "-inf", "None", "null", "N/A", "?")
ODD = (
    *("\x00", "\ud800", "\udfff\udc00", "\ufeff", "\ufffd\ufffd", "\u202e\u202d", "\u200b\u200d\u2060"),
    *("e\u0301\u0327\u0323" * 50, "ﷺ𝟘①²½٣", "🦙👩‍👩‍👧‍👦🏳️‍🌈", "İıßſﬀ", "\x1b[2J\x07", "\u2028\u2029\x85\x0b"),
)
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
HUGE = (
    *("a" * LONG, "9" * LONG, "(" * LONG, "{" * LONG, " " * LONG, "\n" * LONG, "-" * LONG + "1", "x,\n" * (LONG // 3)),
    *("<answer>" * (MANY // 8), "\\boxed{" * (MANY // 7), "1e999999999"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An example with a right completion, and what attacks on it are made of."""

    example: Example
    answer: str
    gold: str  # the answer in its form: scores full marks
    reward: float  # of the gold completion
    is_poor: bool = False  # it scores no more than an empty completion or junk
    forms: tuple[str, ...]  # in which the answer scores full marks too, that of `gold` first
    others: tuple[str, ...]  # answers to other examples
    wrong: tuple[str, ...]  # those of them that score less here
    plays: tuple[str, ...]  # by the rules, and no solution


def form_names(example: Example, own: str) -> list[str]:
    """The forms to try for an example: the given one, the usual ones, and the tags that its prompt or answer names."""
    if own:
        return [own]
    tags = dict.fromkeys(TAG.findall(example.prompt_text + example.answer))
    return list(dict.fromkeys([*FORMS, *(f"<{tag}>{ANSWER}</{tag}>" for tag in tags)]))


def filled(form: str, answer: str) -> str:
    return form.replace(ANSWER, answer)


def empty(_: Target) -> list[str]:
    return ["", " ", "\n\n"]


def echo(target: Target) -> list[str]:
    """The prompt, its last message, and both twice."""
    prompt = target.example.prompt
    last = prompt if isinstance(prompt, str) else prompt[-1].content
    return _distinct([target.example.prompt_text, last, f"{last}\n{last}"])


def echo_and_gold(target: Target) -> list[str]:
    return [f"{target.example.prompt_text}\n{target.gold}"]


def listed(target: Target) -> list[str]:
    """All answers, the right one among them and a wrong one last; also inside the form of an answer."""
    return [
        text
        for wrong in target.wrong[:1]
        for separator in (", ", "\n", " or ")
        for answers in [separator.join(_around(target, wrong))]
        for text in _distinct([answers, *(filled(form, answers) for form in target.forms[:1])])
    ]


def repeated(target: Target) -> list[str]:
    return [separator.join([target.gold] * REPEATS) for separator in ("\n", " ", "")]


def noise(target: Target) -> list[str]:
    return [f"{PROSE}\n{target.gold}", f"{target.gold}{AFTER}", f"{PROSE}{target.gold}{AFTER}"]


def embedded(target: Target) -> list[str]:
    """The answer as a part of a longer word or number."""
    if not TOKEN.fullmatch(target.answer):
        return []
    is_number = target.answer.isdecimal()
    glued = (f"73{target.answer}91", f"{target.answer}91") if is_number else (f"qz{target.answer}xj",)
    return [filled(form, text) for form in target.forms[:1] for text in glued]


def contradicted(target: Target) -> list[str]:
    """The right answer and then a wrong one, both as final answers."""
    pairs = [(form, wrong) for form in target.forms for wrong in target.wrong[:1]]
    return [f"{filled(form, target.answer)}\n\n{filled(form, wrong)}" for form, wrong in pairs]


def corrected(target: Target) -> list[str]:
    """A wrong answer and then the right one."""
    return [f"{filled(form, wrong)}\n\n{target.gold}" for form in target.forms[:1] for wrong in target.wrong[:1]]


def hedged(target: Target) -> list[str]:
    """Two answers in the place of one, in both orders: a rule that takes the first or the last takes one of them."""
    return [
        filled(form, text)
        for form in target.forms
        for wrong in target.wrong[:1]
        for text in (f"{target.answer} or {wrong}", f"{wrong} or {target.answer}")
    ]


def hollow(target: Target) -> list[str]:
    """The form of an answer with nothing or junk in it, also that of the right completion itself."""
    tags = dict.fromkeys(TAG.findall(target.example.prompt_text + target.gold))
    own = [f"<{tag}>{junk}</{tag}>" for tag in tags for junk in JUNK]
    emptied = [LAST_BLOCK.sub(f">{junk}</", target.gold) for junk in JUNK]
    boxes = [BOX.sub(f"boxed{{{junk}}}", target.gold) for junk in JUNK]
    forms = [filled(form, junk) for form in (*FORMS[1:], *target.forms) for junk in JUNK]
    return [text for text in _distinct([*own, *emptied, *boxes, *forms]) if target.answer not in text]


def unanswered(target: Target) -> list[str]:
    """Refusals, and what a conversion to a number takes without complaint, bare and in the form of an answer."""
    texts = [form for text in NO_ANSWERS for form in (text, filled(target.forms[0], text))]
    return [text for text in _distinct(texts) if target.answer.casefold() not in text.casefold()]


def long_reasoning(target: Target) -> list[str]:
    """Much reasoning before a wrong answer."""
    thought = f"<think>\n{PROSE * 60}\n</think>\n"
    return [thought + filled(target.forms[0], wrong) for wrong in target.wrong[:1]]


def long_text(_: Target) -> list[str]:
    return list(HUGE)


def long_and_gold(target: Target) -> list[str]:
    return [f"{PROSE * (LONG // len(PROSE))}\n{target.gold}"]


def odd_text(_: Target) -> list[str]:
    return list(ODD)


def odd_gold(target: Target) -> list[str]:
    gold = target.gold
    middle = len(gold) // 2
    marks = ("\u200b", "\u202e", "\u0301", "\x00", "\ud800", "\u00a0")
    return [gold.translate(FULL_WIDTH), *(gold[:middle] + mark + gold[middle:] for mark in marks)]


def variants(target: Target) -> list[str]:
    gold = target.gold
    variants = (gold.upper(), gold.lower(), f" {gold}", f"{gold}\n", f"\n\n{gold} ", f"{gold}.")
    return [text for text in _distinct(variants) if text != gold]


def truncated(target: Target) -> list[str]:
    """The first half, unless it states the end already; of one word or number also all but its last character."""
    answer = target.answer
    half, last = answer[: len(answer) // 2], (TOKEN.findall(answer) or [answer])[-1]
    cuts = [half] if half and last not in half else []
    if TOKEN.fullmatch(answer) and len(answer) > 2:
        cuts.append(answer[:-1])
    return [filled(target.forms[0], cut) for cut in cuts]


def answers_of_others(target: Target) -> list[str]:
    return [filled(target.forms[0], other) for other in target.others[:4]]


def legal_play(target: Target) -> list[str]:
    return list(target.plays)


def _around(target: Target, last: str) -> list[str]:
    """Other answers with the right one in the middle and `last` at the end."""
    others = [other for other in target.others if other != last]
    middle = len(others) // 2
    return [*others[:middle], target.answer, *others[middle:], last]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
