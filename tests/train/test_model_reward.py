"""A reward model as the reward: its number, its weight, what stands beside it, and a run that learns from it."""

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.contracts.command import online
from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from whet.api.run import Run
from whet.cli.progress import SilentProgress
from whet.config import RewardConfig, RolloutConfig, TaskConfig
from whet.errors import UserError
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer, with_padding
from whet.recipe import Recipe, validate
from whet.records import Example
from whet.runs.directory import RunDirectory
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.loading import guarded_task
from whet.tasks.procedural import Sorting
from whet.train.setup.prompt_notes import reward_lines
from whet.train.setup.reward_grader import build_grader
from whet.train.start import start_run

CPU = torch.device("cpu")
TASK = TaskConfig.model_validate({"name": "sorting", "level": 1})
EXAMPLES = Sorting(level=1).draw(4, seed=(0, 1))
TOKENIZER = character_tokenizer(Sorting(level=1).alphabet)
TEXTS = [EXAMPLES[0].answer, "12", EXAMPLES[2].answer[::-1], "999"]
HALVES = "def halves(completions, **columns):\n    return [len(c) / 2 for c in completions]\n"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model with strong opinions, as a directory."""
    directory = tmp_path_factory.mktemp("judge") / "model"
    policy, tokenizer = small_model(seed=3, sharp=3.0)
    tokenizer, pad = with_padding(tokenizer)
    model = new_reward_model(policy, RewardSettings(kind="preference"), seed=1, pad=pad)
    with torch.no_grad():
        model.head.weight.mul_(20)
    directory.mkdir()
    model.save(directory)
    tokenizer.save(directory)
    return directory


def opinion(prompt: str, text: str) -> float:
    """The score of that model at the end of a text, by a plain forward pass of what it was made of."""
    policy, tokenizer = small_model(seed=3, sharp=3.0)
    model = new_reward_model(policy, RewardSettings(kind="preference"), seed=1, pad=with_padding(tokenizer)[1])
    tokens = torch.tensor([[*tokenizer.encode(prompt + text), tokenizer.eos]])
    with torch.no_grad():
        state = model.trunk.hidden(tokens, torch.tensor([tokens.shape[1]]))[0, -1]
        return 20 * float(state @ model.head.weight[0])


def rewarded(task: TaskConfig, reward: dict) -> SimpleNamespace:
    return SimpleNamespace(task=task, reward=RewardConfig.model_validate(reward), rollout=RolloutConfig())


def grade(reward: dict, examples: list[Example] = EXAMPLES, texts: list[str] = TEXTS) -> list:
    with closing(build_grader(rewarded(TASK, reward), CPU, guarded_task(TASK.name, TASK.options), TOKENIZER)) as grader:
        return grader.grade(examples, texts)


def numbers(examples: list[Example] = EXAMPLES, texts: list[str] = TEXTS) -> list[float]:
    return [opinion(str(example.prompt), text) for example, text in zip(examples, texts, strict=True)]


def test_the_reward_is_the_models_and_the_tasks_is_only_noted(judge: Path) -> None:
    scores = grade({"model": str(judge)})
    wanted = numbers()
    assert len({round(number, 3) for number in wanted}) == 4  # four different opinions
    assert [score.reward for score in scores] == pytest.approx(wanted, abs=1e-4)
    for score, example, text in zip(scores, EXAMPLES, TEXTS, strict=True):
        own = Sorting(level=1).score(example, text)
        assert score.parts == {**own.parts, "task": own.reward, "model": pytest.approx(score.reward)}
    assert scores[0].parts["task"] == 1.0  # the right answer, whatever the model thinks of it


def test_prompts_without_a_score_of_their_own_note_none(judge: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"{n}>"}) + "\n" for n in range(20)))
    prompts = TaskConfig(name="data", **{"path": str(tmp_path / "p.jsonl")})
    task = guarded_task("data", prompts.options)
    with closing(build_grader(rewarded(prompts, {"model": str(judge)}), CPU, task, TOKENIZER)) as grader:
        (score,) = grader.grade(task.held_out(1), ["1"])
    assert score.parts.keys() == {"model"}


def test_a_run_names_its_rewards_and_warns_of_a_bad_reward_model(judge: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVES)
    own = f"{tmp_path / 'own.py'}:halves"
    base = {"steps": 1, "model": "m", "algorithm": "grpo", "task": "sorting"}
    weighted = {"functions": [{"use": own, "weight": 2.0}], "model": str(judge)}
    config = validate({**base, "reward": weighted}, where="test")
    assert reward_lines(config) == [f"reward: {own} × 2, reward model {judge}"]
    assert reward_lines(validate(base, where="test")) == []
    with RunDirectory.create(tmp_path, "judge", "loop: offline\n") as run:
        run.save_best(lambda directory: None, {"step": 1, "metric": "eval/pair_accuracy", "value": 0.375})
    (run.path / "best_model" / "config.json").write_text("{}")
    line, warning = reward_lines(validate({**base, "reward": {"model": str(run.path)}}, where="test"))
    assert line == f"reward: reward model {run.path} (held-out pair accuracy 37.5%)"
    assert warning.startswith("warning: the reward model ")
    assert "no better than chance" in warning


@pytest.mark.parametrize("weight", [0.5, -2.0, 0.0])
def test_the_weight_multiplies_the_reward_and_not_the_part(judge: Path, weight: float) -> None:
    scores = grade({"model": {"path": str(judge), "weight": weight}})
    assert [score.reward for score in scores] == pytest.approx([weight * number for number in numbers()], abs=1e-4)
    assert [score.parts["model"] for score in scores] == pytest.approx(numbers(), abs=1e-4)


def test_functions_are_added(judge: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HALVES)
    functions = [{"use": f"{tmp_path / 'own.py'}:halves", "weight": 3.0}]
    scores = grade({"functions": functions, "model": {"path": str(judge), "weight": 0.5}})
    wanted = [1.5 * len(text) + 0.5 * number for text, number in zip(TEXTS, numbers(), strict=True)]
    assert [score.reward for score in scores] == pytest.approx(wanted, abs=1e-4)
    for score, text, number in zip(scores, TEXTS, numbers(), strict=True):
        assert score.parts == {"halves": len(text) / 2, "model": pytest.approx(number, abs=1e-4)}


def test_where_functions_are_silent_the_model_alone_judges(judge: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def silent(completions, **columns):\n    return [None] * len(completions)\n")
    functions = [f"{tmp_path / 'own.py'}:silent"]
    assert [score.reward for score in grade({"functions": functions, "model": str(judge)})] == pytest.approx(
        numbers(), abs=1e-4
    )
    with pytest.raises(GradingFailed, match=r"every reward function \(silent\) gave None for row 0"):
        grade({"functions": functions})


@pytest.mark.parametrize("weight", [1e300, -1e16])
def test_a_weight_that_makes_rewards_overflow_is_named(judge: Path, weight: float) -> None:
    told = r"the reward model gave .* for example .*, beyond ±1e\+15, .*: scale it down \(reward.model.weight\)"
    with pytest.raises(GradingFailed, match=told) as caught:
        grade({"model": {"path": str(judge), "weight": weight}})
    assert caught.value.text == TEXTS[0]


def test_the_limits_of_the_recipe_reach_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(
        "import os, resource\ndef seen(completions):\n"
        "    return [resource.getrlimit(resource.RLIMIT_DATA)[0] / 1e9 + 100 * ('MY_KEY' in os.environ)] * 4\n"
    )
    functions = [f"{tmp_path / 'own.py'}:seen"]
    monkeypatch.setenv("MY_KEY", "secret")
    assert grade({"functions": functions})[0].reward == 16.0
    assert grade({"functions": functions, "memory_limit_gb": 2.5, "environment": ["MY_KEY"]})[0].reward == 102.5


def test_without_a_model_the_grader_is_the_tasks(judge: Path) -> None:
    task = guarded_task(TASK.name, TASK.options)
    assert isinstance(build_grader(rewarded(TASK, {}), CPU, task, TOKENIZER), DirectGrader)
    assert grade({})[0].reward == 1.0


def test_batch_mates_do_not_change_a_score(judge: Path) -> None:
    together = [score.reward for score in grade({"model": str(judge)})]
    alone = [
        grade({"model": str(judge)}, [example], [text])[0].reward for example, text in zip(EXAMPLES, TEXTS, strict=True)
    ]
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_language_model_is_no_judge(tmp_path: Path) -> None:
    policy = on_disk.saved_model(tmp_path / "policy")
    with pytest.raises(UserError, match=r"policy is no reward model: it has no head \(score.weight\)") as error:
        grade({"model": str(policy)})
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="absent"):
        grade({"model": str(tmp_path / "absent")})


def recipe(policy: Path, judge: Path, **changes: object) -> dict:
    written = online(policy, steps=2, reward={"model": {"path": str(judge), "weight": 0.5}}, algorithm="grpo")
    written |= {"rollout": {"prompts": 3, "group": 4, "max_tokens": 4}, "device": "cpu"}
    written["eval"] = {"every_steps": 1, "examples": 6, "max_tokens": 4}
    return {**written, **changes}


def test_a_run_learns_from_the_model_and_is_evaluated_by_the_task(judge: Path, tmp_path: Path) -> None:
    policy = on_disk.saved_model(tmp_path / "policy")
    config = validate(recipe(policy, judge, save={"every_steps": 2}), where="test")
    path = start_run(Recipe(name="rm", config=config, written={}), tmp_path / "runs", lambda *_: SilentProgress())
    run = RunDirectory.open(path, is_writer=False)
    for step in (1, 2):
        rows = run.rollouts(step)
        assert len(rows) == 12
        for row in rows:
            assert row["parts"]["model"] == pytest.approx(opinion(row["prompt"], row["text"]), abs=1e-4)
            assert row["reward"] == pytest.approx(0.5 * row["parts"]["model"])
        (logged,) = [metrics for metrics in run.metrics() if metrics["step"] == step]
        assert logged["reward/mean"] == pytest.approx(sum(row["reward"] for row in rows) / 12)
        assert logged["parts/model"] == pytest.approx(2 * logged["reward/mean"])
        assert logged["updates"] > 0
    answers = run.answers(2)
    assert [answer["correct"] for answer in answers] == [
        answer["text"].strip() == answer["answer"] for answer in answers
    ]
    best = next(row for row in run.metrics() if row["step"] == (run.best_info() or {})["step"])
    again = Run(path).evaluate()
    assert again.reward is not None
    assert again.reward.mean == pytest.approx(best["eval/reward"])
    assert again.parts["model"].mean == pytest.approx(best["eval/parts/model"])
