"""Whether two answers are equal: as read here or, where one is not understood here, by math-verify if it is installed.

A formula that takes math-verify longer than SECONDS, or more memory than its process may have, equals nothing.
"""

import importlib.util
import re
from fractions import Fraction
from functools import cache
from pathlib import Path

from whet.errors import UserError
from whet.limited_process import LimitedProcess, ProcessEnded
from whet.tasks.maths.readings import Words, clean, is_equal, key, read, tidy, without_unit

SECONDS = 2.0  # CPU time of math-verify for one pair; most take a hundredth of it
LONGEST = 300  # characters of an answer: a final answer is shorter
DEEPEST = 12  # braces inside of braces
NUMBER = re.compile(  # written out: 12, $1,234.50, 3/4, 12%, 1.5e3, \frac{3}{4}, 1\frac{1}{2}
    r"[-+]?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?:/\d+)?%?|[-+]?\d*\\frac\{-?\d+\}\{\d+\}"
)
NAMED = re.compile(r"^[A-Za-z]\w*\s*=\s*")
SCIENTIFIC = re.compile(r"(?:\\times|\\cdot|[×·*])\{?10\}?(?:\^|\*\*)\{?[-+]?\d+\}?")
COMPUTATION = re.compile(  # of two terms or factors, or a power, root, factorial or binomial
    r"(?<=[\w)}\]!%$|])(?:[-+*×·÷−–∗⋅∙]|\\(?:times|cdot|div)(?![a-z]))(?=[\d.({\[|\\$+-])"
    r"|[\d)]\(|[\d)}]!|[\d)}]\^|\*\*|\\(?:sqrt|[dt]?binom|log|ln|choose)"
)
FRACTION = re.compile(r"[\d)}][/∕][\d({]|\\frac|\\over")
_MATH_VERIFY = LimitedProcess(Path(__file__).with_name("verify_worker.py"))


def is_same(expected: str, found: str) -> bool:
    """Whether a completion's answer equals the expected one."""
    if len(found) > LONGEST or not tidy(found):
        return False
    if tidy(expected) == tidy(found):
        return True
    if is_computation(expected, found):
        return False
    ours, theirs = read(expected), read(found)
    if ours is not None and theirs is not None:
        return is_equal(ours, theirs)
    if isinstance(ours, Words) or isinstance(theirs, Words) or not _may_ask(expected, found):
        return False
    return has_math_verify() and verified(expected, found)


def is_computation(expected: str, found: str) -> bool:
    """Whether a number is expected, and found is a computation that is left to do, such as 3+4, 2^10 or 12/2 for 6.

    Else the formula of a problem would be its answer. A fraction answers a problem whose answer is no whole number.
    """
    number = _written_out(expected)
    sides = [_written_out(side) for side in clean(found).split("=")]
    if not NUMBER.fullmatch(number) or any(map(NUMBER.fullmatch, sides[:-1])):
        return False
    last = SCIENTIFIC.sub("", sides[-1])
    return bool(COMPUTATION.search(last) or (_is_whole(number) and FRACTION.search(last)))


def _written_out(answer: str) -> str:
    """The answer without the name of its variable and its unit."""
    return tidy(without_unit(NAMED.sub("", clean(answer)))[0])


def _is_whole(number: str) -> bool:
    try:
        return Fraction(number.replace(",", "").replace("$", "")).denominator == 1
    except (ValueError, ZeroDivisionError):
        return False


def vote_key(answer: str) -> str:
    """The same text for answers that are equal as read here."""
    reading = read(answer) if len(answer) <= LONGEST else None
    return tidy(answer) if reading is None else key(reading)


def verified(expected: str, found: str) -> bool:
    """Whether math-verify says that they are equal, within its limits."""
    try:
        reply = _MATH_VERIFY.ask({"expected": expected, "found": found, "seconds": SECONDS})
    except (TimeoutError, ProcessEnded):
        return False
    if "problem" in reply:
        raise UserError(
            f"math-verify is installed and cannot be imported ({reply['problem']}): repair it (pip install "
            "'whet[maths]'), or uninstall it, and formulas are compared without it"
        )
    return bool(reply["same"])


@cache
def has_math_verify() -> bool:
    return importlib.util.find_spec("math_verify") is not None


def _may_ask(expected: str, found: str) -> bool:
    """Not about an equation where none is expected: math-verify takes one side of 5 = 6 for the answer."""
    relations = ("=", "\\ne", "<", ">", "\\le", "\\ge", "\\approx", "\\text", "?")
    if any(mark in found and mark not in expected for mark in relations):
        return False
    depth = deepest = 0
    for letter in found:
        depth += (letter in "{([") - (letter in "})]")
        deepest = max(deepest, depth)
    return deepest <= DEEPEST
