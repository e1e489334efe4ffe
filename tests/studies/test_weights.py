"""The study of LoRA and master weights: valid recipes, names of their own, and a sweep without held-out rows."""

import argparse
import gzip
import json
from pathlib import Path

import pytest

from studies.weights import page, run
from whet.recipe import read_recipe
from whet.tasks.loading import load_task

ROOT = Path(__file__).resolve().parents[2]
MODELS = (run.SMALL, run.CODER)
RATES = {(model, what): 1e-5 for model in MODELS for what in run.RATES}
OPTIONS = argparse.Namespace(seeds="0,1,2", only=",".join(MODELS), rates=RATES)


@pytest.mark.parametrize(("study", "count"), [("master-weights", 15), ("sweep", 20), ("lora", 12)])
def test_every_run_has_a_valid_recipe_and_a_name_of_its_own(study: str, count: int, tmp_path: Path) -> None:
    arms = list(run.arms(study, OPTIONS))
    assert len({arm.name for arm in arms}) == len(arms) == count
    (tmp_path / "rows.jsonl").touch()
    for arm in arms:
        files = [f"model.path={tmp_path}", f"task.path={tmp_path / 'rows.jsonl'}"] if arm.model else []
        config = read_recipe(arm.recipe, [*arm.keys, *files, f"seed={arm.seed}"]).config
        assert config.seed == arm.seed  # type: ignore[union-attr]


def test_the_rate_of_a_sweep_is_the_most_accurate_one_and_the_smaller_of_equals() -> None:
    def found(what: str, rate: float, last: float, **more: str) -> dict[str, object]:
        return {"model": "m", "what": what, "rate": rate, "curves": {"eval/accuracy": [[0, 0.9], [5, last]]}, **more}

    swept = [found("full", 1e-5, 0.2), found("full", 3e-5, 0.4), found("full", 1e-4, 0.4), found("lora", 1e-3, 0.0)]
    broken = {"model": "m", "what": "lora", "rate": 3e-3, "failed": "out of memory"}
    assert run.best_rates([*swept, broken]) == {("m", "full"): 3e-5, ("m", "lora"): 1e-3}


def test_a_sweep_sees_no_held_out_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "HELD_OUT", 5)
    path = tmp_path / run.ROWS
    path.parent.mkdir()
    rows = [{"input": f"What is {n} + {n * n + 1}?", "target": float(n + n * n + 1), "idx": n} for n in range(40)]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    task = load_task("maths", {"path": str(path), "held_out_rows": 5})
    held = {example.columns["idx"] for example in task.held_out(5)}
    left = {json.loads(line)["idx"] for line in run.sweep_rows(tmp_path, tmp_path / "left.jsonl").open()}
    assert len(held) == 5
    assert left == set(range(40)) - held


def test_the_page_says_what_the_runs_gave() -> None:
    results = json.loads((ROOT / "studies" / "weights" / "master_weights.json").read_text("utf-8"))
    text = (ROOT / "docs" / "optimizers.md").read_text("utf-8")
    assert {result["what"] for result in results} == set(run.MASTER_WEIGHTS)
    for what in run.MASTER_WEIGHTS:
        seeds = sorted((one["seed"], one["after"]["eval/accuracy"]) for one in results if one["what"] == what)
        shown = " | ".join(f"{accuracy:.1%}".replace("%", " %") for _, accuracy in seeds)
        assert f"| {what} | {shown} |" in text


def test_the_page_of_lora_is_made_of_its_template_and_the_runs(tmp_path: Path) -> None:
    made, picture = tmp_path / "lora.md", tmp_path / "lora.png"
    page.main([str(ROOT / "docs" / "lora.template.md"), str(made), str(picture)])
    text = made.read_text("utf-8")
    assert text == (ROOT / "docs" / "lora.md").read_text("utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    sweep, lora = (json.loads(path.read_text("utf-8")) for path in (page.SWEEP, page.LORA))
    rates = run.best_rates(sweep)
    assert {(row["model"], row["what"]): row["rate"] for row in lora} == rates
    for (model, what), rate in rates.items():
        seeds = [row["after"]["eval/accuracy"] for row in lora if (row["model"], row["what"]) == (model, what)]
        assert len(seeds) == 3
        assert f"| {model} | {page.NAMES[what]} | {rate:g} |" in text
        assert f"| {100 * sum(seeds) / 3:.1f} |" in text
