"""A LoRA policy and a reward model of adapters on the same base: one copy of the weights, equal scores."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.cli.tiny import Whet
from tests.train.test_lora_runs import ONLINE, assert_goes_on_bit_for_bit, small_base, steps, train
from whet.config import RewardConfig, RolloutConfig, TaskConfig
from whet.models.adapters.lora import LoRAShape, adapters, attach
from whet.models.adapters.peft_files import write_adapter
from whet.models.decoder.decoder import Decoder
from whet.models.load import load_model
from whet.models.reward.reward_model import load_reward_model, new_reward_model
from whet.models.reward.settings import RewardSettings, write_settings
from whet.models.reward.shared_base import reward_model_on, shares_memory
from whet.models.text.tokenizers import load_tokenizer, with_padding
from whet.recipe import validate
from whet.tasks.loading import guarded_task
from whet.tasks.procedural import Sorting
from whet.train.explain.memory import find_model
from whet.train.plan.placement import placement
from whet.train.plan.recipe_facts import models_of
from whet.train.plan.run_shapes import run_shapes
from whet.train.setup.reward_grader import ModelGrader, build_grader

CPU = torch.device("cpu")
TASK = TaskConfig.model_validate({"name": "sorting", "level": 1})
EXAMPLES = Sorting(level=1).draw(4, seed=(0, 1))
TEXTS = [EXAMPLES[0].answer, "12", EXAMPLES[2].answer[::-1], "999"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_base(tmp_path_factory.mktemp("shared") / "base")


@pytest.fixture(scope="module")
def judge(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of adapters on `base`, far from it."""
    directory: Path = tmp_path_factory.mktemp("shared") / "judge"
    tokenizer, pad = with_padding(load_tokenizer(base))
    settings = RewardSettings(kind="preference")
    model = new_reward_model(load_model(base), settings, seed=1, pad=pad)
    shape = LoRAShape(rank=3, alpha=6.0)
    names = attach(model.trunk, shape, seed=4)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, layer in adapters(model):
            layer.lora_B.normal_(0, 0.3, generator=generator)
        model.head.weight.mul_(20)
    own = {name.removeprefix("trunk."): p for name, p in model.named_parameters() if "lora_" in name}
    write_adapter(directory, own | {"score.weight": model.head.weight}, shape, base=base, layers=names, task="SEQ_CLS")
    write_settings(directory, settings)
    tokenizer.save(directory)
    return directory


def adapted_policy(base: Path) -> Decoder:
    policy = load_model(base)
    assert isinstance(policy, Decoder)
    attach(policy, LoRAShape(rank=2, alpha=4.0), seed=0)
    with torch.no_grad():
        for _, layer in adapters(policy):
            layer.lora_B.normal_(0, 0.5, generator=torch.Generator().manual_seed(9))
    return policy


def grader(judge: Path, frozen_base: Any) -> ModelGrader:
    reward = RewardConfig.model_validate({"model": str(judge)})
    config = SimpleNamespace(task=TASK, reward=reward, rollout=RolloutConfig())
    task = guarded_task(TASK.name, TASK.options)
    made = build_grader(config, CPU, task, load_tokenizer(judge), None, frozen_base)
    assert isinstance(made, ModelGrader)
    return made


def test_scores_are_those_of_the_merged_model_whatever_the_policys_adapters_are(base: Path, judge: Path) -> None:
    policy = adapted_policy(base)
    with closing(grader(judge, None)) as merged, closing(grader(judge, (base, policy))) as shared:
        wanted = [score.reward for score in merged.grade(EXAMPLES, TEXTS)]
        assert len({round(reward, 2) for reward in wanted}) == 4
        assert [score.reward for score in shared.grade(EXAMPLES, TEXTS)] == pytest.approx(wanted, abs=1e-4)
        with torch.no_grad():
            for _, layer in adapters(policy):
                layer.lora_B.mul_(-3)  # the policy is trained, the reward model is not
        assert [score.reward for score in shared.grade(EXAMPLES, TEXTS)] == pytest.approx(wanted, abs=1e-4)
        assert not shares_memory(merged.model, policy)


def test_every_matrix_of_the_base_is_there_once(base: Path, judge: Path) -> None:
    policy = adapted_policy(base)
    model = reward_model_on(policy, judge)
    mine = {name: p for name, p in model.trunk.named_parameters() if "lora_" not in name}
    own = {name for name, p in mine.items() if p.data_ptr() != policy.get_parameter(name).data_ptr()}
    assert own == {"model.embed_tokens.weight"}  # this tokeniser needs one more id, for padding
    assert shares_memory(model, policy)
    assert not any(p.requires_grad for p in model.parameters())
    assert {name for name, _ in adapters(model.trunk)} == {name for name, _ in adapters(policy)}
    assert all(len(layer.lora_A) == 3 for _, layer in adapters(model.trunk))


def test_the_copy_of_one_block_is_kept_at_a_time(base: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a folded copy of all blocks would take what sharing saves."""
    model = reward_model_on(adapted_policy(base), judge)

    def none(*_: object) -> None:
        raise AssertionError("copies of all blocks")

    monkeypatch.setattr(type(model.trunk.model.joined), "refreshed", none)
    assert len(model.trunk.model.joined.by_block(list(model.trunk.model.layers), torch.float32)) == 2
    with closing(grader(judge, None)) as merged:
        scorer = merged._scorer
        scorer.model = model
        assert len(scorer.score([EXAMPLES[0].prompt], [TEXTS[0]])) == 1


def test_another_base_is_not_shared(base: Path, judge: Path, tmp_path: Path) -> None:
    policy = adapted_policy(base)
    with closing(grader(judge, (tmp_path, policy))) as one:
        assert not shares_memory(one.model, policy)


def test_a_run_with_both_goes_on_bit_for_bit(base: Path, judge: Path, tmp_path: Path, whet: Whet) -> None:
    assert_goes_on_bit_for_bit(tmp_path, base, whet, {"reward": {"model": str(judge)}})


def test_a_run_is_rewarded_as_with_the_merged_model(base: Path, judge: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    load_reward_model(judge).save(plain)
    load_tokenizer(judge).save(plain)
    rewards = [
        [row["reward/mean"] for row in steps(train(tmp_path / name, base, reward={"model": str(path)}, steps=2))]
        for name, path in (("adapters", judge), ("merged", plain))
    ]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-3)


def test_the_plan_counts_adapters_and_one_block(base: Path, judge: Path) -> None:
    recipe = {**ONLINE, "model": {"path": str(base), "lora": {"rank": 2}}, "reward": {"model": str(judge)}}
    config: Any = validate(recipe, where="test")
    shapes = run_shapes(config, guarded_task(TASK.name, TASK.options))
    m = models_of(config, shapes.policy, reward=shapes.reward, reward_adapter=shapes.reward_adapter)
    m = replace(m, is_fused=True)  # as a larger model of this family is
    size = (judge / "adapter_model.safetensors").stat().st_size
    block = (4 + 2 + 2 + 4) * 8 * 32 + 3 * 32 * shapes.policy.mlp_width
    assert placement(m).reward == size + 2 * block
    whole = placement(replace(m, reward_adapter=0)).reward
    assert whole >= (4 + 2) * 2 * block  # in fp32, and a joined copy in bf16
    told, _, _ = find_model(config, guarded_task(TASK.name, TASK.options), None)
    assert told is not None
    plain = models_of(config, shapes.policy, reward=shapes.reward, reward_adapter=shapes.reward_adapter, on_gpu=False)
    assert told.reward == placement(plain).reward == size + 4 * block  # what `whet explain` says, of a CPU
    full: Any = validate({**recipe, "model": {"path": str(base)}}, where="test")
    assert run_shapes(full, guarded_task(TASK.name, TASK.options)).reward_adapter == 0
