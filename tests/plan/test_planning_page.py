"""docs/planning.md is what the formulas and the results say today; its measurements, from a result made by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from pages.planning import main, render
from whet.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE, PAGE = ROOT / "docs" / "planning.template.md", ROOT / "docs" / "planning.md"
GIBI = 2**30


def side(peak: float, measured: float, seconds: float, took: float, **more: Any) -> dict[str, Any]:
    return {
        "peak_bytes": int(peak * GIBI),
        "step_seconds": seconds,
        "measured": {
            "peak_bytes": {"rollout": GIBI, "update": int(measured * GIBI)},
            "step_seconds": took,
        },
        **more,
    }


def result(**sides: Any) -> dict[str, Any]:
    return {
        "what": "plan",
        "title": "plan",
        "quick": False,
        "date": "2026-02-03T00:00:00+00:00",
        "machine": {"gpu": "NVIDIA H200"},
        "versions": {},
        "commit": "0123",
        "command": "python -m bench.plan",
        "workload": {name: {"checks": name != "fitted"} for name in sides},
        "sides": sides,
    }


def test_the_page_is_fresh(tmp_path: Path) -> None:
    main([str(TEMPLATE), str(tmp_path / "page.md")])
    fresh = (tmp_path / "page.md").read_text("utf-8")
    assert fresh == PAGE.read_text("utf-8"), "docs/planning.md is stale: renew it with `make docs`"


@pytest.fixture
def template() -> str:
    """Without the tables by formula, which take seconds."""
    text = TEMPLATE.read_text("utf-8")
    return text[text.index("## Predictions") :]


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, *results: dict[str, Any]) -> str:
    import pages.planning as module

    kept = {name: part for name, part in module.PARTS.items() if name not in ("one", "four")}
    monkeypatch.setattr(module, "PARTS", kept)
    (tmp_path / "template.md").write_text(template, "utf-8")
    for number, one in enumerate(results):
        (tmp_path / f"plan-{number}.json").write_text(json.dumps(one), "utf-8")
    main([str(tmp_path / "template.md"), str(tmp_path / "page.md"), str(tmp_path)])
    return (tmp_path / "page.md").read_text("utf-8")


def test_predictions_beside_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    verdicts = {"too little": {"ran": False, "expected": False}, "enough": {"ran": False, "expected": True}}
    found = measured(
        tmp_path,
        monkeypatch,
        template,
        result(
            fitted=side(10.0, 10.0, 1.0, 2.0),
            close=side(22.0, 20.0, 1.1, 1.0, verdicts=verdicts),
            far=side(9.5, 10.0, 4.0, 5.0),
            broken={"missing": "out of memory"},
        ),
    )
    assert "NVIDIA H200, 2026-02-03" in found
    assert "peak memory of 3 configurations: median error 5.0%, worst 10.0%" in found
    assert "seconds of the 2 that nothing was fitted to: median 15.0%, worst 20.0%" in found
    assert "1 of 2 ended as predicted" in found
    assert "| close | 22.00 | 20.00 | +10.0% | 1.10 | 1.00 | +10.0% |" in found
    assert "| fitted ¹ | 10.00 | 10.00 | +0.0% | 1.00 | 2.00 | -50.0% |" in found
    assert "| broken | – |" in found


def test_without_a_result_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    assert "There is no result file" in measured(tmp_path, monkeypatch, template)
    assert "nothing was measured" in measured(tmp_path, monkeypatch, template, result(broken={"missing": "x"}))


def test_a_template_must_mark_every_part() -> None:
    with pytest.raises(UserError, match="the template marks"):
        render("<!-- here: one -->\n", {})
