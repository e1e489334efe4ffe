"""A survey as numbers, as pictures and as a page."""

from __future__ import annotations

import base64
import itertools
import json
import math
from pathlib import Path

import pytest

from tests.data.written import write_lines
from whet.data.explore import Survey, explore
from whet.data.sources import Source, load_rows
from whet.errors import RunFailed
from whet.report.dataset.survey import facts, length_bias, overview, quantile, spread
from whet.report.dataset.survey_page import BINS, bin_edges, bin_shares, category_shares, write_survey
from whet.runs.logs import json_bytes


def pairs(path: Path, lengths: list[tuple[int, int]]) -> Survey:
    rows = [
        {"prompt": f"question {i}", "chosen": "c " * chosen, "rejected": "r " * rejected, "margin": chosen - 0.5}
        for i, (chosen, rejected) in enumerate(lengths)
    ]
    return explore(load_rows(Source(path=str(write_lines(path / "a.jsonl", rows)))))


def test_length_bias_by_hand() -> None:
    assert length_bias([]) is None
    bias = length_bias([4, -2, 0, 6])
    assert bias is not None
    assert bias["chosen_longer"]["mean"] == pytest.approx(2.5 / 4)  # two longer, one equal
    assert bias["words_more"]["mean"] == 2.0
    # Variance (4 + 16 + 4 + 16) / 3, three degrees of freedom: 2 ± 3.18245 · √(13.3333 / 4).
    assert bias["words_more"]["high"] == pytest.approx(2 + 3.18245 * math.sqrt(40 / 3 / 4), abs=1e-4)


def test_one_pair_has_no_interval_and_is_still_json() -> None:
    bias = json.loads(json_bytes(length_bias([3])))
    assert bias["words_more"] == {"mean": 3.0, "low": None, "high": None}


def test_quantiles_and_spreads() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.25, 0.26, 0.5, 1)] == [1, 1, 2, 2, 4]
    assert spread([3, 1, 2, 10]) == {"mean": 4.0, "median": 2.5, "p95": 10, "min": 1, "max": 10}


def test_the_overview_says_what_was_counted(tmp_path: Path) -> None:
    told = dict(overview(facts(pairs(tmp_path, [(3, 1), (2, 2), (1, 4), (6, 5)]))))
    assert told["rows"] == "4 pairs of 4 rows read, format pairs"
    assert told["left out"] == "nothing"
    assert told["messages"] == "2: 100 %"
    assert told["chosen is longer"].startswith("62 % of pairs [")
    assert told["chosen − rejected"].startswith("0 words [")
    assert told["margin"] == "mean 2.5, median 2; 4 pairs have one"


@pytest.mark.parametrize(("low", "high", "width"), [(0, 280, 10), (0, 281, 20), (0, 3, 1), (-30, 26, 2), (0, 0, 1)])
def test_bins_have_round_widths(low: int, high: int, width: float) -> None:
    edges = bin_edges([low, high], zero=True)
    assert edges[0] <= low < high + 1e-9 < edges[-1]
    assert [right - left for left, right in itertools.pairwise(edges)] == [width] * (len(edges) - 1)
    assert len(edges) - 1 <= BINS + 1


def test_bins_of_fractions_may_be_narrower_than_one() -> None:
    assert bin_edges([0.0, 1.4], zero=False)[1] == pytest.approx(0.05)


def test_shares_of_a_histogram_are_where_the_values_are() -> None:
    chosen, rejected = [i % 7 + 1 for i in range(99)] + [500], [2] * 100
    edges = bin_edges([*chosen, *rejected], zero=False)
    assert edges == [float(edge) for edge in range(9)]
    assert list(bin_shares(rejected, edges)) == [0, 0, 1, 0, 0, 0, 0, 0]  # bins are one word wide
    shares = bin_shares(chosen, edges)
    assert sum(shares) == pytest.approx(1)
    assert shares[1] == pytest.approx(15 / 100)  # 0, 7, …, 98
    assert shares[-1] == pytest.approx(15 / 100)  # seven words, and the one that is beyond
    assert bin_edges([-2, *[3] * 9], zero=True)[0] <= -2


def test_many_categories_end_in_one() -> None:
    shares = category_shares({str(turns): 1 for turns in range(2, 42, 2)})
    assert list(shares) == ["2", "4", "6", "8", "10", "12", "14", "more"]
    assert shares["more"] == pytest.approx(13 / 20)


def test_picture_and_page_are_written_and_hostile_texts_are_shown(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"$x_{i}$ <script>alert({i})</script>", "chosen": "</pre>&amp;\x00" + "c " * i, "rejected": "r"}
        for i in range(1, 6)
    ]
    survey = explore(load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", rows)))))
    picture, page = write_survey(survey, facts(survey), tmp_path / "out" / "deep", title="$a_b$ <i>")
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text("utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;alert(" in text
    assert "default-src 'none'" in text
    assert base64.b64encode(picture.read_bytes()).decode() in text
    assert "<h1>$a_b$ &lt;i&gt;</h1>" in text


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "completion": "c"},
        {"prompt": "p", "chosen": "c", "rejected": "r"},
        {"prompt": "p", "completion": "c", "label": True},
        {"prompt": "p", "completions": ["a", "b"], "correct": [True, False]},
        {"prompt": "p", "completions": ["a", "b"], "labels": [True, False]},
    ],
)
def test_a_single_row_of_any_kind_can_be_drawn(tmp_path: Path, row: dict) -> None:
    survey = explore(load_rows(Source(path=str(write_lines(tmp_path / "a.jsonl", [row])))))
    picture, page = write_survey(survey, facts(survey), tmp_path, title="one")
    assert picture.stat().st_size > 1000
    assert "row-1, prompt" in page.read_text("utf-8")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    survey = pairs(tmp_path, [(1, 2)])
    with pytest.raises(RunFailed, match="cannot write into"):
        write_survey(survey, facts(survey), tmp_path / "file", title="x")
