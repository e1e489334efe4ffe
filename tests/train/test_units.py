"""Units of a preference loss: whose completion stands behind a prompt of another."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.small import small_model
from whet.algorithms.preference.preference_table import PREFERENCES
from whet.batching import collate
from whet.config import UpdateConfig
from whet.errors import UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.records import Labelled, Pair
from whet.train.rows.units import Unit, mismatched, units_of, whole_units


def rows_of(kinds: list[tuple[int, bool]]) -> list[Labelled]:
    return [
        Labelled(id=str(i), prompt=f"prompt {prompt}", completion=f"answer {i}", label=label)
        for i, (prompt, label) in enumerate(kinds)
    ]


def test_the_next_row_of_the_same_label_and_another_prompt() -> None:
    """Two completions of one prompt stand side by side, as every file of pairs has them."""
    rows = rows_of([(0, True), (0, True), (0, False), (1, True), (1, False), (2, False), (0, True)])
    # 0 and 1 pass over each other; the last one goes round to the first of another prompt.
    assert [other.id for other in mismatched(rows)] == ["3", "3", "4", "6", "5", "2", "3"]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=12))
def test_no_completion_stands_behind_its_own_prompt(kinds: list[tuple[int, bool]]) -> None:
    rows = rows_of(kinds)
    if len({row.prompt for row in rows}) == 1:
        with pytest.raises(UserError, match="same prompt"):
            mismatched(rows)
        return
    for row, other in zip(rows, mismatched(rows), strict=True):
        assert other.prompt != row.prompt
        several = len({one.prompt for one in rows if one.label is row.label}) > 1
        assert other.label is row.label or not several


PLAIN = character_tokenizer("abcdefgh=")


def spelled(unit: Unit | None) -> list[str] | None:
    """Each row with a bar between what is asked and what is learned."""
    if unit is None:
        return None
    asked = [row.mask.index(True) for row in unit.rows]
    return [
        f"{PLAIN.decode(row.tokens[:at])}|{PLAIN.decode(row.tokens[at:])}"
        for row, at in zip(unit.rows, asked, strict=True)
    ]


def cluster(row: Any) -> str:
    return f"cluster of {row.prompt}"


PAIRS = [
    Pair(id="0", prompt="ab=", chosen="c", rejected="dd"),
    Pair(id="1", prompt="a=", chosen="eeeeee", rejected="f"),
    Pair(id="2", prompt="b=", chosen="g", rejected="h"),
]


def units(rows: list[Any], name: str) -> list[Unit | None]:
    return units_of(rows, PREFERENCES[name], PLAIN, 7, cluster)


def test_a_pair_is_two_rows_behind_one_prompt_and_none_where_one_does_not_fit() -> None:
    found = units(PAIRS, "dpo")
    assert [spelled(unit) for unit in found] == [["ab=|c", "ab=|dd"], None, ["b=|g", "b=|h"]]
    first = found[0]
    assert first is not None
    assert (first.cluster, first.label, first.refs) == ("cluster of ab=", True, ())


def test_the_halves_of_a_pair_are_units_of_their_own() -> None:
    found = units(PAIRS, "bco")
    assert [spelled(unit) for unit in found] == [["ab=|c"], ["ab=|dd"], None, ["a=|f"], ["b=|g"], ["b=|h"]]
    assert [unit.label for unit in found if unit] == [True, False, False, True, False]
    assert [unit.cluster for unit in found if unit] == [
        f"cluster of {prompt}" for prompt in ("ab=", "ab=", "a=", "b=", "b=")
    ]
    labelled = [Labelled(id="x", prompt="a=", completion="b", label=False)]
    (unit,) = units(labelled, "bco")
    assert unit is not None
    assert (spelled(unit), unit.label, unit.cluster) == (["a=|b"], False, "cluster of a=")


def test_behind_each_completion_stands_that_of_another_prompt() -> None:
    found = units(PAIRS, "kto")
    # The chosen one of the second pair leaves no room for a prompt: neither as itself nor behind the first.
    assert [spelled(unit) for unit in found] == [
        None,
        ["ab=|dd", "ab=|f"],
        None,
        ["a=|f", "a=|h"],
        ["b=|g", "b=|c"],
        ["b=|h", "b=|dd"],
    ]
    assert [unit.label for unit in found if unit] == [False, False, True, False]


@pytest.mark.parametrize(("size", "passes"), [(1, [[0, 1, 2, 3], [4, 5, 6, 7]]), (2, [[0, 1, 2, 3], [4, 5, 6, 7]])])
def test_the_rows_of_a_pass_are_within_its_tokens_whatever_the_size_of_a_unit(
    size: int, passes: list[list[int]]
) -> None:
    """Eight rows of ten tokens, forty tokens a pass: four rows, be they four units or two pairs."""
    rows = collate([[1] * 10] * 8, [[True] * 10] * 8, torch.device("cpu"))
    settings = UpdateConfig(micro_batch_tokens=40)
    found = [sorted(some.tolist()) for some in whole_units(rows, size, settings, small_model()[0])]
    assert sorted(found) == passes
