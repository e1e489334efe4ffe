"""The user's own rewards on held-out prompts: measured, and the judge of the best model where the recipe says so."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.errors import RunFailed, UserError
from whet.evaluate.statistics import mean_interval
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory

REWARDS = """
def digits(completions, **columns):
    return [float(sum(letter.isdigit() for letter in text)) for text in completions]

def none(completions, **columns):
    return [0.0 for text in completions]
"""


@pytest.fixture
def rewards(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(REWARDS)
    return str(tmp_path / "rewards.py")


def opened(path: Path) -> RunDirectory:
    return RunDirectory.open(path, is_writer=False)


def test_reward_functions_grade_the_held_out_completions(rewards: str, tmp_path: Path) -> None:
    both = f"reward.functions=[{{use: '{rewards}:digits', weight: 2}}, {rewards}:none]"
    run = opened(train_tiny(tmp_path, both, "eval.every_steps=1", "best.metric=eval/reward"))
    for row in run.metrics():
        answers = run.answers(row["step"])
        texts = [answer["text"] for answer in answers]
        counts = [float(sum(letter.isdigit() for letter in text)) for text in texts]
        wanted = mean_interval([2 * count for count in counts])
        measured = [row[f"eval/reward{end}"] for end in ("", "_low", "_high")]
        assert measured == pytest.approx([wanted.mean, wanted.low, wanted.high])
        assert row["eval/parts/digits"] == pytest.approx(wanted.mean / 2)
        assert row["eval/parts/none"] == 0
        assert [answer["reward"] for answer in answers] == [2 * count for count in counts]
        assert [answer["parts"] for answer in answers] == [{"digits": count, "none": 0.0} for count in counts]
        assert row["eval/prompts"] == len(answers) == 4
    best = json.loads((run.path / "best_model" / "best.json").read_text())
    values = [row["eval/reward"] for row in run.metrics()]
    assert best["metric"] == "eval/reward"
    assert best["value"] == max(values)
    assert best["step"] == 1 + values[1:].index(max(values))  # the first trained one


def test_evaluation_off_keeps_the_last_model(tmp_path: Path) -> None:
    run = opened(train_tiny(tmp_path, "eval.every_steps=0"))
    assert not any(name.startswith("eval/") for row in run.metrics() for name in row)
    assert run.answer_steps() == []
    assert json.loads((run.path / "best_model" / "best.json").read_text())["step"] == 2
    last = (run.path / "checkpoints" / "step-000002" / "model" / "model.safetensors").read_bytes()
    assert (run.path / "best_model" / "model.safetensors").read_bytes() == last
    assert (run.results() or {})["best"] == {"step": 2}


@pytest.mark.parametrize("change", ["best.metric=eval/accuracy", "early_stopping.patience=1"])
def test_what_needs_evaluations_is_refused_without_them(tmp_path: Path, change: str) -> None:
    with pytest.raises(UserError, match=r"needs evaluations, and eval\.every_steps is 0"):
        read_recipe(str(write_recipe(tmp_path)), ["eval.every_steps=0", change])


def test_a_metric_that_is_not_measured_is_refused_with_those_that_are(whet: Whet, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    message = refused(whet, "train", recipe, "best.metric=eval/rewards", "--runs", tmp_path / "runs")
    assert message == (
        "best.metric is 'eval/rewards', which is not measured here; use one of "
        "eval/length, eval/truncated, eval/accuracy, eval/parts/correct, eval/parts/partial, eval/reward"
    )


def test_the_console_tells_what_was_learned_and_what_went_wrong(whet: Whet, rewards: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    flat = f"reward.functions=[{rewards}:none]"
    result = whet("train", recipe, flat, "steps=6", "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    lines = result.err.splitlines()
    (run,) = (tmp_path / "runs").iterdir()
    (before,) = [line for line in lines if line.startswith("before training: held-out accuracy ")]
    assert before.endswith("] on 4 prompts")
    told = "all rewards are 0, so no rollout is better than another and nothing can be learned from them"
    assert [line for line in lines if told in line] == [f"warning: step {step}: {told}" for step in (1, 2, 3)]
    end = lines[next(place for place, line in enumerate(lines) if line.startswith("held-out accuracy: ")) :]
    assert end[0].endswith(" (95 % intervals, on 4 prompts)")
    assert end[1].startswith("held-out reward: 0")
    assert end[2] == "verdict: held-out accuracy is 0.0%, as before training"
    assert end[3].startswith(f"best model: {run / 'best_model'} (step ")
    assert any(line.startswith("warning: reward was 0 in all 6 steps") for line in end)
    assert end[-1] == f"report: {run / 'report.html'}"


@pytest.mark.parametrize(
    ("call", "where"),
    [(1, "evaluation before training"), (2, "step 1"), (3, "evaluation after step 1"), (4, "step 2")],
)
def test_a_failure_says_in_which_part_of_the_run_it_happened(tmp_path: Path, call: int, where: str) -> None:
    (tmp_path / "late.py").write_text(
        "calls = []\n\n\n"
        "def late(completions, **columns):\n"
        "    calls.append(1)\n"
        f"    if len(calls) >= {call}:\n"
        "        raise ValueError('too late')\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    with pytest.raises(RunFailed, match=f"^{where}: reward function late failed at .*late.py:7 in late"):
        train_tiny(tmp_path, f"reward.functions=[{tmp_path / 'late.py'}:late]", "eval.every_steps=1")
