"""Equal and different answers: a table that holds with and without math-verify, identities, formulas that hang."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.limited_process import LimitedProcess
from whet.tasks.maths import equality
from whet.tasks.maths.equality import is_same, verified, vote_key
from whet.tasks.maths.readings import is_equal, read

needs_math_verify = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed"
)

# (expected, found): equal here and by math-verify alone
SAME = [
    ("18", "18.0"), ("18", "\\$18"), ("18", "x = 18"), ("18", "9+9=18"), ("1234", "1,234"), ("1234", "1{,}234"),
    ("5", "5 km"), ("5", "5\\text{ km}"), ("5", "5 \\text{ apples}"), ("3/4", "\\frac{3}{4}"), ("3/4", "\\dfrac34"),
    ("3/4", "0.75"), ("3/4", ".750"), ("3/4", "75\\%"), ("75", "75\\%"), ("75\\%", "0.75"), ("1\\frac{1}{2}", "3/2"),
    ("-3", "-3.0"), ("-\\frac{1}{2}", "\\frac{-1}{2}"), ("0.50", "1/2"),
    ("(1,2)", "\\left( 1, 2 \\right)"), ("(1,2]", "(1, 2]"), ("\\{1,2\\}", "\\{2,1\\}"), ("1,2", "2, 1"),
    ("\\text{east}", "\\text{east}"), ("\\frac{\\pi}{2}", "\\pi/2"), ("3\\sqrt{2}", "\\sqrt{18}"), ("p - q", "-q+p"),
    ("x^2+2x+1", "(x+1)^2"), ("\\frac{1}{2}x", "\\frac{x}{2}"), ("90^\\circ", "90"), ("6 - 5i", "-5i+6"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty) \\cup (-\\infty,2)"),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("\\frac{9}{4}", "2.25"), ("100", "1 \\times 10^2"), ("5", "$5$"),
]  # fmt: skip
DIFFERENT = [
    ("18", "81"), ("18", "-18"), ("18", "18 or 20"), ("18", "18, 20"), ("18", "\\{18, 20\\}"), ("75", "0.75"),
    ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"), ("x^2+2x+1", "(x+2)^2"), ("\\sqrt{2}", "1.414"), ("1/3", "0.333"),
    ("2\\sin x", "2"), ("5x", "5"), ("5", "5x"), ("5", "1/0"), ("5", ""), ("5", "five"), ("p - q", "q - p"),
    ("\\{1,2\\}", "\\{1,2,3\\}"), ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"),
    ("\\text{east}", "\\text{west}"), ("5", "\\infty"), ("0", "\\emptyset"), ("1,2", "1"), ("12", "1 2"),
]  # fmt: skip
# Here both agree, math-verify alone does not: it is not asked where both answers are understood here.
SAME_HERE = [
    ("18", "18 dollars"), ("1234", "1\\,234"), ("1 1/2", "1.5"), ("1.5e3", "1500"), ("100", "1e2"), ("-3", "−3"),
    ("5 million", "5000000"), ("5 km", "5 kilometers"), ("5", "**5**"), ("5", "5."), ("1,2", "1 and 2"), ("5", "$5"),
    ("$18.90", "18.9 dollars"), ("\\text{(C)}", "C"), ("\\text{East}", "east"), ("12 square feet", "12 ft^2"),
    ("x=5, y=2", "y=2, x=5"), ("1 \\pm \\sqrt{2}", "1-\\sqrt2, 1+\\sqrt2"), ("18", "Total cost = 9 + 9 = 18"),
    ("18", "18=9+9"), ("3000", "3 \\times {10}^{3}"),
]  # fmt: skip
DIFFERENT_HERE = [
    ("18", "5 = 18"), ("18", "6 = 18"), ("5 km", "5 miles"), ("\\$5", "5 cents"), ("(1,2)", "\\{1,2\\}"), ("A", "a"),
    ("\\text{east}", "seat"), ("18", "18 \\neq 20"), ("18", "18?"), ("x=5, y=2", "x=2, y=5"), ("11", "1 1"),
]  # fmt: skip
# (number, computation): the number answers the computation, and the computation not the number.
COMPUTED = [
    ("18", "2 \\cdot 9"), ("18", "9+9"), ("18", "20-2"), ("18", "36/2"), ("18", "\\dfrac{36}{2}"), ("18", "(2)(9)"),
    ("16", "2^4"), ("1024", "2^{10}"), ("1000", "10^3"), ("120", "5!"), ("6", "\\sqrt{36}"), ("10", "\\binom{5}{2}"),
    ("3", "\\log_2 8"), ("2", "\\sqrt[3]{8}"), ("0.5", "1-0.5"), ("3/4", "1/4+1/2"), ("-2", "3-5"),
    ("6 apples", "3+3"), ("45^\\circ", "90/2"), ("x=6", "3+3"), ("\\frac12", "1-1/2"), ("18.00", "36/2"),
]  # fmt: skip
# Not understood here: only math-verify says that these are equal.
BY_MATH_VERIFY = [("x<2", "(-\\infty,2)"), ("2x - y = 3", "y = 2x-3"), ("\\sum_{k=1}^{3} k", "6")]


def ways() -> list[object]:
    return [pytest.param(True, marks=needs_math_verify, id="math-verify"), pytest.param(False, id="alone")]


@pytest.fixture(params=ways())
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(equality, "has_math_verify", lambda: False)
    return request.param


@pytest.mark.usefixtures("way")
def test_the_table_is_true_both_ways() -> None:
    assert [pair for pair in (*SAME, *SAME_HERE) if not is_same(*pair)] == []
    assert [pair for pair in (*SAME, *SAME_HERE) if not is_same(*reversed(pair))] == []
    assert [pair for pair in (*DIFFERENT, *DIFFERENT_HERE, *COMPUTED) if is_same(*pair)] == []
    assert [pair for pair in COMPUTED if not is_same(*reversed(pair))] == []


@needs_math_verify
def test_math_verify_alone_agrees_on_the_first_tables_and_not_on_the_others() -> None:
    assert [pair for pair in SAME if not verified(*pair)] == []
    assert [pair for pair in DIFFERENT if verified(*pair)] == []
    for pair in BY_MATH_VERIFY:
        assert is_same(*pair)


def test_what_only_math_verify_understands_is_different_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "has_math_verify", lambda: False)
    assert not any(is_same(*pair) for pair in BY_MATH_VERIFY)


@needs_math_verify
@pytest.mark.parametrize("formula", ["10^{10^{10}}", "\\sum_{k=1}^{2} k + 10000000!"])
def test_a_formula_that_hangs_or_fills_the_memory_equals_nothing(formula: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "SECONDS", 0.3)
    assert not verified("5", formula)
    monkeypatch.undo()
    assert verified("x+1", "1+x")  # and the next one is compared as before


def test_a_broken_installation_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("import part_that_is_missing")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(equality, "_MATH_VERIFY", LimitedProcess(equality._MATH_VERIFY._script))
    with pytest.raises(UserError, match=r"math-verify is installed and cannot be imported .*part_that_is_missing"):
        verified("x<2", "2>x")


@pytest.mark.parametrize(
    "text", ["\\frac{1}{" * 300 + "1" + "}" * 300, "(" * 5000, "9^" * 140 + "9", "9!" * 100, "1" * 299]
)
def test_large_formulas_are_no_problem_here(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "has_math_verify", lambda: False)
    assert not is_same("5", text)


numbers = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)


@given(numbers, numbers)
def test_fractions_are_equal_by_value_in_all_spellings(one: Fraction, other: Fraction) -> None:
    top, bottom = one.numerator, one.denominator
    spelled = [f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}", f"${3 * top}/{3 * bottom}$", f"x = {top}/{bottom} km"]
    first, *rest = (read(text) for text in spelled)
    for reading in rest:
        assert first is not None
        assert reading is not None
        assert is_equal(first, reading)
    assert len({vote_key(text) for text in spelled}) == 1
    assert is_same(str(one), str(other)) == (one == other)


@given(st.integers(-(10**12), 10**12), st.integers(0, 4))
def test_separators_decimals_and_percentages(whole: int, places: int) -> None:
    plain = f"{whole}.{'0' * places}" if places else str(whole)
    assert is_same(plain, f"{whole:,}")
    assert is_same(f"{whole:,}", f"${whole:,} dollars".replace("$-", "-$"))
    assert is_same(str(whole), f"{100 * whole}%")
    assert not is_same(str(whole), str(whole + 1))


coefficients = st.integers(-50, 50)


@given(coefficients, coefficients, coefficients)
def test_products_of_linear_factors_equal_their_expansion(a: int, b: int, c: int) -> None:
    factored, expanded = f"(x + {a})({b}x + {c})", f"{b}x^2 + {a * b + c}x + {a * c}"
    assert is_same(factored.replace("+ -", "- "), expanded)
    assert not is_same(factored, expanded + " + 1")


@given(st.text(alphabet="0123456789.,/-+*^(){}[]\\ $%=xyfrac sqrtpm<>!", max_size=60))
def test_no_text_raises(text: str) -> None:
    read(text)
    vote_key(text)


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("1/2", "0.5", True), ("1/2", "\\frac{1}{2}", True), ("50%", "0.5", True), ("50%", "50", False),
        ("5 km", "5", True), ("x = 5", "5", True), ("\\{1,2\\}", "2, 1", True), ("(1,2)", "(2,1)", False),
        ("x+1", "1+x", True), ("\\sqrt{8}", "2\\sqrt{2}", True), ("east", "\\text{East}", True),
        ("52_8", "52_{8}", True),
    ],
)  # fmt: skip
def test_votes_agree_where_answers_are_equal(one: str, other: str, agree: bool) -> None:
    assert (vote_key(one) == vote_key(other)) == agree
