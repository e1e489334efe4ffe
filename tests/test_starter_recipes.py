"""Recipes for one's own model and files: each runs with two overrides, as its first line says."""

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.small import small_chat_model
from whet.recipe import packaged_recipes
from whet.runs.directory import RunDirectory

STARTERS = ("sft", "dpo", "kto", "reward-model", "grpo", "ppo")
QUICK = ("batch_size=4", "eval.examples=4", "eval.max_tokens=8", "device=cpu", "track=[]")
ONLINE = ("steps=1", "rollout.prompts=2", "rollout.max_tokens=8", "eval.examples=4", "device=cpu", "track=[]")
REWARD = "def length(completions, **columns):\n    return [float(len(text)) for text in completions]\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and files as users have them."""
    path = tmp_path_factory.mktemp("own")
    small_chat_model(path / "model")
    sums = [(a, b) for a in range(6) for b in range(4)]
    talks = [[{"role": "user", "content": f"{a}+{b}"}, {"role": "assistant", "content": f"{a + b}"}] for a, b in sums]
    files = {
        "talks": [{"messages": talk} for talk in talks],
        "pairs": [{"prompt": f"{a}+{b}", "chosen": f"{a + b}", "rejected": f"{a + b + 1}"} for a, b in sums],
        "labels": [{"prompt": f"{a}+{b}", "completion": f"{a + b + b % 2}", "label": b % 2 == 0} for a, b in sums],
        "prompts": [{"prompt": f"{a}+{b}", "answer": a + b} for a, b in sums],
    }
    for name, rows in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "rewards.py").write_text(REWARD)
    return path


DATA = {"sft": "talks", "dpo": "pairs", "kto": "labels", "reward-model": "pairs", "grpo": "prompts", "ppo": "prompts"}


@pytest.mark.parametrize("name", STARTERS)
def test_it_runs_with_a_model_and_a_file(whet: Whet, place: Path, tmp_path: Path, name: str) -> None:
    overrides = [f"model={place / 'model'}", f"data={place / DATA[name]}.jsonl"]
    if name in ("grpo", "ppo"):
        quick = ONLINE if name == "grpo" else (*ONLINE, "critic.warmup_steps=0", "update.minibatches=1")
        overrides += [f"reward.functions=[{place / 'rewards.py'}:length]", *quick]
    else:
        overrides += QUICK
    result = whet("train", name, *overrides, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.open(path, is_writer=False)
    assert run.finished
    headline = {"sft": "held-out loss", "reward-model": "held-out pair accuracy", "dpo": "held-out pair accuracy"}
    headline |= {"kto": "held-out label accuracy", "grpo": "held-out reward", "ppo": "held-out reward"}
    assert any(line.startswith(f"{headline[name]}: ") for line in result.err.splitlines()), result.err
    assert not any(
        line.startswith("held-out accuracy") for line in result.err.splitlines()
    )  # nothing says what is right


def test_answers_are_compared_where_match_says_how(whet: Whet, place: Path, tmp_path: Path) -> None:
    data = f"data={{path: {place / 'prompts.jsonl'}, match: number}}"
    result = whet("train", "grpo", f"model={place / 'model'}", data, *ONLINE, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    assert any(line.startswith("held-out accuracy: ") for line in result.err.splitlines())


def test_maths_problems_with_a_file_for_evaluation(whet: Whet, place: Path, tmp_path: Path) -> None:
    files = {}
    for name, first in (("train", 0), ("test", 50)):
        rows = [
            {"question": f"{n} + 1?", "answer": f"<<{n}+1={n + 1}>>\n#### {n + 1}"} for n in range(first, first + 12)
        ]
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = (f"model={place / 'model'}", f"task.path={files['train']}", f"eval.data={files['test']}")
    quick = ("eval.samples=2", "eval.ks=[2]", *(option for option in ONLINE if option != "track=[]"))
    result = whet("train", "grpo-maths", *named, *quick, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    assert any(line.startswith("held-out accuracy: ") for line in result.err.splitlines())
    (path,) = (tmp_path / "runs").iterdir()
    answers = [json.loads(line) for line in (path / "evals" / "step-000001.jsonl").read_text().splitlines()]
    assert {row["prompt"].split("\n")[0] for row in answers} <= {f"user: {n} + 1?" for n in range(50, 62)}
    assert all("put your final answer within \\boxed{}" in row["prompt"] for row in answers)
    metrics = RunDirectory.open(path, is_writer=False).metrics()[-1]
    assert metrics["eval/maj@2"] == metrics["eval/accuracy"] == 0
    assert ": whet train grpo-maths model=DIR task.path=" in packaged_recipes()["grpo-maths"].splitlines()[0]


def test_what_is_missing_is_said_with_what_to_write(whet: Whet, place: Path, tmp_path: Path) -> None:
    model, data = f"model={place / 'model'}", f"data={place / 'prompts.jsonl'}"
    assert refused(whet, "train", "sft", data).endswith(
        "key 'model' is missing: add model=DIR (a directory, a pulled name or a run)"
    )
    assert "nothing to learn from: name data, e.g. data: pairs.jsonl" in refused(whet, "train", "sft", model)
    assert refused(whet, "train", "grpo", model).endswith(
        "key 'task' is missing: add data=FILE (your prompts), or task=NAME"
    )
    assert "there is no reward: name reward.functions (rewards.py:f) or reward.model, or set match" in refused(
        whet, "train", "grpo", model, data
    )
    assert "both task and data are set" in refused(whet, "train", "grpo-sorting", data)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", STARTERS)
def test_its_first_line_is_its_command(name: str) -> None:
    assert f": whet train {name} model=DIR data=FILE" in packaged_recipes()[name].splitlines()[0]
