"""The share of the <think>/<answer> format that a completion keeps, by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.tasks.gym.think_format import TAGS, format_share, formatted

PIECES = st.lists(st.sampled_from([*TAGS, "x", " ", "\n"]), max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<think>a</think><answer>b</answer>", 1.0),
        (" \n<think>a\n</think>\n\n<answer>\nb</answer>\n", 1.0),
        (formatted("b"), 1.0),
        ("", 0.0),
        ("b", 0.0),
        ("<answer>b</answer>", 0.5),
        ("<think>a</think>", 0.5),
        ("<think>a</think> b", 0.5),
        ("<think>a<answer>b</answer>", 0.75),
        ("well: <think>a</think><answer>b</answer>", 0.75),  # <think> does not open it
        ("<think>a</think><answer>b</answer> done", 0.75),  # </answer> does not end it
        ("<think></think><answer>b</answer>", 0.75),
        ("<think> </think><answer> </answer>", 0.5),
        ("<think></think><answer></answer>", 0.5),
        ("<answer>b</answer><think>a</think>", 0.25),  # only <answer> comes after nothing that it must follow
        ("<think><think>a</think><answer>b</answer>", 0.75),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.5),
        ("<think>a</think><answer>b</answer>" * 2, 0.0),
        ("<think><think></think></think><answer><answer></answer></answer>", 0.0),
        ("</answer><answer></think><think>", 0.0),
        ("<THINK>a</THINK><ANSWER>b</ANSWER>", 0.0),
    ],
)
def test_shares(text: str, share: float) -> None:
    assert format_share(text) == share


@given(PIECES)
def test_only_the_whole_format_has_the_whole_share(text: str) -> None:
    share = format_share(text)
    assert share in (0, 0.25, 0.5, 0.75, 1)
    whole = re.fullmatch(r"\s*<think>([^<]*)</think>([^<]*)<answer>([^<]*)</answer>\s*", text)
    assert (share == 1) == (whole is not None and whole[1].strip() != "" != whole[3].strip())
