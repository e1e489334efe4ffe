"""Spread models on one GPU: bytes by hand, and those that one of two real processes holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import ENVIRONMENT, as_rank, together
from tests.plan.spread_bytes import ADAPTERS, FAMILIES, VOCABULARY
from tests.small import small_model
from whet.errors import UserError
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.sizes.weight_counts import adapter_weights, block_weights, embedding_weights, head_weights, layer_names
from whet.recipe import read_recipe
from whet.train.plan.gpus import find_gpu
from whet.train.plan.placement import Placement, all_weights, placement
from whet.train.plan.recipe_plan import Asked, RecipePlan, plan_recipe
from whet.train.plan.spread_placement import PREFETCHED, exchange_seconds
from whet.train.plan.workload import Models, Spread

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300.0
FSDP = Spread(kind="fsdp2", ranks=2)
# Qwen3-8B by its config.json: 36 blocks of 192,937,984 weights in matrices, two matrices of 151,936 × 4,096.
BLOCK, OUTSIDE, MATRICES = 192_937_984, 151_936 * 4096, 36 * 192_937_984 + 2 * 151_936 * 4096
VECTORS = 36 * (2 * 4096 + 2 * 128) + 4096


def planned(*overrides: str, gpu: str = "h100", gpus: int = 8, size: str = "8B") -> RecipePlan:
    words = [f"model=Qwen/Qwen3-{size}", "task=arithmetic", *overrides]
    return plan_recipe(read_recipe("grpo", words), Asked(gpu=find_gpu(gpu), gpus=gpus, prompt=128))


def held(*overrides: str, gpus: int = 8) -> Placement:
    return planned(*overrides, gpus=gpus).plan.peaks.placement


def test_a_rank_holds_a_part_of_what_is_in_matrices_and_all_vectors() -> None:
    """Qwen3-8B on eight GPUs, by hand."""
    found = held("distributed=fsdp2", "algorithm.kl.coefficient=0.1")
    assert found.weights == 4 * MATRICES // 8 + 4 * VECTORS
    assert found.gradients == found.weights == found.reference
    assert found.state == 8 * MATRICES // 8 + 8 * VECTORS
    assert found.sampler == 2 * MATRICES + 4 * VECTORS
    assert found.reading == 2 * (2 * OUTSIDE + 2 * BLOCK) + 2 * BLOCK  # and a joined copy of the block
    assert found.training == found.reading + (2 + 4) * BLOCK
    assert found.arriving == 4 * OUTSIDE
    assert found.host == 0
    assert found.joined == 0


def test_with_offloading_parts_are_in_host_memory() -> None:
    here, away = held("distributed=fsdp2"), held("distributed={sharding: fsdp2, cpu_offload: true}")
    assert away.weights == away.gradients == 4 * VECTORS
    assert away.state == 8 * VECTORS
    assert away.host == (4 + 4 + 8) * MATRICES // 8
    assert (away.sampler, away.training) == (here.sampler, here.training)


def test_replicas_divide_among_fewer() -> None:
    found = held("distributed={sharding: fsdp2, replicas: 2}")
    assert found.weights == 4 * MATRICES // 4 + 4 * VECTORS
    with pytest.raises(UserError, match=r"distributed.replicas is 3, which does not divide 8 GPUs"):
        held("distributed={sharding: fsdp2, replicas: 3}")


def test_zero3_gathers_in_fp32_and_leaves_uneven_rows_whole() -> None:
    found = held("distributed=zero3")
    assert found.reading == 4 * (2 * OUTSIDE + BLOCK + max(BLOCK, PREFETCHED)) + 2 * BLOCK
    assert found.weights == 4 * MATRICES // 8 + 4 * VECTORS  # 8 divides 151,936
    c = replace(small_model(vocab=33)[0].config)
    uneven = placement(Models(policy=c, spread=Spread(kind="zero3", ranks=2)))
    blocks = c.layers * block_weights(c)
    assert uneven.weights == 4 * blocks // 2 + 4 * (all_weights(c) - blocks)


def test_adapters_are_whole_and_frozen_matrices_are_in_bf16() -> None:
    found = held("distributed=fsdp2", "model.lora=16")
    adapters = planned("model.lora=16").plan.models.adapters
    assert found.weights == 2 * MATRICES // 8 + 4 * (VECTORS + adapters)
    assert found.gradients == 4 * adapters
    assert found.state == 8 * adapters
    assert found.training == found.reading  # nothing is learned of a block


def test_a_critic_of_its_own_is_spread_without_a_head_for_words() -> None:
    found, alone = held("distributed=fsdp2", "algorithm=ppo"), held("distributed=fsdp2")
    critic, head = MATRICES - OUTSIDE, 4096 + 1
    assert found.critic == 4 * critic // 8 + 4 * (VECTORS + head)
    assert found.gradients == alone.gradients + found.critic
    assert found.state == alone.state + 8 * critic // 8 + 8 * (VECTORS + head)


def test_one_gpu_has_whole_models() -> None:
    assert held("distributed=fsdp2", gpus=1) == held(gpus=1)


@pytest.mark.parametrize(
    "overrides", [("distributed=fsdp2",), ("distributed=zero3",), ("distributed=fsdp2", "algorithm=ppo")]
)
def test_owners_add_up_and_what_is_on_disk_is_whole(overrides: tuple[str, ...]) -> None:
    one = planned(*overrides)
    for moment, peak in one.plan.peaks.moments.items():
        assert sum(one.owners[moment].values()) == peak
        assert min(one.owners[moment].values()) >= 0
    assert one.owners["update"]["gathered weights"] == one.plan.peaks.placement.training
    assert one.disk == planned(*overrides[1:]).disk
    assert one.host == 0
    assert planned(*overrides, gpus=16).plan.peaks.needed < one.plan.peaks.needed


def test_where_one_gpu_does_not_suffice_spreading_is_proposed_first() -> None:
    one = planned()
    assert not one.plan.fits
    assert [advice.overrides for advice in one.advice[:2]] == [
        ("distributed=fsdp2",),
        ("distributed={sharding: fsdp2, cpu_offload: true}",),
    ]
    assert one.advice[0].effect == "the same result"
    for advice in one.advice:
        assert planned(*advice.overrides).plan.fits
    alone = planned(gpus=1)
    assert not any("distributed" in word for advice in alone.advice for word in advice.overrides)


def test_passes_wait_for_the_links_only_if_these_are_slower() -> None:
    slow = replace(find_gpu("h100"), host_bandwidth=1e8)
    m = planned("distributed=fsdp2").plan.models
    blocks = 36 * BLOCK
    each = exchange_seconds(m, slow, passes=3, learns=True)
    assert each == pytest.approx(3 * (2 * 2 + 4) * blocks * 7 / 8 / 1e8)
    assert exchange_seconds(m, slow, passes=1, learns=False) == pytest.approx(2 * blocks * 7 / 8 / 1e8)


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, int]]:
    """What one of two processes holds."""
    shared = {**os.environ, **ENVIRONMENT, **together(2)}
    command = [sys.executable, "-m", "tests.plan.spread_bytes"]
    ranks = [
        subprocess.Popen(
            command, env=as_rank(shared, rank), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=LIMIT_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(err[-3000:] for _, err in outputs)
    found: dict[str, Any] = json.loads(outputs[0][0])
    return found


def on_cpus(family: str, *, adapters: bool = False) -> tuple[Placement, DecoderConfig]:
    c = small_model(family, vocab=VOCABULARY)[0].config
    layers = [name for name in layer_names(c) if name.rpartition(".")[2] in ADAPTERS.targets]
    count = adapter_weights(c, ADAPTERS.rank, layers) if adapters else 0
    models = Models(
        policy=c, on_gpu=False, is_fused=False, engine_half=4, spread=FSDP, reference="copy", adapters=count
    )
    return placement(replace(models, storage="frozen") if adapters else models), c


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_hold_what_is_planned(family: str, measured: dict[str, dict[str, int]]) -> None:
    """Byte for byte: parts of weights, gradients and moments, a second model, the sampler's copy, a gathered block."""
    plan, c = on_cpus(family)
    found = measured[family]
    for name in ("weights", "gradients", "state", "reference", "sampler"):
        assert found[name] == getattr(plan, name), name
    whole = 4 * (embedding_weights(c) + head_weights(c) + block_weights(c))
    assert found["whole in a block"] == whole
    assert plan.reading == whole + 4 * block_weights(c)  # the next one arrives


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_two_processes_hold_whole_adapters(family: str, measured: dict[str, dict[str, int]]) -> None:
    plan, _ = on_cpus(family, adapters=True)
    found = measured[f"{family}, adapters"]
    for name in ("weights", "gradients", "state", "sampler"):
        assert found[name] == getattr(plan, name), name
