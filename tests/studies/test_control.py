"""The study of control: recipes, figures by hand, a fresh page."""

from pathlib import Path

import pytest

from bench.results import RESULTS, newest_results
from studies.control import cases, page
from studies.control.run import results
from whet.config.control import ControlConfig
from whet.recipe import validate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("environment", cases.PPO)
def test_a_case_is_a_valid_recipe(environment: str) -> None:
    config = validate(cases.recipe(environment, 3), where=environment)
    assert isinstance(config, ControlConfig)
    assert (config.environment.name, config.seed) == (environment, 3)


def test_the_interquartile_mean() -> None:
    assert page.interquartile_mean([5.0]) == 5.0
    assert page.interquartile_mean([100.0, 1.0, 2.0, -50.0]) == pytest.approx(1.5)
    assert page.interquartile_mean([0.0, 1.0, 2.0, 3.0, 100.0]) == pytest.approx((0.75 * 1 + 2 + 0.75 * 3) / 2.5)
    low, high = page.interval([1.0, 2.0, 3.0, 4.0])
    assert 1.0 <= low < 2.5 < high <= 4.0


def _rendered(template: str) -> str:
    batched = newest_results(RESULTS)["control"]
    return page.render(template, results(page.FILE), results(page.OFF_POLICY), batched)


def test_a_line_of_the_off_policy_runs() -> None:
    rows = [
        {
            "recipe": "one",
            "seed": seed,
            "steps": 5000.0,
            "before": {"reward": -50.0},
            "after": {"reward": -2.0, "success": won},
        }
        for seed, won in ((1, 0.98), (0, 1.0))
    ]
    found = page.render("<!-- off-policy results -->", [], rows)
    assert found.splitlines()[-1] == "| `one` | 5,000 | 0, 1 | -50.0, -50.0 | -2.0, -2.0 | 100 %, 98 % |"


def test_a_line_of_the_batched_environment() -> None:
    seconds = {"collect": 0.05, "annotate": 0.0072, "update": 0.0128}
    row = {"copies": 1024, "seconds": seconds, "collected_a_second": 655360.0, "steps_a_second": 468114.2857}
    result = {"title": "T", "machine": {"processor": "P"}, "sides": {"whet": [row]}}
    found = page.render("<!-- batched results -->", [], [], result).splitlines()
    assert found[0] == "T, on P:"
    assert found[-1] == "| 1,024 | 468,114 | 655,360 | 50 | 7 | 13 |"


def test_the_page_is_fresh() -> None:
    template = (ROOT / "docs/control.template.md").read_text("utf-8")
    assert _rendered(template) == (ROOT / "docs/control.md").read_text("utf-8"), "make docs"
