"""`whet eval RUN` measures what the run measured: its rewards, or its held-out rows; and says what is not defined."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.refusal import refused, train_tiny
from tests.cli.tiny import Whet
from tests.train import rows_on_disk as on_disk
from whet.api.run import Run
from whet.cli.progress import SilentProgress
from whet.recipe import Recipe
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

REWARDS = """
from pathlib import Path

def digits(completions, **columns):
    if Path(__file__).with_name("broken").exists():
        raise ValueError("out of order")
    return [float(sum(letter.isdigit() for letter in text)) for text in completions]

def short(completions, **columns):
    return [-float(len(text)) for text in completions]
"""


@pytest.fixture
def rewarded(tmp_path: Path) -> Path:
    """A run with two reward functions, evaluated at every step."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    functions = f"[{{use: '{tmp_path}/rewards.py:digits', weight: 2}}, '{tmp_path}/rewards.py:short']"
    return train_tiny(tmp_path, f"reward.functions={functions}", "eval.every_steps=1", "optimizer.lr=0.05")


def at_best(run: Path) -> dict[str, Any]:
    """The line of metrics.jsonl of the best step."""
    directory = RunDirectory.open(run, is_writer=False)
    step = (directory.best_info() or {})["step"]
    return next(row for row in directory.metrics() if row["step"] == step)


def test_the_rewards_of_a_run_are_those_of_its_best_evaluation(whet: Whet, rewarded: Path) -> None:
    wanted = at_best(rewarded)
    found = json.loads(whet("eval", rewarded, "--json").out)
    for name, interval in {"reward": found["reward"], **{f"parts/{k}": v for k, v in found["parts"].items()}}.items():
        ends = {"mean": "", "low": "_low", "high": "_high"}
        assert interval == {end: wanted[f"eval/{name}{suffix}"] for end, suffix in ends.items()}
    assert found["parts"].keys() == {"digits", "short"}
    assert found["accuracy"]["mean"] == wanted["eval/accuracy"]
    assert [answer["reward"] for answer in found["answers"]] == [
        2 * answer["parts"]["digits"] + answer["parts"]["short"] for answer in found["answers"]
    ]
    shown = whet("eval", rewarded, "--show", 1).out
    line = next(line for line in shown.splitlines() if "reward part digits" in line)
    assert f"{wanted['eval/parts/digits']:.4g}" in line
    assert "4 prompts" in line
    assert "; reward " in shown
    from_python = Run(rewarded).evaluate()
    assert from_python.reward is not None
    assert from_python.reward.mean == wanted["eval/reward"]
    other = json.loads(whet("eval", rewarded, "--task", "sorting", "--json").out)
    assert other["reward"] is not None  # of another task than the run's: the task's own
    assert not {"digits", "short"} & other["parts"].keys()


def test_a_reward_that_fails_is_one_sentence(whet: Whet, rewarded: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    line = refused(whet, "eval", rewarded, code=1)
    assert line.startswith("reward function digits failed at ")
    assert "out of order" in line
    (tmp_path / "rewards.py").unlink()
    assert str(tmp_path / "rewards.py") in refused(whet, "eval", rewarded)


def test_a_reward_that_was_a_python_object_is_said_to_be_missing(whet: Whet, tmp_path: Path) -> None:
    from tests.api.tiny import TINY
    from whet import train

    def shouted(completions: list[str]) -> list[float]:
        return [float(len(text)) for text in completions]

    run = train("grpo-sorting", reward={"functions": [shouted]}, steps=1, root=tmp_path, progress=False, **TINY)
    assert run.evaluate().reward is not None
    result = whet("eval", run.path, "--json")
    assert json.loads(result.out)["reward"] is None
    assert "is a Python object that was passed to whet.train, so rewards are not measured here" in result.err


def offline(place: Path, objective: str, data: Path, **changes: Any) -> Path:
    """A finished run on rows, evaluated at every second step."""
    model = on_disk.saved_model(place / "start")
    settings = {"eval": {"every_steps": 2, "examples": 12, "max_tokens": 4}, **changes}
    config = on_disk.config(model, data, objective, **settings)
    recipe = Recipe(name=objective, config=config, written={})
    return start_run(recipe, place / "runs", lambda config, run: SilentProgress())


def of_rows(metrics: dict[str, Any]) -> dict[str, Any]:
    prompts = ("eval/length", "eval/truncated", "eval/prompts")
    return {key: value for key, value in metrics.items() if key.startswith("eval/") and key not in prompts}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize(
    ("objective", "label", "rows"),  # eval.examples is 12, and 8 pairs are held out
    [
        ("sft", "held-out token accuracy", 8),
        ("dpo", "held-out pair accuracy", 8),
        ("kto", "held-out label accuracy", 12),
    ],
)
def test_the_held_out_rows_are_measured_anew_with_the_best_weights(
    whet: Whet, place: Path, objective: str, label: str, rows: int
) -> None:
    run = offline(place, objective, on_disk.pairs(place / "pairs.jsonl"))
    wanted = of_rows(at_best(run))
    (run / "metrics.jsonl").unlink()  # measured, not read
    found = json.loads(whet("eval", run, "--json").out)
    assert found["rows"] == pytest.approx(wanted)
    assert found["rows_step"] is None
    assert wanted["eval/rows"] == rows
    shown = whet("eval", run).out
    for name in ("held-out loss", label):
        assert f"{rows} rows" in next(line for line in shown.splitlines() if name in line)
    assert "recorded" not in shown
    assert f"whet eval {run} match=number" in shown


def test_rows_that_cannot_be_measured_anew_are_as_recorded(whet: Whet, place: Path) -> None:
    pairs = on_disk.pairs(place / "pairs.jsonl")
    run = offline(place, "bco", pairs)  # its loss depends on running means of the training steps
    found = json.loads(whet("eval", run, "--json").out)
    assert found["rows"] == of_rows(at_best(run))
    assert found["rows_step"] == at_best(run)["step"]
    assert f"held-out loss (recorded at step {found['rows_step']})" in whet("eval", run).out
    run = offline(place / "again", "sft", pairs)
    (place / "again" / "start").rename(place / "again" / "moved")
    result = whet("eval", run, "--json")
    assert "note: the held-out rows cannot be measured anew: " in result.err
    assert json.loads(result.out)["rows"] == of_rows(at_best(run))


def test_what_is_not_defined_is_said_with_the_remedy(whet: Whet, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    for number, row in enumerate(({"answer": "1"}, {})):
        rows = [{"prompt": f"{n}>", **row} for n in range(20)]
        on_disk.write(tmp_path / f"{number}.jsonl", rows)
    model = on_disk.saved_model(tmp_path / "model")
    with_answers, without = (("eval", model, "--task", "data", f"path={tmp_path / f'{n}.jsonl'}") for n in (0, 1))
    said = whet(*with_answers, "--samples", 2, "--max-tokens", 2).out
    assert "accuracy and pass@1 and pass@2 are not defined: the rows have answers, and nothing says how" in said
    assert f"whet eval {model} match=number" in said
    said = whet(*without, "--max-tokens", 2).out
    assert "accuracy is not defined: the rows have no answers" in said
    assert "columns={answer: NAME}" in said
