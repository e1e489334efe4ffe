"""Contract 2. The gradient is the same for any split into micro-batches, any padding or packing, any order of rows.

That it is the same for any number of ranks: test_additivity_ranks.py.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.additive import (
    ALONE,
    GROUP,
    PROMPTS,
    VARIANTS,
    Scene,
    arrays,
    distance,
    learner_of,
    take_untrimmed,
    widened,
)
from tests.contracts.command import SUPERVISED
from tests.small import small_model
from whet.algorithms.table import OBJECTIVES
from whet.batching import micro_batches, take_batch
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.models.decoder import decoder as decoder_module
from whet.models.layers import layer_attention
from whet.models.layers.attention import causal_attention
from whet.models.layers.layer_attention import PackedAttention
from whet.records import Batch, Row
from whet.train.online import update as update_module
from whet.train.online.learner import Learner
from whet.train.online.update import TokenSums
from whet.train.rows.sft import fit

NEAR = 3e-6


@pytest.mark.parametrize("name", VARIANTS)
def test_no_split_with_packing_or_padding_changes_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss of the table: in another order, with columns of padding, several rows at a time, packed and padded."""
    scene = Scene(name)
    batch = scene.batch()
    whole = scene.gradient(batch)
    assert min(float(piece.norm()) for piece in whole) > 1e-3
    order = torch.randperm(len(batch.prompts), generator=torch.Generator().manual_seed(3))
    shuffled = widened(take_batch(batch, order), 6)
    assert distance(whole, scene.gradient(shuffled, micro_batch_tokens=40, padding_free=True)) < NEAR
    monkeypatch.setattr(update_module, "take_batch", take_untrimmed)
    assert distance(whole, scene.gradient(shuffled, micro_batch_tokens=30)) < NEAR


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "ppo", "ppo, shared", "online_dpo"])
def test_no_split_padding_packing_or_order_changes_the_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change by itself, for losses that differ in how they are normalised and in what they read."""
    scene = Scene(name)
    batch = scene.batch()
    whole = scene.gradient(batch)
    longest = int(batch.sequences.lengths.max())
    for micro_batch_tokens in (1, 3 * longest):  # one row at a time; three
        assert distance(whole, scene.gradient(batch, micro_batch_tokens=micro_batch_tokens)) < NEAR, micro_batch_tokens
    for micro_batch_tokens in (1, 40, 10**6):
        assert (
            distance(whole, scene.gradient(batch, micro_batch_tokens=micro_batch_tokens, padding_free=True)) < NEAR
        ), micro_batch_tokens
    order = torch.randperm(len(batch.prompts), generator=torch.Generator().manual_seed(3))
    assert distance(whole, scene.gradient(take_batch(batch, order), micro_batch_tokens=30)) < NEAR
    assert distance(whole, scene.gradient(widened(batch, 6), micro_batch_tokens=30, padding_free=True)) < NEAR
    monkeypatch.setattr(update_module, "take_batch", take_untrimmed)
    assert distance(whole, scene.gradient(widened(batch, 6), micro_batch_tokens=30)) < NEAR


@pytest.mark.parametrize("name", ["ppo", "ppo, shared", "ppo, kl in the reward", "grpo, token_truncate", "gspo"])
def test_no_split_or_packing_changes_the_batch(name: str) -> None:
    """What is read before the first update: log-probs, values, corrections, advantages."""
    scene = Scene(name)
    whole = arrays(scene.batch())
    for settings in (
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 30},
        {"micro_batch_tokens": 40, "padding_free": True},
    ):
        again = arrays(scene.batch(**settings))
        assert again.keys() == whole.keys()
        assert all(torch.allclose(again[key], whole[key], atol=2e-5) for key in whole), settings


def test_rows_that_see_each_other_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed without knowing where a sequence begins, each reads its neighbours."""

    class Blind(PackedAttention):
        def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return causal_attention(queries, keys, values)

    scene = Scene("grpo")
    batch = scene.batch()
    whole = scene.gradient(batch)
    monkeypatch.setattr(decoder_module, "fits_fused", lambda trunk: False)
    monkeypatch.setattr(layer_attention, "PackedAttention", Blind)
    assert (
        distance(whole, scene.gradient(batch, micro_batch_tokens=1, padding_free=True)) < NEAR
    )  # alone, a row has no neighbour
    assert distance(whole, scene.gradient(batch, micro_batch_tokens=40, padding_free=True)) > 1e-2


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "token mean", "reinforce", "ppo", "ppo, shared"])
def test_weights_of_each_micro_batch_alone_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of many trainers: each micro-batch is averaged over itself, and then over the micro-batches."""
    scene = Scene(name)
    batch = scene.batch()
    whole = scene.gradient(batch)
    original = update_module._losses

    def local(learner: Learner, batch: Batch, tally: TokenSums, step: int) -> Iterator[Tensor]:
        pieces = list(micro_batches(batch.sequences.lengths, learner.config.update.micro_batch_tokens))
        for rows in pieces:
            for loss in original(learner, take_batch(batch, rows), tally, step):
                yield loss / len(pieces)

    monkeypatch.setattr(update_module, "_losses", local)
    assert distance(whole, scene.gradient(batch)) < NEAR  # one micro-batch: no difference
    assert distance(whole, scene.gradient(batch, micro_batch_tokens=60)) > 1e-2


@pytest.mark.parametrize("first", [4, 7])
def test_token_weights_are_counted_over_all_ranks(first: int) -> None:
    """Two shares of a batch, each with the world's count, add up to the whole; each with its own count, they do not."""
    scene = Scene("grpo")
    batch = scene.batch()
    whole = scene.gradient(batch)
    shares = [torch.arange(0, first), torch.arange(first, PROMPTS * GROUP)]

    class Counted(World):
        """A rank that is told the count of the whole world."""

        def sum(self, tensor: Tensor) -> Tensor:
            return torch.tensor(float(PROMPTS * GROUP), dtype=torch.float64) if tensor.dim() == 0 else tensor

    def added(world: World) -> list[Tensor]:
        learner = learner_of(scene.moved, "grpo", world)
        scene.moved.zero_grad()
        for share in shares:
            for loss in update_module._losses(learner, take_batch(batch, share), TokenSums(world.device), 1):
                loss.backward()
        return [torch.cat([parameter.grad.reshape(-1) for parameter in scene.moved.parameters()])]

    assert distance(whole, added(Counted(rank=0, size=1, device=torch.device("cpu")))) < NEAR
    assert distance(whole, added(ALONE)) > 1e-2


def apart(one: Tensor, two: Tensor) -> float:
    return distance([one], [two])


def supervised_gradient(policy: Any, rows: list[Row], micro_batch_tokens: int) -> Tensor:
    written = {**SUPERVISED, "update": {"micro_batch_tokens": micro_batch_tokens, "max_grad_norm": 1e9}}
    config = OfflineConfig.model_validate(written)
    fit(policy, torch.optim.SGD(policy.parameters(), lr=0.0), rows, OBJECTIVES["sft"], config, ALONE)
    return torch.cat([parameter.grad.reshape(-1).clone() for parameter in policy.parameters()])


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
    for micro_batch_tokens in (1, 12, 24):
        assert apart(whole, supervised_gradient(policy, rows, micro_batch_tokens)) < 2e-6
    assert apart(whole, supervised_gradient(policy, rows[::-1], 24)) < 2e-6
    # Each row averaged over itself is another gradient: token means weigh long answers more.
    alone = sum(supervised_gradient(policy, [row], 10**6) for row in rows) / len(rows)
    assert isinstance(alone, Tensor)
    assert apart(whole, alone) > 1e-2
