"""Units of a preference loss: whose completion stands behind a prompt of another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UserError
from whet.records import Labelled
from whet.train.units import strangers


def rows_of(kinds: list[tuple[int, bool]]) -> list[Labelled]:
    return [
        Labelled(id=str(i), prompt=f"prompt {prompt}", completion=f"answer {i}", label=label)
        for i, (prompt, label) in enumerate(kinds)
    ]


def test_the_next_row_of_the_same_label_and_another_prompt() -> None:
    """Two completions of one prompt stand side by side, as every file of pairs has them."""
    rows = rows_of([(0, True), (0, True), (0, False), (1, True), (1, False), (2, False), (0, True)])
    # 0 and 1 pass over each other; the last one goes round to the first of another prompt.
    assert [other.id for other in strangers(rows)] == ["3", "3", "4", "6", "5", "2", "3"]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=12))
def test_no_completion_stands_behind_its_own_prompt(kinds: list[tuple[int, bool]]) -> None:
    rows = rows_of(kinds)
    if len({row.prompt for row in rows}) == 1:
        with pytest.raises(UserError, match="same prompt"):
            strangers(rows)
        return
    for row, other in zip(rows, strangers(rows), strict=True):
        assert other.prompt != row.prompt
        several = len({one.prompt for one in rows if one.label is row.label}) > 1
        assert other.label is row.label or not several
