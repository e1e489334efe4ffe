"""docs/performance.md is what the results say today; its tables, from results made by hand."""

import json
import re
from pathlib import Path

import pytest

from bench.results import newest_results
from bench.table import EARLIER, main, render
from whet.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "docs" / "performance.template.md"
PAGE = ROOT / "docs" / "performance.md"
EARLIER_FIGURES = json.loads(EARLIER.read_text("utf-8"))
H200 = {"gpu": "NVIDIA H200", "processor": "x", "threads": 16}


def result(what, date="2026-01-02T00:00:00+00:00", **content):
    return {
        "what": what,
        "title": "Qwen3-0.6B",
        "quick": False,
        "date": date,
        "machine": H200,
        "versions": {"torch": "2.11.0", "trl": "not installed"},
        "commit": "0123456789abcdef",
        "command": "python -m bench.gpu",
        "workload": {},
        "sides": {},
        **content,
    }


def rollout_result(what, seconds=2.0, **sides):
    runs = [
        {"tokens": 100_000, "seconds": one, "text_seconds": 0.25, "peak_bytes": 3 * 2**30, "breakdown": {"decode": 1.5}}
        for one in (4.0, seconds)
    ]
    figure = {"tokens_per_second": 1e5 / seconds, "milliseconds_per_step": 4.0, "share_of_roofline": 0.625}
    whet = {"runs": runs, "figure": figure}
    missing = {"missing": "not installed"}
    return result(
        what,
        limits={"ideal_tokens_per_second": 80_000.0},
        sides={"whet": whet, "vllm": missing, "transformers": missing, **sides},
    )


def page(*results):
    return render(TEMPLATE.read_text("utf-8"), {one["what"]: one for one in results}, EARLIER_FIGURES)


def row(text, *starts):
    """The cells behind the first ones of the only row that begins with them."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    (found,) = [cells for cells in rows if cells[: len(starts)] == list(starts)]
    return found[len(starts) :]


def test_the_page_is_fresh(tmp_path):
    main([str(TEMPLATE), str(tmp_path / "page.md")])
    fresh = (tmp_path / "page.md").read_text("utf-8")
    assert fresh == PAGE.read_text("utf-8"), "docs/performance.md is stale: renew it with `make docs`"


def test_a_rollout_beside_an_earlier_peer():
    assert row(page(rollout_result("group-qwen3")), "group", "Qwen3-0.6B") == [
        "**50,000** (first run 25,000)",
        "21,703 †",
        "5,555 †",
        "2.3 ×",
        "4.00",
        "62% of 80,000",
        "3.0 GiB",
    ]


def test_a_peer_of_the_same_run_replaces_the_earlier_one():
    vllm = {"runs": [], "figure": {"tokens_per_second": 25_000.0}}
    cells = row(page(rollout_result("group-qwen3", vllm=vllm)), "group", "Qwen3-0.6B")
    assert (cells[1], cells[3]) == ("25,000", "2.0 ×")


def test_limits_of_an_h200_are_not_held_against_another_machine():
    other = {**rollout_result("group-qwen3"), "machine": {**H200, "gpu": "NVIDIA L4"}}
    assert row(page(other), "group", "Qwen3-0.6B")[5] == "–"


def step_result(**sides):
    figure = {
        "seconds": 2.5,
        "first_seconds": 40.0,
        "peak_bytes": 20 * 2**30,
        "training_share": 0.31,
        "stages": {"rollout": 1.25, "update": 1.0},
    }
    return result(
        "step-smollm2",
        title="SmolLM2-135M",
        sides={"whet": {"runs": [], "figure": figure}, "trl": {"missing": "trl not installed"}, **sides},
        passes={"runs": [{"breakdown": {"forward": 9.0}}, {"breakdown": {"forward": 0.25, "backward": 0.5}}]},
    )


def test_a_step_and_its_parts():
    text = page(step_result())
    assert row(text, "SmolLM2-135M", "whet") == ["**2.50**", "40.0", "20.0 GiB", "31%"]
    earlier = "TRL 1.16.0 + vLLM 0.26.0 colocated, bf16, micro-batch 64 †"
    assert row(text, "SmolLM2-135M", earlier) == ["15.9", "–", "96.0 GiB", "–"]
    assert row(text, "step, SmolLM2-135M") == ["rollout", "1.250"]
    assert row(text, "", "update alone: backward") == ["0.500"]


def test_a_step_of_trl_in_the_same_run():
    trl = {
        "runs": [],
        "settings": {"use_vllm": True, "micro_batch": 64},
        "figure": {"seconds": 12.34, "first_seconds": 30.0, "peak_bytes": 96 * 2**30, "stages": {}},
    }
    text = page({**step_result(trl=trl), "versions": {"trl": "1.16.0"}})
    assert row(text, "SmolLM2-135M", "TRL 1.16.0 + vLLM") == ["12.3", "30.0", "96.0 GiB", "–"]
    assert "colocated" not in text


def test_a_cpu_row():
    one = {"median": 2.0, "low": 1.5, "high": 2.5}
    text = page(result("cpu-2x4x32", figure={"whet_seconds": one, "trl_seconds": one, "step_ratio": one}))
    assert row(text, "2 × 4 × 32") == [
        "2.00 (1.5–2.5)",
        "2.00 (1.5–2.5)",
        "**2.00 ×** (1.5–2.5)",
        "–",
        "–",
        "–",
    ]


def test_every_result_says_where_it_comes_from():
    text = page(rollout_result("mixed-qwen3"))
    expected = "- `mixed-qwen3`: 2026-01-02, NVIDIA H200; torch 2.11.0; commit `0123456789ab`; `python -m bench.gpu`"
    assert expected in text.splitlines()


def test_only_the_newest_counts_and_no_quick_run(tmp_path):
    for index, (date, quick) in enumerate([("2026-01-02", False), ("2026-01-01", False), ("2026-01-03", True)]):
        (tmp_path / f"{9 - index}.json").write_text(json.dumps({**result("cpu-2x4x32", date), "quick": quick}))
    assert newest_results(tmp_path)["cpu-2x4x32"]["date"] == "2026-01-02"


@pytest.mark.parametrize(("content", "says"), [("{", "is not JSON"), ("{}", "has no what, title")])
def test_a_damaged_result_is_one_line(content, says, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=says) as caught:
        newest_results(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_template_must_mark_every_part():
    with pytest.raises(UserError, match="the template marks"):
        render("<!-- here: rollouts -->", {}, EARLIER_FIGURES)


def test_its_tables_are_tables():
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text("utf-8"), re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block.splitlines()[0]


def test_learning_curves():
    def point(step, seconds, accuracy):
        return {"step": step, "seconds": seconds, "accuracy": accuracy, "low": accuracy - 0.02, "high": accuracy + 0.02}

    curves = {
        "0": [point(0, 0, 0.1), point(25, 30.4, 0.35), point(50, 61.0, 0.72)],
        "7": [point(0, 0, 0.1), point(9, 5, 0.2)],
    }
    mismatch = {"0": [0.02] * 25 + [0.01] * 25 + [0.004], "7": [0.03, 0.01]}
    text = page(result("learning", sides={"whet": {"curves": curves, "mismatch": mismatch}}))
    assert "| seed 0 | 0.0200 | 0.0150 | 0.0040 |" in text
    assert "| seed 7 | 0.0300 | 0.0200 | 0.0100 |" in text
    assert row(text, "0") == ["10.0% (8.0–12.0)", "72.0% (70.0–74.0)", "**+62.0**", "50", "61", "61 s"]
    assert row(text, "7")[2:] == ["**+10.0**", "9", "5", "–"]


def test_rollouts_in_turn_and_beside():
    def side(seconds, **stages):
        peak = {"peak_bytes": 2**30, "device_bytes": 3 * 2**30}
        return {
            "figure": {"seconds": seconds, "mean_seconds": seconds + 1, "stages": {"update": 1.5, **stages}, **peak}
        }

    both = {"synchronous": side(4.0), "asynchronous": side(2.5, waiting=0.25, hand_off=0.125)}
    workload = {"prompts": 64, "group": 8, "new_tokens": [512, 512]}
    text = page(result("asynchronous-smollm2", title="SmolLM2-135M", workload=workload, sides=both))
    memory = ["1.0 GiB", "3.0 GiB"]
    assert row(text, "SmolLM2-135M", "262,144", "synchronous") == ["**4.00** (mean 5.00)", "–", "–", "1.50", *memory]
    beside = ["**2.50** (mean 3.50)", "0.25", "0.12", "1.50", *memory]
    assert row(text, "SmolLM2-135M", "262,144", "asynchronous") == beside
    assert row(text, "Qwen3-0.6B", "not measured yet") == ["–"] * 7
    assert "- `asynchronous-smollm2`: 2026-01-02" in text
