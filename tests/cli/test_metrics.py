"""`whet metrics`: all metrics, one of them, and those that other libraries call otherwise."""

import json

from tests.cli.tiny import Whet
from whet.metrics.table import METRICS


def named(whet: Whet, *names: str) -> list[str]:
    return [row["name"] for row in json.loads(whet("metrics", *names, "--json").out)]


def test_it_lists_them_all_by_topic(whet: Whet) -> None:
    lines = whet("metrics").out.splitlines()
    assert [line.strip().partition(": ")[0] for line in lines if line.startswith("  ")] == [
        metric.name for metric in METRICS
    ]
    assert "Reward:" in lines
    assert named(whet) == [metric.name for metric in METRICS]


def test_names_lead_to_rows_and_parts_of_them_to_several(whet: Whet) -> None:
    assert named(whet, "kl", "eval/hard/accuracy_low") == ["kl", "eval/accuracy"]
    assert named(whet, "kl", "kl") == ["kl"]
    assert named(whet, "explained") == ["critic/explained_variance"]
    assert named(whet, "staleness/") == ["staleness/mean", "staleness/max", "staleness/share/AGE"]
    assert named(whet, "Learning rate") == ["lr"]


def test_names_of_other_libraries_are_known(whet: Whet) -> None:
    assert named(whet, "objective/kl") == ["kl_rollout"]
    assert named(whet, "actor/ppo_kl") == ["approx_kl"]
    assert named(whet, "train/reward") == ["reward/mean"]
    assert named(whet, "frac_reward_zero_std") == ["groups/zero_variance"]


def test_it_says_everything_of_one(whet: Whet) -> None:
    told = whet("metrics", "eval/accuracy").out
    for part in ("held-out accuracy", "higher is better", "Wilson", "eval/accuracy_low", "doctor   held-out", "verl"):
        assert part in told
    result = whet("metrics", "entropi")
    assert (result.code, "did you mean 'entropy'?" in result.err) == (2, True)
