"""LLM-as-a-judge: which of two answers is better, asked in both orders."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from whet.engines.http.http_engine import HttpEngine
from whet.engines.http.transport import Connection
from whet.evaluate.win_rates import LOSS, TIE, WIN
from whet.records import Message, Prompt, Sampling
from whet.streams import name_number

Choice = Literal["first", "second", "tie", "unreadable"]  # of two answers in order

SYSTEM = (
    "You compare two answers to the same request. Judge how well each does what was asked: is it correct, helpful, "
    "complete, to the point? Do not let the order of the answers or their length decide. Say in a sentence or two what "
    "matters, then end with a line of its own: VERDICT: A, VERDICT: B, or VERDICT: TIE if neither is better."
)
QUESTION = "[Request]\n{prompt}\n\n[Answer A]\n{first}\n\n[Answer B]\n{second}\n\nWhich answer is better?"
# Capital A and B only, so that "verdict: a tie" is not an A.
WORD = r"(?i:answer\s+|an?\s+(?=tie))?(A|B|(?i:tie))\b"
MARKS = r"[\s:*\[\]\"'`().]*"
VERDICT, LONE = re.compile(rf"\b(?i:verdict)\b{MARKS}{WORD}"), re.compile(MARKS + WORD + MARKS)
CHOICES: dict[str, Choice] = {"A": "first", "B": "second", "TIE": "tie"}
# Consistent choices, asked with our answer first and then second. All others are ties: contradictions show the judge's
# position bias.
OUTCOMES: dict[tuple[Choice, Choice], float] = {
    ("first", "second"): WIN,
    ("second", "first"): LOSS,
    ("tie", "tie"): TIE,
}
ANSWER = Sampling(max_tokens=512, temperature=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    id: str  # names the judge's random stream
    prompt: str
    own: str
    start: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeVerdicts:
    """The judge's verdicts on many pairs."""

    outcomes: tuple[float, ...]  # per pair: 1 our answer won, 0.5 tie, 0 lost
    contradictions: int  # pairs where the order decided; counted as ties
    unreadable: int  # replies without a verdict, of two per pair; counted as ties


def ask_judge(url: str, model: str, pairs: Sequence[Compared], *, connection: Connection) -> JudgeVerdicts:
    """Asks about every pair in both orders; equal answers are ties without asking."""
    different = [index for index, pair in enumerate(pairs) if pair.own != pair.start]
    engine = HttpEngine(url, model, connection=connection, logprobs="none")
    prompts = [_prompt(engine, pairs[index], own_first=first) for index in different for first in (True, False)]
    replies = engine.generate(prompts, ANSWER) if prompts else []
    choices_read = [read_choice(completion.text) for (completion,) in replies]
    both = dict(zip(different, zip(choices_read[::2], choices_read[1::2], strict=True), strict=True))
    choices: list[tuple[Choice, Choice]] = [both.get(index, ("tie", "tie")) for index in range(len(pairs))]
    return JudgeVerdicts(
        outcomes=tuple(OUTCOMES.get(pair, TIE) for pair in choices),
        contradictions=sum(pair not in OUTCOMES and "unreadable" not in pair for pair in choices),
        unreadable=Counter(choices_read)["unreadable"],
    )


def read_choice(text: str) -> Choice:
    """The last verdict in a reply, or a reply that is only a verdict."""
    found = VERDICT.findall(text)
    lone = LONE.fullmatch(text)
    word = found[-1] if found else lone[1] if lone else ""
    return CHOICES.get(word.upper(), "unreadable")


def _prompt(engine: HttpEngine, pair: Compared, *, own_first: bool) -> Prompt:
    first, second = (pair.own, pair.start) if own_first else (pair.start, pair.own)
    asked = QUESTION.format(prompt=pair.prompt, first=first.strip(), second=second.strip())
    messages = (Message(role="system", content=SYSTEM), Message(role="user", content=asked))
    return Prompt(tokens=tuple(engine.tokenizer.prompt(messages)), stream=(name_number(pair.id), int(own_first)))
