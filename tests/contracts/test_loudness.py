"""Contract 5. What breaks stops with a sentence and the culprit on the disk; the last good checkpoint stands."""

import contextlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.command import SUPERVISED, Zygote, online, only_run, write_recipe
from tests.contracts.here import save_small, train_here
from tests.contracts.ranks import MARK, lost_the_other, nothing_left_of
from whet.algorithms.policy_loss import token_mean
from whet.batching import global_weights
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.models import load
from whet.records import Batch
from whet.runs import checkpoints
from whet.runs.checkpoints import defect
from whet.runs.layout import by_step
from whet.train.online import loop as online_module
from whet.train.online import rollouts as rollouts_module
from whet.train.online import update as update_module
from whet.train.online.sampling import SampledGroups
from whet.train.rows import sft as supervised_module

STEPS, BAD_STEP = 9, 8  # checkpoints at 3, 6 and 9


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = save_small(tmp_path_factory.mktemp("small") / "model", sharp=3.0)
    return online(model, steps=STEPS, eval={"every_steps": 3, "examples": 4, "max_tokens": 6})


@pytest.fixture(scope="module")
def whole(recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    return train_here(recipe, tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture(scope="module")
def failed(recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed after its checkpoints of steps 3 and 6."""
    path = tmp_path_factory.mktemp("failed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        poison_advantages(patch)
        with pytest.raises(RunFailed):
            train_here(recipe, path)
    assert list(by_step(path / "checkpoints")) == [3, 6]
    return path


def metrics(run: Path) -> bytes:
    return (run / "metrics.jsonl").read_bytes()


def poison_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    """One advantage of one step is not a number."""
    original = online_module.annotate

    def annotate(
        learner: Any, sampled_groups: SampledGroups, step_settings: Any, record: Any
    ) -> tuple[Batch, Any, dict[str, float]]:
        batch, seen, metrics = original(learner, sampled_groups, step_settings, record)
        if sampled_groups.drawn[0][0].version == BAD_STEP - 1:
            batch.advantages[2] *= float("nan")
        return batch, seen, metrics

    monkeypatch.setattr(online_module, "annotate", annotate)


def poison_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight becomes infinite before a step."""
    original = rollouts_module.sample

    def sample(engine: Any, *rest: Any, **options: Any) -> Any:
        if engine.version == BAD_STEP - 1:
            with torch.no_grad():
                next(iter(engine.policy.parameters()))[0, 0] = float("inf")
                next(iter(engine.policy.parameters()))[:, 1] = float("inf")
        return original(engine, *rest, **options)

    monkeypatch.setattr(rollouts_module, "sample", sample)


def test_a_loss_that_is_no_number_stops_the_run(
    recipe: dict[str, Any],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        poison_advantages(patch)
        with pytest.raises(RunFailed) as failure:
            train_here(recipe, tmp_path / "run")
    run = tmp_path / "run"
    good = run / "checkpoints" / "step-000006"
    evidence = run / "failures" / "loss-001.json"
    assert str(failure.value) == f"step 8: the loss is nan; see {evidence}; the last good checkpoint is {good}"
    assert defect(good) is None
    culprit = json.loads(evidence.read_text())
    assert culprit["step"] == BAD_STEP
    assert len(culprit["tokens"]) == len(culprit["logprobs"]) == len(culprit["advantages"]) > 0
    assert "nan" in evidence.read_text()
    # Nothing was lost: the cause removed, the run goes on as if it had never failed.
    train_here(recipe, run)
    assert metrics(run) == metrics(whole)


def test_weights_that_are_no_numbers_stop_the_run_before_anything_is_sampled_from_them(
    recipe: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        poison_weights(patch)
        with pytest.raises(
            RunFailed, match=r"^step 8: the model's logits are not finite at token 1 .*model\.embed_tokens"
        ):
            train_here(recipe, run)
    assert defect(run / "checkpoints" / "step-000006") is None
    train_here(recipe, run)
    assert metrics(run) == metrics(whole)


def test_a_trainer_that_skips_bad_batches_is_caught(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way to hide it: a loss that is no number counts as 0, and nobody is told."""
    poison_advantages(monkeypatch)
    monkeypatch.setattr(update_module, "finite", lambda loss, **_: torch.nan_to_num(loss.detach()).requires_grad_())
    run = train_here(recipe, tmp_path / "run")  # no RunFailed: what the test above demands
    assert not (run.path / "failures").exists()


def test_a_supervised_loss_that_is_no_number_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    original = supervised_module.read_tokens

    def poisoned(*arguments: Any, **more: Any) -> Any:
        reading = original(*arguments, **more)
        if torch.is_grad_enabled() and next(calls) == 20:
            return replace(reading, logprobs=reading.logprobs * float("inf"))
        return reading

    monkeypatch.setattr(supervised_module, "read_tokens", poisoned)
    with pytest.raises(
        RunFailed, match=r"step \d+: the loss is (nan|inf); see .*loss-001.json; the last good checkpoint"
    ):
        train_here(SUPERVISED, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "failures" / "loss-001.json").read_text())["tokens"]


REWARDS = """
import time

def raises(prompts, completions, **columns):
    for prompt in prompts:
        if FAULTY(prompt):
            raise KeyError("no such column")
    return [len(text) / 10 for text in completions]

def hangs(prompts, completions, **columns):
    time.sleep(60 if any(FAULTY(prompt) for prompt in prompts) else 0)
    return [len(text) / 10 for text in completions]

def gives_nan(prompts, completions, **columns):
    return [float("nan") if FAULTY(prompt) else len(text) / 10 for prompt, text in zip(prompts, completions)]

def FAULTY(prompt):
    return prompt[0] in "13579"
"""


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("raises", r"reward function raises failed at \S+:\d+ in raises: KeyError: 'no such column'"),
        ("hangs", r"reward function hangs took longer than 0\.5 s and was stopped: see reward\.time_limit_seconds"),
        ("gives_nan", r"reward function gives_nan gave nan for row \d+"),
    ],
)
def test_a_broken_reward_stops_the_run(
    function: str, sentence: str, zygote: Zygote, beginner: Path, tmp_path: Path
) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    reward = {"functions": [f"{tmp_path / 'rewards.py'}:{function}"], "time_limit_seconds": 0.5}
    changed = online(beginner, reward=reward, eval={"examples": 4, "max_tokens": 6})
    process = zygote.start("train", write_recipe(tmp_path / "r.yaml", changed), "--runs", tmp_path / "runs")
    assert process.wait() == 1
    run = only_run(tmp_path / "runs")
    evidence = run / "failures" / "reward-001.json"
    errors = [line for line in process.said().splitlines() if line.startswith("whet: ")]
    assert len(errors) == 1
    where = r"(?:step \d+|evaluation before training)"
    pattern = rf"whet: {where}: {sentence} \(example (sorting:\d+), row \d+ of (?:4|30)\); see {evidence}.*"
    match = re.fullmatch(pattern, errors[0])
    assert match, errors[0]
    assert "Traceback" not in process.said()
    culprit = json.loads(evidence.read_text())
    assert culprit["example"]["id"] == match[1]
    assert culprit["example"]["prompt"][0] in "13579"  # the very example, not just some row of the batch
    assert isinstance(culprit["text"], str)


def test_a_rank_that_fails_takes_the_others_with_it(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    """A rank that waited for a dead one would hang for ever."""
    (tmp_path / "rewards.py").write_text(
        REWARDS.replace('prompt[0] in "13579"', '__import__("os").environ["RANK"] == "1"')
    )
    reward = {"functions": [f"{tmp_path / 'rewards.py'}:raises"]}
    changed = online(beginner, reward=reward, eval={"examples": 4, "max_tokens": 6})
    recipe = write_recipe(tmp_path / "r.yaml", changed)
    ranks = zygote.start_ranks(2, "train", recipe, "--runs", tmp_path / "runs", environment={MARK: tmp_path.name})
    assert ranks[1].wait() == 1, ranks[1].said()
    assert "whet: evaluation before training: reward function raises failed at " in ranks[1].said()
    assert "Traceback" not in ranks[1].said()
    lost_the_other(ranks[0], only_run(tmp_path / "runs"), 1)
    nothing_left_of(tmp_path.name)
    assert (only_run(tmp_path / "runs") / "failures" / "reward-rank1-001.json").exists()


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 0x40
    path.write_bytes(data)


def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_used(
    zygote: Zygote, whole: Path, failed: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(failed, tmp_path / "run"))
    newest = run / "checkpoints" / "step-000006"
    flip_a_bit(newest / "model" / "model.safetensors")
    said = zygote.run("train", run, "--resume").said()
    wrong = "model/model.safetensors has a wrong checksum"
    assert f"whet: checkpoint {newest} is corrupt: {wrong}; trying the one before it\n" in said
    assert "resumed after step 3\n" in said
    assert metrics(run) == metrics(whole)


def test_a_reader_that_does_not_look_is_caught(
    recipe: dict[str, Any], whole: Path, failed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(failed, tmp_path / "run"))
    flip_a_bit(run / "checkpoints" / "step-000006" / "model" / "model.safetensors")
    monkeypatch.setattr(checkpoints, "defect", lambda _: None)
    monkeypatch.setattr(load, "refuse_damage", lambda _: None)
    with contextlib.suppress(RunFailed):  # the flipped bit may be so large that it shows later
        train_here(recipe, run)
    assert metrics(run) != metrics(whole)


def test_no_intact_checkpoint_is_an_end(zygote: Zygote, failed: Path, tmp_path: Path) -> None:
    """Starting again from nothing would silently throw away what the user may still rescue."""
    run = Path(shutil.copytree(failed, tmp_path / "run"))
    for step in (3, 6):
        flip_a_bit(run / "checkpoints" / f"step-{step:06d}" / "optimizer.safetensors")
    process = zygote.start("train", run, "--resume")
    assert process.wait() == 1
    assert process.said().rstrip().splitlines()[-1] == (
        f"whet: no checkpoint in {run / 'checkpoints'} is intact, so the run cannot be resumed: "
        f"start a new one with model={run}, whose best model is intact"
    )
    assert metrics(run) == metrics(failed)


TASK = """
from whet.tasks.procedural import Sorting

class Short(Sorting):
    def draw(self, count, *, seed):
        return super().draw(count, seed=seed)[:{kept}] if seed[-1] > 1 else super().draw(count, seed=seed)
"""


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("loop", ["online", "offline"])
def test_an_empty_or_short_batch_stops_the_run(kept: int, loop: str, recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(TASK.format(kept=kept))
    task = {"name": f"{tmp_path / 'short.py'}:Short"}
    changed = {**(recipe if loop == "online" else {**SUPERVISED, "model": recipe["model"]}), "task": task}
    count = 5 if loop == "online" else 16
    with pytest.raises(RunFailed, match=f"step 2: task .*Short drew {kept} examples instead of {count}"):
        train_here(changed, tmp_path / "run")


def test_a_batch_without_a_trained_token_is_no_step() -> None:
    with pytest.raises(RunFailed, match="the batch has no trained tokens"):
        global_weights(token_mean, torch.zeros(3, 4, dtype=torch.bool), World.alone(), max_tokens=4)
    weights = global_weights(token_mean, torch.tensor([[False, True], [False, True]]), World.alone(), max_tokens=4)
    assert weights.tolist() == [[0, 0.5], [0, 0.5]]
