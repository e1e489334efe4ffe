"""Contract 6. What is reported was measured on held-out examples, by the task's own metric, with interval and seed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import TASK, Zygote, online
from tests.contracts.here import train_here
from whet.evaluate import evaluation
from whet.evaluate.statistics import wilson
from whet.runs.directory import RunDirectory
from whet.tasks.procedural import Sorting

SORTING = Sorting(level=1)
STEPS = 16

GAMED = """
def nines(prompts, completions, **columns):
    return [text.count("9") / 6 for text in completions]  # says nothing about whether the digits are sorted

def generous(prompts, completions, **columns):
    return [1.0] * len(completions)
"""


def recipe(model: Path, tmp_path: Path, reward: str, **changes: Any) -> dict[str, Any]:
    (tmp_path / "gamed.py").write_text(GAMED)
    changed = online(model, steps=STEPS, reward={"functions": [f"{tmp_path / 'gamed.py'}:{reward}"]}, **changes)
    changed["algorithm"] = {"preset": "grpo"}
    changed["rollout"] = {"prompts": 8, "group": 8, "max_tokens": 6}
    changed["update"] = {"epochs": 2, "minibatches": 2}
    changed["optimizer"] = {"lr": 3e-3}
    changed["eval"] = {"every_steps": 8, "examples": 24, "max_tokens": 6, "samples": 2, "ks": [1, 2]}
    changed["save"] = {"every_steps": 100, "rollouts_every_steps": 1}
    return changed


@pytest.fixture(scope="module")
def gamed(beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run whose reward can be had without being right."""
    directory = tmp_path_factory.mktemp("gamed")
    return train_here(recipe(beginner, directory, "nines"), directory / "run")


def dishonesty(run: RunDirectory) -> list[str]:
    """What of a run's evaluations was not measured on held-out examples by the task's own metric."""
    wrong = []
    held_out = {example.id: example for example in SORTING.held_out(10**6)}
    trained_on = {row["id"] for step in run.rollout_steps() for row in run.rollouts(step)}
    for row in (row for row in run.metrics() if "eval/accuracy" in row):
        answers = run.answers(row["step"])
        if {answer["id"] for answer in answers} & trained_on:
            wrong.append(f"step {row['step']}: evaluated on examples that were trained on")
        if not {answer["id"] for answer in answers} <= held_out.keys():
            wrong.append(f"step {row['step']}: evaluated on examples that are not held out")
            continue
        greedy = [answer for answer in answers if answer["sample"] == 0]
        right = sum(SORTING.correct(held_out[answer["id"]], answer["text"]) for answer in greedy)
        expected = wilson(right, len(greedy))
        reported = [row[f"eval/accuracy{end}"] for end in ("", "_low", "_high")]
        if reported != pytest.approx([expected.mean, expected.low, expected.high]):
            wrong.append(f"step {row['step']}: accuracy is {reported}, counted anew {expected}")
    return wrong


def test_a_gamed_reward_rises_and_the_accuracy_does_not(gamed: RunDirectory) -> None:
    rows = gamed.metrics()
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert rewards[-1] > rewards[0] + 0.3  # the policy did learn to please
    before, after = rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"]
    assert after <= before
    assert dishonesty(gamed) == []


def test_a_reward_of_one_for_everything_moves_nothing(beginner: Path, tmp_path: Path) -> None:
    changed = recipe(beginner, tmp_path, "generous")
    changed |= {"steps": 3, "optimizer": {"lr": 3e-3}, "eval": {**changed["eval"], "every_steps": 1}}
    run = train_here(changed, tmp_path / "run")
    rows = run.metrics()
    assert [row["reward/mean"] for row in rows[1:]] == [1.0] * 3
    assert len({row["eval/accuracy"] for row in rows}) == 1
    assert rows[-1]["eval/accuracy"] < 1.0
    assert dishonesty(run) == []


def test_held_out_examples_are_never_rolled_out(gamed: RunDirectory) -> None:
    assert gamed.rollout_steps() == list(range(1, STEPS + 1))
    seen = {row["id"] for step in gamed.rollout_steps() for row in gamed.rollouts(step)}
    posed = {row["id"] for step in gamed.answer_steps() for row in gamed.answers(step)}
    assert len(seen) > 50
    assert len(posed) == 24
    assert not seen & posed


def on_training_examples(self: Sorting, count: int) -> list[Any]:
    return self.draw(count, seed=(5, 1))  # the very examples of step 1


def by_reward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Counts an answer as right when the training reward likes it."""

    def rows(task: Any, example: Any, completions: Any) -> Any:
        made = original(task, example, completions)
        return [{**row, "correct": "9" in row["text"]} for row in made]

    return rows


def test_evaluating_on_training_examples_is_caught(
    beginner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Sorting, "held_out", on_training_examples)
        run = train_here({**recipe(beginner, tmp_path, "nines"), "steps": 1}, tmp_path / "run")
    wrong = dishonesty(run)
    assert any("were trained on" in line for line in wrong)
    assert any("not held out" in line for line in wrong)


def test_reporting_the_reward_as_the_metric_is_caught(
    beginner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "_answer_rows", by_reward(evaluation._answer_rows))
        run = train_here({**recipe(beginner, tmp_path, "nines"), "steps": 1}, tmp_path / "run")
    assert any("counted anew" in line for line in dishonesty(run))


def test_intervals_and_seed_are_reported(gamed: RunDirectory) -> None:
    results = gamed.results()
    assert results is not None
    assert results["seed"] == 5
    for when in ("before", "after"):
        for name in ("accuracy", "pass@1", "pass@2"):
            low, mean, high = (results[when][f"eval/{name}{end}"] for end in ("_low", "", "_high"))
            assert 0 <= low <= mean <= high <= 1
            assert high - low > 0.05  # 24 examples cannot say it more exactly


def test_measured_again_it_is_the_same(gamed: RunDirectory, zygote: Zygote) -> None:
    """`whet eval` on the best model, twice, gives the numbers that the run recorded for it."""
    info = gamed.best_info()
    assert info is not None
    recorded = next(row for row in gamed.metrics() if row["step"] == info["step"])
    outputs = [json.loads(zygote.run("eval", gamed.path, "--json").said()) for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert outputs[0]["seed"] == 5
    assert outputs[0]["accuracy"]["mean"] == recorded["eval/accuracy"]
    assert outputs[0]["pass_at"]["2"]["low"] == recorded["eval/pass@2_low"]
    texts = [(answer["id"], answer["text"]) for answer in outputs[0]["answers"]]
    assert texts == [(answer["id"], answer["text"]) for answer in gamed.answers(info["step"])]
    assert TASK == {"name": "sorting", "level": 1}
