"""Right answers in completions: the last match counts, and numbers are compared as numbers."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from whet.errors import RunFailed, UserError, nearest
from whet.limited_process import LimitedProcess, ProcessEnded
from whet.tasks.maths.equality import is_same, vote_key
from whet.tasks.maths.extraction import NUMBER, boxed, final_answer
from whet.tasks.pattern_worker import last_match

WAYS = ("exact", "number", "boxed", "choice", "regex", "maths")
LONGEST_BARE = 200  # characters of an answer that is nothing but the answer, in data for the way maths
MOST_WORDS = 5  # of a bare answer without a number
STATED_CHOICE = re.compile(  # not the words "a" and "i" after "the answer is"
    r"(?i:answer is|answer:|correct:|choose|option|choice)[\s(*\[]*"
    r"((?![ai]\s+[a-z])[A-Za-z])(?![\w'])"
    r"|(?<![\w'])([A-Z])\)? is (?:the )?(?:correct|right)"
)
CHOICE = re.compile(
    r"\(([A-Za-z])\)"
    r"|(?<![\w'])([B-HJ-Z])(?![\w'])"
    r"|(?<![\w'])([AI])(?![\w'])(?!\s+[a-z])"  # not the words "A" and "I"
)
ALONE = re.compile(r"\W*([A-Za-z])\W*")
LEADING_CHOICE = re.compile(r"\s*\(?([A-Za-z])(?:[).:\s]|$)")  # "B", "(b)", "B. Paris"
SHORT_FRACTION = re.compile(r"\\[dt]?frac ?(\d)(\d)")  # \frac12
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")
UNSEEN = re.compile(r"\\left|\\right|\\[!,;: ]|\^\{?\\circ\}?|[$\s]")  # LaTeX that does not change an answer
SECONDS = 2.0  # CPU time for a user's pattern on one text; a sane one takes a thousandth of it
_PATTERNS = LimitedProcess(Path(__file__).with_name("pattern_worker.py"))


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """Compares completions with answers in one of the `WAYS`."""

    way: str
    pattern: str = ""  # of the way regex: its first group, or all of it, is the answer
    last_number: bool = False  # of the way maths: the last number counts where no answer is marked

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise UserError(f"match is {self.way!r}{nearest(self.way, WAYS)} (ways: {', '.join(WAYS)})")
        if bool(self.pattern) != (self.way == "regex"):
            problem = "needs a pattern" if self.way == "regex" else "takes no pattern: use match=regex, or leave it out"
            raise UserError(f"match={self.way} {problem}")
        _ = self._regex

    def is_right(self, answer: str, text: str) -> bool:
        """Whether the completion gives the answer; without an answer none is right."""
        expected, found = self.expected(answer), self._found(text)
        if expected is None or found is None:
            return False
        if self.way in ("exact", "choice"):
            return expected == found
        if self.way == "maths":
            return is_same(expected, found)
        return _is_same_number(expected, found) or (self.way != "number" and _tidy(expected) == _tidy(found))

    def expected(self, answer: str) -> str | None:
        """What a completion must give; None if the answer has nothing of the kind."""
        if not answer.strip():
            return None
        if self.way == "choice" and (leading := LEADING_CHOICE.match(answer)):
            return leading[1].upper()
        if self.way == "maths":
            return final_answer(answer) or (answer.strip() if _is_bare(answer) else None)
        found = self._found(answer)
        return answer.strip() if found is None and self.way in ("boxed", "regex") else found

    def vote(self, text: str) -> str | None:
        """What the completion gives, spelled alike where it is equal; None if it gives nothing of the kind."""
        found = self._found(text)
        if found is None or self.way in ("exact", "choice"):
            return found
        number = None if self.way == "maths" else _number(found)
        return vote_key(found) if number is None else vote_key(f"{number[0]}{'%' if number[1] else ''}")

    def _found(self, text: str) -> str | None:
        match self.way:
            case "number":
                return last_match(NUMBER, _plain_latex(text))
            case "boxed":
                return boxed(text)
            case "choice":
                alone = ALONE.fullmatch(text)
                found = alone[1] if alone else last_match(STATED_CHOICE, text) or last_match(CHOICE, text)
                return found and found.upper()
            case "regex":
                return self._applied(text)
            case "maths":
                return final_answer(text, last_number=self.last_number)
        return text.strip()

    def _applied(self, text: str) -> str | None:
        """The last match of the user's pattern, in a process that is ended when it takes too long."""
        try:
            found = _PATTERNS.ask({"pattern": self.pattern, "text": text, "seconds": SECONDS})["found"]
        except (TimeoutError, ProcessEnded) as error:
            problem = f"was not applied, because its process {error},"
            if isinstance(error, ProcessEnded) and error.is_slow:
                problem = f"takes more than {SECONDS:g} s"
            raise RunFailed(
                f"pattern {self.pattern!r} {problem} on a text of {len(text):,} characters ({text!r:.40} …): write one "
                "that backtracks less, e.g. without a repetition inside of a repetition"
            ) from None
        return None if found is None else str(found)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        try:
            return re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error


def _is_same_number(one: str, other: str) -> bool:
    """Whether both are numbers with one value. 12 % is 0.12, and also 12 where the other side has no percent sign."""
    ours, theirs = _number(one), _number(other)
    if ours is None or theirs is None:
        return False
    whole, other_whole = (value / 100 if is_percent else value for value, is_percent in (ours, theirs))
    return whole == other_whole or (ours[1] != theirs[1] and ours[0] == theirs[0])


def _number(text: str) -> tuple[Fraction, bool] | None:
    """The value of a text that is one number, percent signs apart, and whether it has one."""
    plain = _plain_latex(text).strip().strip("$").rstrip(".")
    if not NUMBER.fullmatch(plain):
        return None
    bare = re.sub(r"[$,%]|percent", "", plain).strip()
    sign = -1 if bare.startswith("-") else 1
    whole, _, rest = bare.lstrip("+-").rpartition(" ") if re.search(r"\d \d", bare) else ("0", "", bare.lstrip("+-"))
    top, _, bottom = rest.replace(" ", "").partition("/")
    try:
        value = sign * (Fraction(whole) + Fraction(top) / Fraction(bottom or "1"))
    except (ValueError, ZeroDivisionError):  # ValueError: more digits than Python reads
        return None
    return value, plain.endswith(("%", "percent"))


def _plain_latex(text: str) -> str:
    text = text.replace("−", "-").replace("–", "-").replace("{,}", ",").replace("\\,", ",").replace("\\%", "%")
    return FRACTION.sub(r"\1/\2", SHORT_FRACTION.sub(r"\1/\2", text)).replace("\\$", "$").replace("\\!", "")


def _tidy(text: str) -> str:
    """The text without spaces and LaTeX that does not change its meaning."""
    text = re.sub(r"\\[dt]frac", r"\\frac", WRAPPED.sub(r"\1", text)).replace("\\%", "%")
    text = re.sub(r"\\frac ?(\d)(\d)", r"\\frac{\1}{\2}", re.sub(r"([\^_])\{(\w)\}", r"\1\2", text))
    return UNSEEN.sub("", text).rstrip(".")


def _is_bare(answer: str) -> bool:
    """Whether a text is an answer by itself: one line, and not a sentence without a number or a formula."""
    is_sentence = len(answer.split()) > MOST_WORDS and not re.search(r"[\d\\$]", answer)
    return len(answer) <= LONGEST_BARE and "\n" not in answer.strip() and not is_sentence
