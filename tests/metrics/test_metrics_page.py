"""docs/metrics.md and its pictures: what the table, the kept curves and the runs of studies/curves say today."""

import json
import re
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from PIL import Image

from pages.metrics import LIBRARIES, anchor, main
from studies.curves.pictures import FILE, draw
from studies.curves.plots import CASES, PICTURES, label, shown_of
from studies.curves.run import written
from whet.doctor import thresholds
from whet.metrics.table import METRICS, TOPICS, row_of
from whet.recipe import read_recipe

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text("utf-8")
LENGTHS = "eval/length_score_correlation"  # not logged where all answers have one length
CURVES = json.loads(FILE.read_text("utf-8"))


def test_the_page_is_fresh(tmp_path: Path) -> None:
    main([str(tmp_path / "metrics.md")])
    assert (tmp_path / "metrics.md").read_text("utf-8") == PAGE, "docs/metrics.md is stale: renew it with `make docs`"


def test_it_has_every_metric_once_with_its_names_elsewhere() -> None:
    assert re.findall(r"^### (.+)$", PAGE, re.MULTILINE) == [metric.name for metric in METRICS]
    anchors = [anchor(metric.name) for metric in METRICS] + [anchor(topic.replace(" ", "-")) for topic in TOPICS]
    assert len(set(anchors)) == len(anchors)  # a second heading of a name would get another anchor
    table = dict(re.findall(r"^\| \[`(.+?)`\]\(.+?\) \| (.+) \|$", PAGE, re.MULTILINE))
    assert set(table) == {metric.name for metric in METRICS if set(metric.elsewhere) & set(LIBRARIES)}
    for words in ("response_length/mean", "actor/entropy", "actor/ppo_kl", "frac_reward_zero_std", "clip_ratio"):
        assert any(words in names for names in table.values())


def test_text_that_is_no_markup_stays_as_it_is() -> None:
    """Outside of code no mark opens emphasis, a tag or a link that the page does not mean."""
    prose = re.sub(r"`[^`]*`|<!--.*?-->|\\.|!?\[[^\]]*\]\([^)]*\)|\*\*", "", PAGE[PAGE.index("\n## Reward\n") :])
    assert re.findall(r"[*<\[]|(?<!\w)_|_(?!\w)", prose) == []


def test_every_picture_is_shown_in_its_topic() -> None:
    starts = {topic: PAGE.index(f"\n## {topic}\n") for topic in TOPICS}
    ends = dict(pairwise([*starts.values(), len(PAGE)]))
    for name, picture in PICTURES.items():
        start = starts[picture.topic]
        assert f"![{picture.text}]({name}.png)" in PAGE[start : ends[start]]
        assert (DOCS / f"{name}.png").stat().st_size < 150_000
    assert set(DOCS.glob("metrics-*.png")) == {DOCS / f"{name}.png" for name in PICTURES}


def test_the_kept_curves_are_those_of_the_pictures() -> None:
    assert written(CURVES) == FILE.read_text("utf-8")
    assert list(CURVES) == list(CASES)
    assert {name for picture in PICTURES.values() for name in picture.runs} == set(CASES)
    for name, curves in CURVES.items():
        assert tuple(curves) == shown_of(name)
        for metric, (steps, values) in curves.items():
            assert row_of(metric) is not None
            assert steps == sorted(steps)
            assert len(steps) == len(values)
            assert steps or metric == LENGTHS
    for picture in PICTURES.values():
        assert len({label(name) for name in picture.runs}) == len(picture.runs)


@pytest.mark.parametrize("name", CASES)
def test_its_runs_are_recipes(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(CASES[name].recipe, CASES[name].arguments(0, tmp_path))
    assert recipe.config.steps >= 40


def test_healthy_runs_learn_and_stay_in_the_ranges_that_the_table_gives() -> None:
    """In the last third of each run; the picture would contradict the table otherwise."""
    shown = {(picture.runs[0], metric) for picture in PICTURES.values() for metric in picture.metrics}
    # A policy that starts from little moves further, as the page says.
    for name, metric in shown - {("policy", "kl"), ("reward model", LENGTHS)}:
        row = row_of(metric)
        assert row is not None
        low, high = row.band
        values = CURVES[name][metric][1]
        middle = median(values[2 * len(values) // 3 :])
        assert low is None or middle >= low, (metric, middle)
        assert high is None or middle <= high, (metric, middle)
    assert max(CURVES["policy"]["kl"][1]) < thresholds.KL[1]
    for name in ("policy", "critic", "supervised"):
        accuracy = CURVES[name]["eval/accuracy"][1]
        assert accuracy[-1] > accuracy[0] + 0.3


def test_a_picture_has_a_panel_for_each_metric(tmp_path: Path) -> None:
    heights = {}
    for name in ("metrics-critic", "metrics-updates"):
        (tmp_path / name).write_bytes(draw(PICTURES[name], CURVES))
        heights[name] = Image.open(tmp_path / name).height
    assert heights["metrics-updates"] > 1.5 * heights["metrics-critic"]  # two rows of three
