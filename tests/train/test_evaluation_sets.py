"""Evaluation on files and tasks of their own (eval.data, eval.task): in place of held-out prompts, or beside them.

The model answers every prompt with "2" (probability 0.5; "3" and the end have 0.25 each), so all metrics are known.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

import whet as whet_api
from tests.cli.refusal import refused
from tests.cli.tiny import Whet, bigram_model
from whet.cli.progress import SilentProgress
from whet.errors import UserError
from whet.models.text.tokenizers import EOS
from whet.recipe import dump, parse_yaml, read_recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

RECIPES = {
    "online": """
steps: 6
algorithm: grpo
rollout: {prompts: 2, group: 2, max_tokens: 2}
task: {name: rows, path: train.jsonl}
""",
    "sft": "{loop: offline, steps: 1, data: {path: train.jsonl, columns: {completion: answer}}, objective: sft}",
    "dpo": "{loop: offline, steps: 1, data: pairs.jsonl, objective: dpo}",
    "reward": "{loop: offline, steps: 1, data: pairs.jsonl, objective: bradley_terry}",
}
SHARED = {"eval.every_steps=1", "eval.max_tokens=2", "optimizer.lr=1e-12", "save.every_steps=100", "track=[]"}
Train = Callable[..., RunDirectory]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains in a directory with a model and files of prompts."""
    monkeypatch.chdir(tmp_path)
    bigram_model(tmp_path / "model", {">": {"2": 0.5, "3": 0.25, EOS: 0.25}}, alphabet="0123456789>")
    answers = {"train": "2" * 12, "test": "2223", "easy": "22", "hard": "33333"}
    for start, (name, given) in zip((10, 30, 50, 70), answers.items(), strict=True):
        rows = [{"prompt": f"{start + n}>", "answer": answer} for n, answer in enumerate(given)]
        write(tmp_path / f"{name}.jsonl", rows)
    for start, name in ((10, "pairs"), (40, "others")):
        rows = [{"prompt": f"{start + n}>", "chosen": "2", "rejected": "3"} for n in range(12)]
        write(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "r.py").write_text("def count(completions, **_):\n    return [float('2' in c) for c in completions]\n")

    def trained(recipe: str, *overrides: str) -> RunDirectory:
        (tmp_path / f"{recipe}.yaml").write_text(RECIPES[recipe])
        found = read_recipe(f"{recipe}.yaml", ["model=model", *SHARED, *overrides])
        path = start_run(found, tmp_path / "runs", lambda config, run: SilentProgress())
        return RunDirectory.open(path, is_writer=False)

    return trained


def write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_file_in_place_of_held_out_prompts(train: Train, whet: Whet) -> None:
    run = train("online", "eval.data=test.jsonl")
    for row in run.metrics():
        if "eval/accuracy" in row:
            assert row["eval/accuracy"] == row["eval/reward"] == 0.75
    assert len(run.answers(6)) == 4
    trained = {row["prompt"] for step in range(1, 7) for row in run.rollouts(step)}
    assert trained == {f"{10 + n}>" for n in range(12)}  # an epoch: nothing is held out
    assert run.best_info()["metric"] == "eval/accuracy"
    measured = json.loads(whet("eval", run.path, "--json").out)
    assert (measured["accuracy"]["mean"], measured["examples"]) == (0.75, 4)


def test_a_finished_run_is_evaluated_on_another_file(train: Train, whet: Whet, tmp_path: Path) -> None:
    run = train("online", "reward.functions=[r.py:count]", "steps=1")
    measured = json.loads(whet("eval", run.path, "--data", "hard.jsonl", "--json").out)
    assert (measured["examples"], measured["accuracy"]["mean"], measured["reward"]["mean"]) == (5, 0, 1)
    assert "rows of " in (told := whet("eval", run.path, "--data", "hard.jsonl").out)
    assert "hard.jsonl: 5 held-out examples" in told
    assert whet_api.evaluate(run.path, data="hard.jsonl").examples == 5
    measured = json.loads(whet("eval", "model", "--data", "easy.jsonl", "match=exact", "--json").out)
    assert (measured["examples"], measured["accuracy"]["mean"]) == (2, 1)
    offline = train("sft", "eval.every_steps=0", "data.held_out_share=0")
    found = json.loads(whet("eval", offline.path, "--data", "test.jsonl", "--json").out)
    assert found["rows"]["eval/loss"] == pytest.approx((3 * math.log(2) + math.log(4)) / 8, abs=1e-2)
    assert "leave one out" in refused(whet, "eval", run.path, "--data", "hard.jsonl", "--task", "sorting")


def test_sets_with_names_are_measured_beside_the_held_out_prompts(train: Train) -> None:
    run = train(
        *(
            "online",
            "eval.data.easy=easy.jsonl",
            "eval.data.hard=hard.jsonl",
            "eval.task.digits={name: sorting, level: 1}",
        ),
        *("reward.functions=[r.py:count]", "best.metric=eval/hard/reward", "early_stopping.patience=9"),
        *("early_stopping.metric=eval/easy/accuracy", "eval.examples=3"),
    )
    last = run.metrics()[-1]
    assert [last[f"eval{name}/accuracy"] for name in ("", "/easy", "/hard", "/digits")] == [1, 1, 0, 0]
    assert [last[f"eval{name}/reward"] for name in ("", "/easy", "/hard", "/digits")] == [1, 1, 1, 1]
    assert last["eval/hard/parts/count"] == 1
    counts = [sum(row.get("set", "") == name for row in run.answers(6)) for name in ("", "easy", "hard", "digits")]
    assert counts == [3, 2, 3, 3]
    assert run.best_info()["metric"] == "eval/hard/reward"
    trained = {row["prompt"] for step in range(1, 7) for row in run.rollouts(step)}
    held_out = {row["prompt"] for row in run.answers(6) if "set" not in row}
    assert trained
    assert not trained & held_out


def test_a_task_scores_the_completions_of_its_own_prompts(train: Train) -> None:
    run = train("online", "task={name: sorting, level: 1}", "eval.task={name: rows, path: hard.jsonl}")
    assert run.metrics()[0]["eval/reward"] == 0
    run = train("online", "task={name: sorting, level: 1}", "eval.task.own={name: rows, path: easy.jsonl}")
    assert run.metrics()[0]["eval/own/reward"] == 1
    assert run.metrics()[0]["eval/reward"] < 1


def test_the_loss_on_rows_of_a_file(train: Train) -> None:
    columns = "{completion: answer}"
    run = train("sft", f"eval.data={{path: test.jsonl, columns: {columns}}}")
    # Three answers "2", one "3"; the end that follows has probability 1.
    assert run.metrics()[0]["eval/loss"] == pytest.approx((3 * math.log(2) + math.log(4)) / 8, abs=1e-4)
    assert run.metrics()[0]["eval/token_accuracy"] == 7 / 8
    run = train("sft", "eval.data.hard=hard.jsonl")
    assert run.metrics()[0]["eval/loss"] == pytest.approx(math.log(2) / 2, abs=1e-4)  # held out, all "2"
    assert run.metrics()[0]["eval/hard/loss"] == pytest.approx(math.log(4) / 2, abs=1e-4)
    assert run.best_info()["metric"] == "eval/loss"


def test_pairs_of_a_file(train: Train, whet: Whet) -> None:
    run = train("dpo", "eval.data.others=others.jsonl", "objective.beta=0.1")
    assert run.metrics()[0]["eval/others/loss"] == pytest.approx(math.log(2))
    assert run.metrics()[0]["eval/others/pair_accuracy"] == 0.5  # the policy is the reference: all are ties
    run = train("reward", "eval.data=others.jsonl")
    analysis = json.loads((run.path / "reward_model.json").read_text())
    assert analysis["accuracy"]["mean"] == run.metrics()[-1]["eval/pair_accuracy"]
    measured = json.loads(whet("eval", run.path, "--data", "others.jsonl", "--json").out)
    assert measured["pair_accuracy"]["mean"] == pytest.approx(run.metrics()[-1]["eval/pair_accuracy"])


def test_a_reward_model_without_evaluations_ends(train: Train) -> None:
    run = train("reward", "eval.every_steps=0")
    assert run.finished
    assert run.best_info() == {"step": 1}


def test_a_changed_evaluation_file_is_noticed(train: Train, whet: Whet, tmp_path: Path) -> None:
    run = train("online", "eval.data.hard=hard.jsonl", "steps=1")
    write(tmp_path / "hard.jsonl", [{"prompt": "99>", "answer": "2"}])
    assert "eval.data.hard.path" in refused(whet, "train", run.path, "--resume", "steps=2")


def test_prompts_that_are_trained_on_too_are_said(train: Train, whet: Whet, tmp_path: Path) -> None:
    rows = (tmp_path / "test.jsonl").read_text() + (tmp_path / "train.jsonl").read_text()
    (tmp_path / "test.jsonl").write_text(rows)
    train("online")  # writes the recipe
    overrides = ["model=model", *SHARED, "steps=1", "eval.data=test.jsonl"]
    told = whet("train", "online.yaml", *overrides, "--out", tmp_path / "run").err
    assert "evaluation: warning: 12 of 16 prompts are also trained on, so not held out" in told
    (tmp_path / "others.jsonl").write_text((tmp_path / "pairs.jsonl").read_text())
    (tmp_path / "dpo.yaml").write_text(RECIPES["dpo"])
    overrides = ["model=model", *SHARED, "eval.data.again=others.jsonl"]
    told = whet("train", "dpo.yaml", *overrides, "--out", tmp_path / "dpo").err
    assert "evaluation set again: 12 pairs of" in told
    assert "of their prompts are also trained on" in told


BASE = {"steps": 1, "model": "m", "algorithm": "grpo", "task": {"name": "rows", "path": "t.jsonl"}}
OFFLINE = {"loop": "offline", "steps": 1, "model": "m", "data": "p.jsonl", "objective": "dpo"}


@pytest.mark.parametrize(
    ("base", "sets", "sentence"),
    [
        (BASE, {"data": "a", "task": "sorting"}, "both name the one evaluation set"),
        (BASE, {"data": {"a": "f"}, "task": {"a": "sorting"}}, "both have a set 'a'"),
        (BASE, {"data": {"parts": "f"}}, "'parts' cannot name an evaluation set"),
        (BASE, {"data": {"a/b": "f"}}, "'a/b' cannot name an evaluation set"),
        (BASE, {"data": {"limit": 3}}, "name a path, or the split"),
        (BASE, {"data": 3}, "eval.data must be"),
        (BASE, {"data": {"path": 5}}, "eval.data.path must be text, not 5"),
        (BASE, {"task": {"name": 5}}, "eval.task.name must be text, not 5"),
        (BASE, {"examples": 10**20}, "eval.examples must be less than"),
        ({**BASE, "task": {**BASE["task"], "held_out_share": 1}}, {}, "task.held_out_share is 1, so no row is left"),
        ({**OFFLINE, "data": {"path": "p", "held_out_share": 1}}, {}, "data.held_out_share is 1, so no row is left"),
        ({**BASE, "task": {**BASE["task"], "held_out_rows": 4}}, {"data": "f"}, "held_out_rows is 4, and eval names"),
        ({**OFFLINE, "data": {"path": "p", "held_out_share": 0.2}}, {"data": "f"}, "data.held_out_share is 0.2"),
        ({**BASE, "task": "sorting"}, {"data": "f"}, "nothing grades the prompts of eval.data: use eval.task"),
    ],
)
def test_wrong_sets_are_refused(base: dict, sets: dict, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        validate({**base, "eval": sets}, where="recipe")
    assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    ("base", "sets", "tasks"),
    [
        (BASE, {}, {"": ("t.jsonl", None)}),
        (BASE, {"data": "f"}, {"": ("f", 1.0)}),
        (
            BASE,
            {"data": {"a": "f", "b": {"path": "g", "limit": 2}}},
            {"": ("t.jsonl", None), "a": ("f", 1), "b": ("g", 1)},
        ),
        (BASE, {"task": {"name": "rows", "path": "g", "held_out_share": 0.5}}, {"": ("g", 0.5)}),
        (OFFLINE, {"data": {"split": "test"}}, {"": ("p.jsonl", 1)}),
        ({**OFFLINE, "task": "sorting"}, {"data": "f"}, {"": (None, None)}),  # rows for the loss alone
    ],
)
def test_the_tasks_of_a_config_and_a_saved_one(base: dict, sets: dict, tasks: dict) -> None:
    config = validate({**base, "eval": sets}, where="recipe")
    again = validate(parse_yaml(dump(config), where="saved"), where="saved")
    for one in (config, again):
        found = {name: task.options for name, task in one.evaluation_tasks.items()}
        assert {name: (o.get("path"), o.get("held_out_share")) for name, o in found.items()} == tasks
    assert again == config


def test_one_file_has_no_splits(tmp_path: Path) -> None:
    write(tmp_path / "p.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(UserError, match="which is one file and has no splits"):
        validate({**OFFLINE, "data": str(tmp_path / "p.jsonl"), "eval": {"data": {"split": "test"}}}, where="r")


def test_another_split_of_the_data_and_its_format(tmp_path: Path) -> None:
    data = {"path": "org/set", "format": "hh", "subset": "small", "columns": {"prompt": "question"}, "chat": True}
    config = validate(
        {**OFFLINE, "data": data, "eval": {"data": {"split": "test", "columns": {"prompt": "q"}}}}, where="r"
    )
    evaluated = config.evaluation_data[""]
    assert (evaluated.path, evaluated.format, evaluated.subset, evaluated.chat) == ("org/set", "hh", "small", True)
    assert (evaluated.split, evaluated.columns, evaluated.held_out_share) == ("test", {"prompt": "q"}, 1)
    assert (config.data.split, config.data.held_out_share) == ("train", 0)
    assert config.evaluation_tasks[""].options["split"] == "test"


def test_a_plan_of_evaluations(whet: Whet, train: Train) -> None:
    train("online", "steps=1")
    whole = whet("explain", "online.yaml", "model=model", "eval.data.hard=hard.jsonl", "eval.data.easy=easy.jsonl")
    assert "10 greedy answers" in whole.out  # 5 and 2, and 3 that are held out of 12
    none = whet("explain", "online.yaml", "model=model", "eval.every_steps=0")
    assert none.code == 0
    assert ["evaluations", "none"] in [line.split() for line in none.out.splitlines()]
