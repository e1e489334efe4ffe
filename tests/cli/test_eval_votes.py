"""`whet eval` with several samples: majority votes, and the best of them by a reward model."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
import torch
import yaml

import whet as library
from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.evaluate.statistics import best_of_n
from whet.models.reward.scoring import load_scorer
from whet.recipe import read_recipe
from whet.train.start import start_run

COIN = {"=": {"g": 0.6, "h": 0.4}}  # answers g greedily, and g or h when sampled


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model, and rows of which half have the answer g and half h."""
    bigram_model(tmp_path / "model", COIN, alphabet="abcdefgh=")
    rows = [
        {"prompt": f"{a}{b}=", "answer": "gh"[(i + j) % 2]} for i, a in enumerate("abcd") for j, b in enumerate("efgh")
    ]
    on_disk.write(tmp_path / "rows.jsonl", rows)
    return tmp_path


def test_majorities_of_samples(whet: Whet, place: Path) -> None:
    arguments = ("eval", place / "model", "--task", "rows", f"path={place / 'rows.jsonl'}", "held_out_share=1.0")
    result = whet(*arguments, "--samples", 5, "--k", "1,5", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    right = []
    for row in {answer["id"]: answer for answer in found["answers"]}.values():
        samples = [one["text"] for one in found["answers"] if one["id"] == row["id"] and one["sample"] > 0]
        assert len(samples) == 5
        right.append(float(max("gh", key=samples.count) == row["answer"]))
    assert found["majority_at"]["5"]["mean"] == fmean(right)
    assert found["majority_at"]["5"]["low"] < fmean(right) < found["majority_at"]["5"]["high"]
    assert {one["vote"] for one in found["answers"] if one["sample"] > 0} == {"g", "h"}
    table = whet(*arguments, "--samples", 5, "--k", "1,5").out
    assert f"{fmean(right):.1%}" in next(line for line in table.splitlines() if "maj@5" in line)


def test_the_best_of_samples_by_a_reward_model(whet: Whet, place: Path) -> None:
    on_disk.saved_model(place / "start")
    config = on_disk.config(place / "start", on_disk.pairs(place / "pairs.jsonl"), "bradley_terry")
    (place / "reward.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True)))
    run = start_run(read_recipe(str(place / "reward.yaml"), []), place / "runs", lambda *_: SilentProgress())
    task = ("--task", "rows", f"path={place / 'rows.jsonl'}", "held_out_share=1.0")
    given = ("--samples", 4, "--k", "2,4", "--reward-model", run)

    result = whet("eval", place / "model", *task, *given, "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    scorer = load_scorer(run / "best_model", torch.device("cpu"))
    by_prompt: dict[str, list[dict]] = {}
    for answer in found["answers"]:
        if answer["sample"] > 0:
            by_prompt.setdefault(answer["prompt"], []).append(answer)
    for k in (2, 4):
        values = []
        for prompt, answers in by_prompt.items():
            scores = scorer.score([prompt] * 4, [answer["text"] for answer in answers])
            values.append(best_of_n(scores, [float(answer["correct"]) for answer in answers], k))
        assert found["best_of"][str(k)]["mean"] == pytest.approx(fmean(values))
    assert "best-of-4 by the reward model" in whet("eval", place / "model", *task, *given).out
    rows = {"name": "rows", "path": str(place / "rows.jsonl"), "held_out_share": 1.0}
    again = library.evaluate(place / "model", rows, samples=4, ks=(2, 4), reward_model=run)
    assert {str(k): value.mean for k, value in again.best_of.items()} == {
        k: value["mean"] for k, value in found["best_of"].items()
    }

    told = refused(whet, "eval", place / "model", *task, "--reward-model", run)
    assert "a reward model chooses among several samples: draw at least two" in told
    told = refused(whet, "eval", place / "model", *task, "--samples", 4, "--reward-model", place / "model")
    assert "is a language model, not a reward model" in told
    assert "--reward-model is for language models" in refused(whet, "eval", run, "--reward-model", run)
