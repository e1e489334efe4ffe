r"""Formulas in LaTeX or plain text, evaluated at fixed points: two formulas that are equal at all of them are equal.

Rational arithmetic is exact; roots, π and functions are floating-point numbers. Symbols stand for rational numbers that
are derived from their names, so an identity of polynomials or rational functions is tested exactly (Schwartz 1980,
Zippel 1979). Nothing is ever passed to `eval`, and the size of every number is bounded.
"""

import cmath
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from hashlib import blake2b

Value = Fraction | complex
POINTS = 3  # at which formulas are compared
LONGEST = 400  # characters of a formula
DEEPEST = 40  # brackets inside of brackets
MOST_BITS = 20_000  # of an exact number
TOLERANCE = 1e-9  # relative, between floating-point numbers

TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(\\[A-Za-z]+|[A-Za-z])|(\*\*|\S))")
SUBSCRIPT = re.compile(r"_(?:\{\s*(\w{1,10})\s*\}|(\w))")
POWER_OF_TEN = re.compile(r"[eE][-+]?\d{1,3}(?!\w)")
DIGIT = re.compile(r"\s*(\d)")
WHOLE = re.compile(r"\s*(\d+)(?![\d.])")
MIXED = re.compile(r"\s+(\d+)\s*/\s*(\d+)(?![\d.])|\s*\\frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))")
TIMES, DIVIDED = ("*", "\\cdot", "\\times"), ("/", "\\div")
OPENING = {"(": ")", "{": "}", "[": "]"}
ENDS = ("", "+", "-", ")", "}", "]", "^", "**", "!", "=", ",", "|", "_")
CONSTANTS: Mapping[str, complex] = {"\\pi": math.pi, "e": math.e, "i": 1j}
FUNCTIONS: Mapping[str, Callable[[complex], complex]] = {
    **{"\\sin": cmath.sin, "\\cos": cmath.cos, "\\tan": cmath.tan, "\\exp": cmath.exp, "\\ln": cmath.log},
    **{"\\arcsin": cmath.asin, "\\arccos": cmath.acos, "\\arctan": cmath.atan},
    **{"\\cot": lambda x: 1 / cmath.tan(x), "\\sec": lambda x: 1 / cmath.cos(x), "\\csc": lambda x: 1 / cmath.sin(x)},
}
GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega infty"
SYMBOLS = {f"\\{name}" for word in GREEK.split() for name in (word, word.capitalize(), f"var{word}")} | {"\\ell"}


class NotAFormula(ValueError):
    """The text is not a formula that is understood here, or one with too large numbers."""


def values(text: str) -> tuple[Value, ...]:
    """The formula at each of the points."""
    if len(text) > LONGEST:
        raise NotAFormula
    return tuple(_at(text, point) for point in range(POINTS))


def is_same(one: Value, other: Value) -> bool:
    """Exactly, of rational numbers; else up to rounding."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    try:
        return cmath.isclose(complex(one), complex(other), rel_tol=TOLERANCE, abs_tol=TOLERANCE**1.5)
    except OverflowError:
        return False


def _at(text: str, point: int) -> Value:
    reader = _Reader(text, point)
    try:
        value = reader.sum()
    except (ArithmeticError, ValueError) as error:
        raise NotAFormula from error
    if reader.peek():
        raise NotAFormula
    return _bounded(value)


class _Reader:
    """Reads and evaluates a formula at once, by recursive descent."""

    def __init__(self, text: str, point: int) -> None:
        self._text, self._point = text, point
        self._place = self._depth = 0

    def peek(self) -> str:
        """The next token; empty at the end."""
        found = TOKEN.match(self._text, self._place)
        return found[0].strip() if found else ""

    def _take(self) -> str:
        found = TOKEN.match(self._text, self._place)
        if not found:
            raise NotAFormula
        self._place = found.end()
        return found[0].strip()

    def _took(self, *tokens: str) -> bool:
        if self.peek() in tokens:
            self._take()
            return True
        return False

    def sum(self) -> Value:
        total = self._signed_product()
        while self.peek() in ("+", "-"):
            total = _bounded(total + self._signed_product())
        return total

    def _signed_product(self) -> Value:
        sign = 1
        while self.peek() in ("+", "-"):
            sign *= -1 if self._take() == "-" else 1
        return sign * self._product()

    def _product(self) -> Value:
        product = self._power()
        while self.peek() not in ENDS:
            if self._took(*DIVIDED):
                product = _bounded(product / self._factor())
            elif self._took(*TIMES):
                product = _bounded(product * self._factor())
            elif self.peek()[0] in ".0123456789":
                raise NotAFormula  # two numbers side by side
            else:
                product = _bounded(product * self._power())
        return product

    def _factor(self) -> Value:
        return -self._factor() if self._took("-") else self._power()

    def _power(self) -> Value:
        base = self._atom()
        if self._took("^", "**"):
            exponent = self._exponent()
            base = raised(base, exponent)
        while self._took("!"):
            base = _factorial(base)
        return base

    def _exponent(self) -> Value:
        return self._inside("{") if self.peek() == "{" else self._factor()

    def _atom(self) -> Value:
        mixed = self._mixed_number()
        if mixed is not None:
            return mixed
        token = self._take()
        if token[0] in ".0123456789":
            power = POWER_OF_TEN.match(self._text, self._place)
            self._place = power.end() if power else self._place
            return Fraction(token + (power[0] if power else ""))
        if token in OPENING:
            self._place -= len(token)
            return self._inside(token)
        if token in ("\\frac", "\\binom", "\\sqrt", "\\log"):
            return self._command(token)
        if token in FUNCTIONS:
            return self._function(token)
        return self._symbol(token)

    def _mixed_number(self) -> Fraction | None:
        """1 1/2 or 1\\frac{1}{2}."""
        whole = WHOLE.match(self._text, self._place)
        part = MIXED.match(self._text, whole.end()) if whole else None
        if not whole or not part:
            return None
        self._place = part.end()
        top, bottom = (number for number in part.groups() if number is not None)
        return Fraction(int(whole[1])) + Fraction(int(top), int(bottom))

    def _command(self, command: str) -> Value:
        match command:
            case "\\frac":
                return _bounded(self._argument() / self._argument())
            case "\\binom":
                return _binomial(self._argument(), self._argument())
            case "\\sqrt":
                degree = self._inside("[") if self.peek() == "[" else Fraction(2)
                return raised(self._argument(), 1 / degree)
        base = self._argument() if self._took("_") else Fraction(10)
        return cmath.log(self._power()) / cmath.log(base)

    def _function(self, token: str) -> Value:
        exponent = self._exponent() if self._took("^") else Fraction(1)
        if exponent == -1:
            raise NotAFormula  # an inverse or a reciprocal
        return raised(FUNCTIONS[token](complex(self._power())), exponent)

    def _symbol(self, token: str) -> Value:
        if not token.isalpha() and token not in SYMBOLS and token not in CONSTANTS:
            raise NotAFormula
        subscript = SUBSCRIPT.match(self._text, self._place)
        if subscript:
            self._place = subscript.end()
            return self._named(f"{token}_{subscript[1] or subscript[2]}")
        return CONSTANTS[token] if token in CONSTANTS else self._named(token)

    def _named(self, name: str) -> Fraction:
        drawn = int.from_bytes(blake2b(f"{self._point} {name}".encode(), digest_size=4).digest())
        return Fraction(drawn % 1009 + 2, 101)

    def _argument(self) -> Value:
        """What a command takes: braces, or one digit or symbol."""
        if self.peek() == "{":
            return self._inside("{")
        digit = DIGIT.match(self._text, self._place)
        if digit:
            self._place = digit.end()
            return Fraction(int(digit[1]))
        return self._atom()

    def _inside(self, opening: str) -> Value:
        self._depth += 1
        if self._depth > DEEPEST or self._take() != opening:
            raise NotAFormula
        value = self.sum()
        if self._take() != OPENING[opening]:
            raise NotAFormula
        self._depth -= 1
        return value


def raised(base: Value, exponent: Value) -> Value:
    """base^exponent: exact where both are rational and the result is too, and bounded."""
    if not isinstance(exponent, Fraction) or not isinstance(base, Fraction):
        if isinstance(exponent, Fraction) and exponent == 1:
            return base
        return complex(base) ** complex(exponent)
    power, degree = exponent.numerator, exponent.denominator
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(power) > MOST_BITS:
        raise NotAFormula
    if degree == 1:
        return base**power
    root = _exact_root(base**power, degree) if base >= 0 else None
    return root if root is not None else complex(base) ** complex(float(exponent))


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    if degree != 2:
        return None
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else None


def _factorial(value: Value) -> Value:
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= 500:
        raise NotAFormula
    return Fraction(math.factorial(int(value)))


def _binomial(n: Value, k: Value) -> Value:
    whole = [x for x in (n, k) if isinstance(x, Fraction) and x.denominator == 1 and 0 <= x <= 500]
    if len(whole) < 2:
        raise NotAFormula
    return Fraction(math.comb(int(whole[0]), int(whole[1])))


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MOST_BITS:
            raise NotAFormula
    elif not cmath.isfinite(value):
        raise NotAFormula
    return value
