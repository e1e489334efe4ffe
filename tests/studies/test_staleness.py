"""The study of staleness: valid recipes, one arm without staleness, and means with intervals by hand."""

import json
from pathlib import Path

import pytest

from studies.staleness import run
from whet.algorithms.cells import name, plain
from whet.config import OnlineConfig
from whet.recipe import read_recipe

ARMS = list(run.arms([0, 1, 2]))


def test_every_arm_has_a_valid_recipe() -> None:
    assert len(ARMS) == len({(arm.what, arm.seed) for arm in ARMS}) == 3 * (1 + 3 * 3)
    for arm in ARMS:
        config = read_recipe(run.RECIPE, arm.keys).config
        assert isinstance(config, OnlineConfig)
        assert config.staleness == arm.staleness
        found = name(plain(config.algorithm.cell("importance_correction")))
        names = {"ratio": "uncorrected", "truncate": "token_truncate", "ignored": "ignored"}
        assert found == names[arm.correction]
    assert [arm.what for arm in run.arms([7], ["ratio-2", "ignored-4"])] == ["ratio-2", "ignored-4"]


def test_the_page_says_what_was_found() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/asynchronous.md").read_text("utf-8")
    found = json.loads((root / "studies/staleness/results.json").read_text("utf-8"))
    assert run.summarised(found["runs"]) == found["arms"]
    assert len(found["runs"]) == len(ARMS)
    for staleness in run.STALENESS:
        mine = {row["correction"]: row for row in found["arms"] if row["staleness"] == staleness}
        cells = []
        for correction in run.CORRECTIONS:
            row = mine.get(correction)
            seeds = ", ".join(f"{100 * seed:.1f}" for seed in row["last"]["seeds"]) if row else ""
            cells.append(f"{seeds} % (mean of all {100 * row['mean']['mean']:.0f} %)" if row else "–")
        assert f"| {staleness} | {' | '.join(cells)} |" in page


def test_means_and_intervals_by_hand() -> None:
    """Three seeds: t(2) = 4.3027, s = 0.1, so the half-width is 4.3027 · 0.1 / √3 = 0.2484."""
    assert run.measured([[0, 0.9], [20, 0.2], [40, 0.6]]) == {"last": 0.6, "mean": pytest.approx(0.4)}
    runs = [{"correction": "ratio", "staleness": 1, "last": last, "mean": 0.5} for last in (0.4, 0.5, 0.6)]
    failed = {"correction": "ratio", "staleness": 1, "failed": "Traceback"}
    (row,) = run.summarised([*runs, failed])
    assert row["failed"] == 1
    assert row["last"]["mean"] == pytest.approx(0.5)
    assert row["last"]["low"] == pytest.approx(0.5 - 0.2484, abs=1e-4)
    assert row["last"]["high"] == pytest.approx(0.5 + 0.2484, abs=1e-4)
    assert row["mean"]["low"] == pytest.approx(0.5)
    assert run.draw([row]).startswith(b"\x89PNG")
