r"""What an answer says: a number with or without a unit, a list, tuple, interval, set or matrix, or words.

Reads LaTeX and plain text. `None` is an answer that is not understood here; two readings are compared by `is_equal`.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from whet.tasks.maths import formulas
from whet.tasks.maths.formulas import NotAFormula, Value, values

Kind = Literal["list", "set", "union", "matrix", "()", "[]", "(]", "[)"]
UNORDERED = ("list", "set", "union")

PLAIN = {
    **{"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "∪": "\\cup "},
    **{"√": "\\sqrt ", "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "°": " degrees", "\\$": "$", "\\%": "%", "~": " "},
    **{"\\{": "⦃", "\\}": "⦄", "\\lbrace": "⦃", "\\rbrace": "⦄", "\\neg ": "-", "\u00a0": " ", "\u202f": " "},
}
SPACING = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])|\\!|\\phantom\{[^{}]*\}")
SPACE = re.compile(r"(?<!\\)\\(?:[;: ]|q?quad(?![A-Za-z])|,)")
THIN_THOUSANDS = re.compile(r"(?<=\d)(?:\\,|\{,\}|,\\!)(?=\d{3}(?!\d))")
THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degrees?(?![A-Za-z])")
WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm|sf|tt)?|mbox|hbox|math(?:rm|bf|it|sf|bb)|operatorname)\s*\{([^{}]*)\}")
MATH_MODE = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))
LETTERED = re.compile(r"\(?\s*([A-Za-z])\s*\)?")  # a choice: C, (C)
WORDS = re.compile(r"[A-Za-z]{3,}(?:[ ,'-]+[A-Za-z]+)*|no")
NAMED = re.compile(r"([A-Za-z](?:_\{?\w{1,4}\}?)?(?:\([A-Za-z]\))?|\\[a-z]+|[A-Za-z][A-Za-z ]{1,40})\s*$")
MEMBER = re.compile(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")
CURRENCY = re.compile(r"^\s*([-+]?)\s*([$€£¥₹])\s*([-+]?)")
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}
MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
TAIL = re.compile(
    r"(?:(?<=[\d)}!])|(?<=\s))((?:[A-Za-z][A-Za-z.'-]*(?:\s*/\s*|\s+)){0,15}[A-Za-z][A-Za-z.'-]*)\s*(?:\^\s*\{?\s*([23])\s*\}?)?\s*$"
)
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words that do not only name what is counted.
JOINING = {
    *("and", "or", "not", "nor", "minus", "plus", "times", "over", "half", "quarter", "third", "dozen", *SCALES),
    *("halves", "thirds", "quarters", "fourths", "fifths", "sixths", "sevenths", "eighths", "ninths", "tenths"),
    *("hundredths", "thousandths", "dozens", *(f"{scale}s" for scale in SCALES)),
    *("squared", "cubed", "factorial", "than", "least", "most", "instead", "wrong", "incorrect"),
    *("sin", "cos", "tan", "log", "ln", "exp", "sqrt", "pi", "pm", "mod", "div", "cup", "cap"),
}
SHORT_WORDS = ("a", "an", "of", "to", "at", "is", "he", "it", "we", "so", "by", "on")  # that are no units
SPELLINGS = (  # of units; the first stands for the others
    *("dollar dollars usd", "cent cents", "euro euros eur", "meter m meters metre metres", "kilometer km kilometers"),
    *("centimeter cm centimeters centimetres", "millimeter mm millimeters", "inch inches in", "foot feet ft"),
    *("yard yards yd", "mile miles mi", "gram g grams", "kilogram kg kgs kilograms", "milligram mg"),
    *("pound pounds lb lbs", "ounce ounces oz", "liter l liters litres", "milliliter ml milliliters"),
    *("second s sec secs seconds", "minute min mins minutes", "hour h hr hrs hours", "day days", "week weeks"),
    *("month months", "year years yr yrs", "degree degrees", "radian radians rad"),
)
UNITS = {spelling: names.split()[0] for names in SPELLINGS for spelling in names.split()}


@dataclass(frozen=True, slots=True)
class Number:
    """A formula by its values at the points of `formulas`."""

    at: tuple[Value, ...]
    is_percent: bool = False
    unit: str = ""  # of UNITS; empty: none, or another word


@dataclass(frozen=True, slots=True)
class Several:
    """Things in a list, a set or brackets."""

    kind: Kind
    items: tuple["Reading", ...]


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or a choice by its letter."""

    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """x = …"""

    name: str
    value: "Reading"


Reading = Number | Several | Words | Named


class Contradiction(NotAFormula):
    """A chain of equations whose sides differ, such as 5 = 6."""


@lru_cache(maxsize=4096)
def read(text: str) -> Reading | None:
    """What the answer says; None if it is not understood, or contradicts itself."""
    try:
        return _read(clean(text), depth=0)
    except NotAFormula:
        return None


def clean(text: str) -> str:
    """The answer without LaTeX and Markdown that does not change what it says."""
    text = THIN_THOUSANDS.sub("", text[: 2 * formulas.LONGEST].strip())
    for written, plain in PLAIN.items():
        text = text.replace(written, plain)
    text = SPACE.sub(" ", SPACING.sub("", DEGREES.sub(" degrees", text)))
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", WRAPPED.sub(r" \1 ", WRAPPED.sub(r" \1 ", text)))
    text = text.strip().rstrip(".,;:").strip()
    for start, end in MATH_MODE:
        if len(text) > len(start + end) and text.startswith(start) and text.endswith(end):
            text = text[len(start) : -len(end)].strip().rstrip(".").strip()
    return text


@lru_cache(maxsize=4096)
def tidy(text: str) -> str:
    """The cleaned answer without spaces and braces that change nothing, to compare it as text."""
    text = re.sub(r"([\^_])\{(\w)\}", r"\1\2", clean(text))
    text = re.sub(r"\\frac ?(\d)(\d)", r"\\frac{\1}{\2}", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def is_equal(one: Reading, other: Reading) -> bool:
    """Whether two readings say the same; not both ways round for percentages, whose sign may be left out."""
    if isinstance(one, Named) != isinstance(other, Named):
        one, other = (side.value if isinstance(side, Named) else side for side in (one, other))
    if isinstance(one, Number) and isinstance(other, Number):
        return _is_same_number(one, other)
    if isinstance(one, Several) and isinstance(other, Several):
        return _is_same_sequence(one, other)
    if isinstance(one, Named) and isinstance(other, Named):
        return one.name == other.name and is_equal(one.value, other.value)
    return isinstance(one, Words) and isinstance(other, Words) and one.text == other.text


def key(reading: Reading) -> str:
    """The same text for equal readings, for a vote; a percentage is a hundredth, units and names are left out."""
    match reading:
        case Number():
            return " ".join(_number_key(value / 100 if reading.is_percent else value) for value in reading.at)
        case Several():
            items = [key(item) for item in reading.items]
            kind = "list" if reading.kind == "set" else reading.kind
            return f"{kind}[{'; '.join(sorted(items) if kind in UNORDERED else items)}]"
        case Named():
            return key(reading.value)
    return reading.text


def _read(text: str, *, depth: int) -> Reading:
    text = MEMBER.sub("", text.strip())
    if not text or depth > 4:
        raise NotAFormula
    if "=" in text:
        return _equation(text, depth)
    if "\\pm" in text:
        sides = (_read(re.sub(r"\\pm(?![A-Za-z])", sign, text), depth=depth + 1) for sign in "+-")
        return Several("list", tuple(sides))
    return _several(text, depth) or _words(text) or _number(text)


def _equation(text: str, depth: int) -> Reading:
    """x = 5; or a chain of equal sides, which says what each of them says."""
    if depth == 0 and len(parts := _split(text, ",")) > 1 and all("=" in part for part in parts):
        return Several("list", tuple(_read(part, depth=1) for part in parts))
    first, *rest = text.split("=")
    if not rest or not all(side.strip() for side in (first, *rest)):
        raise NotAFormula
    name = NAMED.fullmatch(first.strip())
    sides = [_read(side, depth=depth + 1) for side in (rest if name else (first, *rest))]
    if not all(is_equal(sides[0], side) for side in sides[1:]):
        raise Contradiction
    if not name:
        return sides[0]
    short = re.sub(r"[{}\s]", "", name[1])
    return Named(short, sides[-1]) if len(short) < 4 or "(" in short else sides[-1]


def _several(text: str, depth: int) -> Reading | None:
    matrix = MATRIX.fullmatch(text)
    if matrix:
        rows = (re.split("&", row) for row in re.split(r"\\\\", matrix[2]) if row.strip())
        return Several("matrix", tuple(_items("()", row, depth) for row in rows))
    parts = _split(text, "\\cup")
    if len(parts) > 1:
        return _items("union", parts, depth)
    closing = _closing(text)
    if closing == len(text) - 1 and text[0] in "([⦃":
        inner = _split(text[1:-1], ",")
        if text[0] == "⦃" and text[-1] == "⦄":
            return _items("set", inner, depth)
        if len(inner) > 1 and text[-1] in ")]":
            return _items(text[0] + text[-1], inner, depth)  # type: ignore[arg-type]
    listed = (
        re.split(r"\s+(?:and|or)\s+|,\s*(?:and|or)\s+", text) if re.search(r"\d\W*\s(?:and|or)\s", text) else [text]
    )
    bare = [part for one in listed for part in _split(THOUSANDS.sub(_joined, one), ",")]
    if len(bare) < 2:
        return None
    found = _items("list", bare, depth)
    is_one = all(is_equal(found.items[0], item) for item in found.items[1:])  # the same twice
    return found.items[0] if is_one else found


def _joined(found: re.Match[str]) -> str:
    return found[1].replace(",", "")


def _items(kind: Kind, parts: list[str], depth: int) -> Several:
    return Several(kind, tuple(_read(part, depth=depth + 1) for part in parts))


def _words(text: str) -> Words | None:
    letter = LETTERED.fullmatch(text)
    if letter:
        return None if text.strip() == letter[1] and letter[1].islower() else Words(letter[1])
    return Words(" ".join(text.casefold().split())) if WORDS.fullmatch(text) else None


def _number(text: str) -> Number:
    currency = CURRENCY.match(text)
    unit = ""
    if currency:
        unit, text = CURRENCIES[currency[2]], currency[1] + currency[3] + text[currency.end() :]
    elif text.endswith("$"):
        unit, text = "dollar", text[:-1]
    text, scale, named_unit = without_unit(THOUSANDS.sub(_joined, text))
    text = text.strip()
    is_percent = text.endswith("%")
    at = values(text.rstrip("%").strip() if is_percent else text)
    return Number(tuple(value * scale for value in at), is_percent, unit or named_unit)


def without_unit(text: str) -> tuple[str, int, str]:
    """The text before the words that name a unit or what is counted, the factor of "million", and the unit."""
    tail = TAIL.search(text)
    if not tail:
        return text, 1, ""
    words = [word.strip(".'") for word in re.split(r"[\s/]+", tail[1].lower())]
    before = text[: tail.start()]
    if words[0] in ("percent", "percentage"):
        return f"{before.strip()}%", 1, ""
    scale = SCALES.get(words[0], 1)
    words = words[1:] if scale > 1 else words
    if not words:
        return before, scale, ""
    is_apart = before.endswith((" ", "}")) or len(words[0]) > 1
    is_noun = all(len(word) > 2 or word in UNITS or word in SHORT_WORDS for word in words)
    if not before.strip() or not is_apart or not is_noun or JOINING & set(words):
        return text, 1, ""
    squared = tail[2] or {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}.get(words[0], "")
    unit = UNITS.get(words[-1] if squared else words[0], "") if len(words) <= 2 else ""
    return before, scale, unit + squared if unit else ""


def _is_same_number(one: Number, other: Number) -> bool:
    """12 % is 0.12, and also 12 where the other side has no percent sign. Units differ where both sides name one."""
    if one.unit and other.unit and one.unit != other.unit:
        return False
    hundredths = [
        replace(side, at=tuple(value / 100 for value in side.at)) if side.is_percent else side for side in (one, other)
    ]
    without_sign = one.is_percent != other.is_percent and _agree(one, other)
    return _agree(*hundredths) or without_sign


def _agree(one: Number, other: Number) -> bool:
    return all(formulas.is_same(*pair) for pair in zip(one.at, other.at, strict=True))


def _is_same_sequence(one: Several, other: Several) -> bool:
    kinds = {one.kind, other.kind}
    if len(one.items) != len(other.items) or (len(kinds) > 1 and kinds != {"list", "set"}):
        return False
    if one.kind not in UNORDERED:
        return all(is_equal(*pair) for pair in zip(one.items, other.items, strict=True))
    left = list(other.items)
    for item in one.items:
        place = next((place for place, candidate in enumerate(left) if is_equal(item, candidate)), None)
        if place is None:
            return False
        left.pop(place)
    return True


def _number_key(value: Value) -> str:
    if isinstance(value, Fraction):
        return f"{value.numerator:x}/{value.denominator:x}"
    return f"{value.real + 0:.8e}" if abs(value.imag) < 1e-12 else f"{value.real + 0:.8e} {value.imag:.8e}"


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are in no bracket."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        depth += (text[place] in "([{⦃") - (text[place] in ")]}⦄")
        if depth == 0 and text.startswith(separator, place):
            parts.append(text[start:place])
            place = start = place + len(separator)
            continue
        place += 1
    return [*parts, text[start:]]


def _closing(text: str) -> int:
    """The place of the bracket that closes the one at the start; of an interval either kind."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "([{⦃") - (letter in ")]}⦄")
        if depth == 0:
            return place
    return -1
