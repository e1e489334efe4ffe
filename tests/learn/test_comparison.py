"""What is said of an answer that no common mistake explains, and gradients by differences."""

import math

import pytest

from whet.learn.calling import as_plain, same, shape, short
from whet.learn.comparison import Case, Compared, Mistake, differences, differing


@pytest.mark.parametrize(
    ("answer", "expected", "words"),
    [
        ([1.0, -2.0], [-1.0, 2.0], "the wrong sign"),
        (-3.0, 3.0, "the wrong sign"),
        ([2.0, 0.0, 4.0], [1.0, 0.0, 2.0], "is 2 times"),
        ([2.0, 1.0, 4.0], [1.0, 0.0, 2.0], "other numbers"),
        (6.0, 3.0, "other numbers"),  # of one number every answer is a multiple
        ([1.5, 2.5], [1.0, 2.0], "the same amount, 0.5"),
        ([[1.0], [2.0]], [1.0, 2.0], "the shape (2, 1) where it should be (2,)"),
        (1.0, [1.0, 2.0], "the shape of one number where it should be (2,)"),
        ([math.nan, 1.0], [1.0, 1.0], "nan or inf"),
        ("one", [1.0], "not numbers"),
        ({(1, 2): 1}, {(1, 2): 2}, "something else"),
    ],
)
def test_how_an_answer_differs(answer: object, expected: object, words: str) -> None:
    assert words in differing("f", answer, expected)


def test_sameness_is_relative_above_one_and_absolute_below() -> None:
    assert same([1000.05], [1000.0])
    assert not same([0.001], [0.0005])
    assert same({(1, 2): 3}, {(1, 2): 3.0})
    assert not same([1.0, 2.0], [1.0])
    assert not same(math.nan, 1.0)
    assert same(math.inf, math.inf)


def test_shapes_of_lists() -> None:
    assert (shape(2), shape([]), shape([[1, 2], [3, 4]])) == ((), (0,), (2, 2))
    assert shape([[1], [2, 3]]) is shape(["a"]) is None


def test_differences_are_the_derivative() -> None:
    def cubes(x: list[list[float]], scale: float) -> list[float]:
        return [scale * sum(number**3 for number in row) for row in x]

    found = differences(cubes, {"x": [[1.0, 2.0], [-1.0, 0.5]], "scale": 2.0}, "x")
    assert found == pytest.approx([6.0, 24.0, 6.0, 1.5], rel=1e-6)


def test_the_mistake_must_explain_every_case() -> None:
    """One that gives the answer on the first case alone was not made; one that cannot be computed is passed over."""
    check = Compared(
        "f",
        lambda x: 2 * x,
        [Case({"x": 2.0}), Case({"x": 3.0}, "the second case")],
        [
            Mistake(lambda x: x**2 + 100 * (x > 2.5), "wrong"),
            Mistake(lambda x: 1 / 0, "never"),
            Mistake(lambda x: x, "half"),
        ],
    )
    assert check({"f": lambda x: 2 * x}) is None
    halved, squared = check({"f": lambda x: x}), check({"f": lambda x: 2 * x if x < 2.5 else 9.0})
    assert halved is not None
    assert (halved.sentence, halved.example.splitlines()[0]) == ("half", "f(x=2)")
    assert squared is not None
    assert squared.sentence == "the second case"


def test_long_values_are_cut() -> None:
    assert short([0.123456, True]) == "[0.1235, True]"
    assert len(short([1.0] * 1000)) < 310
    assert as_plain((1, [2.0])) == [1, [2.0]]
