"""Arithmetic expressions of numbers, + - * / and brackets: parsed here and computed exactly, never run as code."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()]))")
SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")", "{": "(", "}": ")"})
LONGEST = 200  # characters of an expression that is read
LARGEST = 10**9  # a number that is read


class NotAnExpression(ValueError):
    """A text is not an expression, or divides by zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    value: Fraction
    numbers: tuple[int, ...]  # as written, in order


def read_expression(text: str) -> Expression:
    """The value and the numbers of an expression."""
    tokens = _tokens(text.translate(SPELLINGS))
    parser = _Parser(tokens)
    value = parser.sum()
    if parser.place < len(tokens):
        raise NotAnExpression(f"unexpected {tokens[parser.place]!r}")
    return Expression(value=value, numbers=tuple(int(token) for token in tokens if token.isdigit()))


def _tokens(text: str) -> list[str]:
    if len(text) > LONGEST or not text.isascii():
        raise NotAnExpression("too long, or not plain text")
    found, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = TOKEN.match(text, place)
        if match is None:
            raise NotAnExpression(f"unexpected {text[place : place + 10]!r}")
        found.append(match[1] or match[2])
        place = match.end()
    if any(token.isdigit() and int(token) > LARGEST for token in found):
        raise NotAnExpression("a number is too large")
    return found


class _Parser:
    """Recursive descent: sums of products of numbers, brackets and negated terms."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens, self.place = tokens, 0

    def sum(self) -> Fraction:
        value = self._product()
        while self._next() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> Fraction:
        value = self._term()
        while self._next() in ("*", "/"):
            if self._take() == "*":
                value *= self._term()
                continue
            divisor = self._term()
            if divisor == 0:
                raise NotAnExpression("division by zero")
            value /= divisor
        return value

    def _term(self) -> Fraction:
        symbol = self._take()
        if symbol.isdigit():
            return Fraction(int(symbol))
        if symbol == "-":
            return -self._term()
        if symbol != "(":
            raise NotAnExpression(f"unexpected {symbol or 'end'!r}")
        value = self.sum()
        if self._take() != ")":
            raise NotAnExpression("a bracket is not closed")
        return value

    def _next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self.place += 1
        return token
