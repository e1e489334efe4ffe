"""Contract 2. The gradient is the same for any split into micro-batches or ranks, any padding, any order of rows."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.contracts.command import ENVIRONMENT, SUPERVISED, Zygote, online, only_run, write_recipe
from tests.small import small_model
from whet.algorithms.table import ALGORITHMS, OBJECTIVES
from whet.batching import micro_batches, take_batch
from whet.config import OfflineConfig, OnlineConfig
from whet.distributed.world import World
from whet.engines.native import NativeEngine
from whet.records import Batch, Example, Row, Score, Sequences
from whet.rollout import Group, judge, pose, sample
from whet.runs import Run
from whet.train import update as update_module
from whet.train.parts import build_algorithm, build_reference
from whet.train.supervised import fit
from whet.train.update import annotate, update

ALONE = World.alone()
PROMPTS, GROUP = 5, 3
ALGORITHM_ROWS: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in ALGORITHMS},
    "grpo, kl in the loss": {"preset": "grpo", "kl": {"coefficient": 0.3, "estimator": "k3"}},
    "rloo, kl in the reward": {"preset": "rloo", "kl": {"coefficient": 0.3, "estimator": "k1", "place": "reward"}},
    "token mean": {"preset": "grpo", "weighting": "token_mean"},
}


def config_of(algorithm: dict[str, Any], micro_tokens: int = 10**6) -> OnlineConfig:
    written = online("unused", algorithm=algorithm)
    written["rollout"] |= {"prompts": PROMPTS, "group": GROUP, "max_tokens": 9}
    written["eval"] |= {"max_tokens": 9}
    written["update"] = {"micro_tokens": micro_tokens, "clip_norm": 1e9}
    return OnlineConfig.model_validate(written)


class Marks:
    """Rewards that differ between the rollouts of a group."""

    def grade(self, examples: list[Example], texts: list[str]) -> list[Score]:
        return [Score(reward=(7 * i % 11) / 10, parts={}) for i in range(len(texts))]

    def close(self) -> None:
        """Owns nothing."""


def rollouts(policy: Any, tokenizer: Any, config: OnlineConfig) -> list[Group]:
    words = ["ab>", "cde>", "f>", "12+34=", "gh>"]
    examples = [Example(id=word, prompt=word, answer="") for word in words]
    prompts = pose(examples, tokenizer, stream=(1,))
    samples = sample(NativeEngine(policy, tokenizer), prompts, config.rollout.sampling, group=GROUP)
    groups = judge(Marks(), examples, samples, version=0)
    lengths = {sum(rollout.mask) for group in groups for rollout in group}
    assert len(lengths) >= 3  # equal lengths would hide a wrong weight
    return groups


def scene(algorithm: dict[str, Any]) -> tuple[Any, Batch]:
    """A batch, and a policy that has moved away from the one that sampled it, so that ratios differ from 1."""
    policy, tokenizer = small_model(sharp=6.0)
    config = config_of(algorithm)
    row = build_algorithm(config.algorithm)
    reference = build_reference(small_model(seed=1, sharp=6.0)[0], row)
    batch, _ = annotate(rollouts(policy, tokenizer, config), policy, reference, row, config, ALONE)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return policy, batch


def gradient(policy: Any, batch: Batch, config: OnlineConfig) -> Tensor:
    """What one update would follow: the gradient of the real `update`, with a learning rate of 0."""
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    update(policy, optimizer, batch, build_algorithm(config.algorithm), config, ALONE, step=1)
    return flat(policy)


def flat(policy: Any) -> Tensor:
    return torch.cat([parameter.grad.reshape(-1).clone() for parameter in policy.parameters()])


def distance(one: Tensor, two: Tensor) -> float:
    """How far apart, relative to the length of the first."""
    return float((one - two).norm() / one.norm())


def widened(batch: Batch, columns: int) -> Batch:
    """The same batch with more padding, and junk in it."""

    def more(tensor: Tensor, junk: float) -> Tensor:
        return torch.cat([tensor, torch.full((len(tensor), columns), junk).to(tensor.dtype)], dim=1)

    s = batch.sequences
    return Batch(
        sequences=Sequences(tokens=more(s.tokens, 7), mask=more(s.mask, 0), lengths=s.lengths),
        logprobs_old=more(batch.logprobs_old, 0),
        logprobs_ref=None if batch.logprobs_ref is None else more(batch.logprobs_ref, 0),
        advantages=more(batch.advantages, 0),
    )


def take_untrimmed(batch: Batch, rows: Tensor) -> Batch:
    """A `take_batch` that keeps the padding that no row needs."""
    s = batch.sequences
    return Batch(
        sequences=Sequences(tokens=s.tokens[rows], mask=s.mask[rows], lengths=s.lengths[rows]),
        logprobs_old=batch.logprobs_old[rows],
        logprobs_ref=None if batch.logprobs_ref is None else batch.logprobs_ref[rows],
        advantages=batch.advantages[rows],
    )


@pytest.mark.parametrize("name", ALGORITHM_ROWS)
def test_no_split_padding_or_order_changes_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = ALGORITHM_ROWS[name]
    policy, batch = scene(algorithm)
    whole = gradient(policy, batch, config_of(algorithm))
    assert float(whole.norm()) > 1e-3
    for micro_tokens in (1, 30, 60):
        assert distance(whole, gradient(policy, batch, config_of(algorithm, micro_tokens))) < 2e-6, micro_tokens
    order = torch.randperm(PROMPTS * GROUP, generator=torch.Generator().manual_seed(3))
    assert distance(whole, gradient(policy, take_batch(batch, order), config_of(algorithm, 30))) < 2e-6
    monkeypatch.setattr(update_module, "take_batch", take_untrimmed)
    assert distance(whole, gradient(policy, widened(batch, 6), config_of(algorithm, 30))) < 2e-6


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "token mean", "reinforce"])
def test_weights_of_each_micro_batch_alone_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of many trainers: each micro-batch is averaged over itself, and then over the micro-batches."""
    algorithm = ALGORITHM_ROWS[name]
    policy, batch = scene(algorithm)
    whole = gradient(policy, batch, config_of(algorithm))
    original = update_module._losses

    def local(
        policy: Any, batch: Batch, algorithm: Any, config: OnlineConfig, world: World, sums: Any
    ) -> Iterator[Tensor]:
        pieces = list(micro_batches(batch.sequences.lengths, config.update.micro_tokens))
        for rows in pieces:
            for loss in original(policy, take_batch(batch, rows), algorithm, config, world, sums):
                yield loss / len(pieces)

    monkeypatch.setattr(update_module, "_losses", local)
    assert distance(whole, gradient(policy, batch, config_of(algorithm))) < 2e-6  # one micro-batch: no difference
    assert distance(whole, gradient(policy, batch, config_of(algorithm, 60))) > 1e-2


def supervised_gradient(policy: Any, rows: list[Row], micro_tokens: int) -> Tensor:
    written = {**SUPERVISED, "update": {"micro_tokens": micro_tokens, "clip_norm": 1e9}}
    config = OfflineConfig.model_validate(written)
    fit(policy, torch.optim.SGD(policy.parameters(), lr=0.0), rows, OBJECTIVES["sft"], config, ALONE)
    return flat(policy)


def supervised_rows() -> list[Row]:
    generator = torch.Generator().manual_seed(2)
    lengths = [(2, 9), (3, 4), (1, 12), (5, 6), (2, 3)]  # prompt, all
    return [
        Row(
            tokens=tuple(torch.randint(0, 20, (length,), generator=generator).tolist()),
            mask=(False,) * prompt + (True,) * (length - prompt),
        )
        for prompt, length in lengths
    ]


def test_supervised_rows_add_up_too() -> None:
    policy, _ = small_model(sharp=6.0)
    rows = supervised_rows()
    whole = supervised_gradient(policy, rows, 10**6)
    for micro_tokens in (1, 12, 24):
        assert distance(whole, supervised_gradient(policy, rows, micro_tokens)) < 2e-6
    assert distance(whole, supervised_gradient(policy, rows[::-1], 24)) < 2e-6
    # Each row averaged over itself is another gradient: token means weigh long answers more.
    alone = sum(supervised_gradient(policy, [row], 10**6) for row in rows) / len(rows)
    assert isinstance(alone, Tensor)
    assert distance(whole, alone) > 1e-2


@pytest.mark.parametrize("first", [4, 7])
def test_token_weights_are_counted_over_all_ranks(first: int) -> None:
    """Two shares of a batch, each with the world's count, add up to the whole; each with its own count, they do not."""
    policy, batch = scene({"preset": "grpo"})
    config = config_of({"preset": "grpo"})
    whole = gradient(policy, batch, config)
    shares = [torch.arange(0, first), torch.arange(first, PROMPTS * GROUP)]

    class Counted(World):
        """A rank that is told the count of the whole world."""

        def sum(self, tensor: Tensor) -> Tensor:
            return torch.tensor(float(PROMPTS * GROUP), dtype=torch.float64) if tensor.dim() == 0 else tensor

    def added(world: World) -> Tensor:
        algorithm = build_algorithm(config.algorithm)
        policy.zero_grad()
        for share in shares:
            for loss in update_module._losses(policy, take_batch(batch, share), algorithm, config, world, Sums()):
                loss.backward()
        return flat(policy)

    assert distance(whole, added(Counted(rank=0, size=1, device=torch.device("cpu")))) < 2e-6
    assert distance(whole, added(ALONE)) > 1e-2


class Sums(dict[str, float]):
    """Statistics that nobody reads."""

    def __missing__(self, key: str) -> float:
        return 0.0


# --- processes ---------------------------------------------------------------------------------------------------


def offline_recipe(_: Path) -> dict[str, Any]:
    optimizer = {"lr": 1e-2, "epsilon": 1e-4}  # with a tiny ε Adam turns rounding of a zero gradient into full steps
    return {**SUPERVISED, "steps": 3, "rows": 7, "optimizer": optimizer, "eval": {"examples": 5, "max_tokens": 6}}


def online_recipe(model: Path) -> dict[str, Any]:
    recipe = online(model, steps=3, optimizer={"lr": 1e-3, "epsilon": 1e-4})
    assert recipe["rollout"]["prompts"] == 5  # odd: one rank has more
    assert recipe["update"]["epochs"] == recipe["update"]["minibatches"] == 2
    return recipe


def alike(one: Path, two: Path) -> list[str]:
    """What differs between two finished runs, beyond rounding."""
    wrong = []
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, two)]
    for first, second in zip(*lines, strict=True):
        assert first.keys() == second.keys()
        wrong += [
            f"{name} of step {first['step']}: {first[name]} and {second[name]}"
            for name in first
            if first[name] != pytest.approx(second[name], rel=1e-4, abs=1e-5)
        ]
    for name in ("model/model.safetensors", "optimizer.safetensors"):
        tensors = [load_file(run / "checkpoints" / "step-000003" / name) for run in (one, two)]
        assert tensors[0].keys() == tensors[1].keys()
        wrong += [
            f"{name}: {key}" for key in tensors[0] if not torch.allclose(tensors[0][key], tensors[1][key], atol=1e-5)
        ]
    return wrong


@pytest.mark.parametrize("make", [online_recipe, offline_recipe])
def test_two_ranks_equal_one(
    make: Callable[[Path], dict[str, Any]], zygote: Zygote, beginner: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", make(beginner))
    zygote.run("train", recipe, "--runs", tmp_path / "one")
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "two")
    one, two = only_run(tmp_path / "one"), only_run(tmp_path / "two")
    assert json.loads((two / "final_results.json").read_text())["machine"]["processes"] == 2
    assert alike(one, two) == []
    if make is online_recipe:
        assert ids(one) == ids(two)  # the rollouts stand in the order of one process
    zygote.run_ranks(2, "train", recipe, "--runs", tmp_path / "averaged", hooks={"average_over_ranks": ""})
    caught = alike(one, only_run(tmp_path / "averaged"))
    assert any("grad_norm of step 1" in line for line in caught), caught
    assert any("model.safetensors" in line for line in caught), caught


def ids(run: Path) -> list[str]:
    return [row["id"] + row["text"] for row in Run.open(run, is_writer=False).rollouts(2)]


def test_torchrun_starts_two_ranks(zygote: Zygote, beginner: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", online_recipe(beginner))
    zygote.run("train", recipe, "--runs", tmp_path / "one")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "whet"]
    command = [*torchrun, "train", str(recipe), "--runs", str(tmp_path / "two")]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert alike(only_run(tmp_path / "one"), only_run(tmp_path / "two")) == []
