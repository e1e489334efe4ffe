"""A calculator: exact arithmetic of bounded size; nothing is passed to `eval`."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

LONGEST = 300  # characters of an expression
MOST_BITS = 4_096  # of a result, on the way too
LARGEST_POWER = 1_000
DIGITS = 12  # significant, of a result that is not whole
SPELLINGS = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-", "$": ""}
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda one, other: Fraction(one // other),
    ast.Mod: operator.mod,
}


def calculator(expression: str) -> str:
    """Computes an arithmetic expression exactly, for example "(17.5 - 3) * 4 / 2".

    Args:
        expression: numbers with + - * / // % ** and brackets
    """
    text = THOUSANDS.sub("", expression)
    for spelling, ours in SPELLINGS.items():
        text = text.replace(spelling, ours)
    if len(text) > LONGEST:
        raise ValueError(f"the expression has {len(text)} characters, more than {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no arithmetic expression") from None
    return _written(_value(tree.body))


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(Fraction(repr(number)))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in OPERATIONS:
            return _bounded(OPERATIONS[type(operation)](_value(left), _value(right)))
    raise ValueError("only numbers, + - * / // % ** and brackets can be computed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number")
    if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MOST_BITS or (
        abs(exponent) > LARGEST_POWER
    ):
        raise ValueError("the number is too large")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ValueError("the number is too large")
    return value


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.{DIGITS}g}"
