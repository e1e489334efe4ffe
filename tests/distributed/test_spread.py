"""Models spread over real processes: the gradient of one process for every loss, and the bits of whole models.

All losses are computed within one pair of processes: to start one takes seconds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.additive import VARIANTS
from tests.contracts.command import ENVIRONMENT, as_rank, together
from tests.distributed.spread_ranks import FAMILIES
from tests.train import rows_on_disk as on_disk
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.distributed.sharding import Replicated
from whet.distributed.world import World
from whet.errors import UserError
from whet.train.spreading.spread_models import held

ROOT = Path(__file__).resolve().parents[2]
NEAR = 3e-6
LIMIT_SECONDS = 400.0
OFFLINE = (
    *PREFERENCES,
    *REWARDS,
    "sft",
    "dpo, another reference",
    "dpo, adapters",
    "bradley_terry, adapters",
    "lm",
    "denoise",
    "masked_lm",
)
TEXT = "the cat sat on the mat and the rat ran at the cat; " * 20


def place_in(directory: Path) -> Path:
    """Models and rows for every objective."""
    on_disk.saved_model(directory / "start")
    on_disk.saved_model(directory / "other", seed=7)
    on_disk.pairs(directory / "pairs.jsonl")
    on_disk.outcomes(directory / "outcomes.jsonl")
    on_disk.traces(directory / "traces.jsonl")
    (directory / "text.txt").write_text(TEXT)
    return directory


def found_by(
    size: int, directory: Path, *names: str, ranks_of: str = "spread_ranks", **environment: str
) -> dict[str, Any]:
    """What `size` processes found."""
    shared = {**os.environ, **ENVIRONMENT, **together(size), "WHET_HOME": str(directory / "home"), **environment}
    command = [sys.executable, "-m", f"tests.distributed.{ranks_of}", str(place_in(directory)), *names]
    ranks = [
        subprocess.Popen(
            command, env=as_rank(shared, rank), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=LIMIT_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(err[-3000:] for _, err in outputs)
    found: dict[str, Any] = json.loads(outputs[0][0])
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_by(2, tmp_path_factory.mktemp("pair"))


def same_measures(found: Mapping[str, Any]) -> bool:
    return all(also == pytest.approx(value, rel=1e-5, abs=1e-6) for value, also in found.get("measured", {}).values())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gradient_of_a_policy_gradient_is_that_of_one_process(name: str, pair: dict[str, Any]) -> None:
    """And, without clipping, that of whole models in two processes to the last bit."""
    assert pair[name]["apart"] < NEAR
    assert pair[name]["equal"]


@pytest.mark.parametrize("name", OFFLINE)
def test_the_gradient_of_rows_is_that_of_one_process(name: str, pair: dict[str, Any]) -> None:
    """Ranks differ in their number of passes: seven rows of different lengths, some with gradients and some without."""
    assert pair[name]["apart"] < NEAR
    assert same_measures(pair[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_block_can_be_spread(family: str, pair: dict[str, Any]) -> None:
    """Fused and plain blocks, experts that a rank does not use, latents; files have the bytes of a whole model."""
    assert pair[family]["apart"] < NEAR
    assert pair[family]["saved_alike"]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_blocks_that_are_computed_again_are_gathered_again(family: str, pair: dict[str, Any]) -> None:
    assert pair[f"{family}: recomputed"]["apart"] < NEAR


def test_ranks_with_fewer_passes_wait_for_nobody(pair: dict[str, Any]) -> None:
    many = {name: found["apart"] for name, found in pair.items() if name.endswith("many passes")}
    assert len(many) == 6
    assert max(many.values()) < NEAR


@pytest.mark.parametrize("name", ["ppo", "ppo, shared"])
def test_while_only_the_critic_learns(name: str, pair: dict[str, Any]) -> None:
    assert pair[f"{name}: warm-up"]["apart"] < NEAR


@pytest.mark.parametrize("how", ["halved", "halved, offloaded"])
def test_products_in_bf16_leave_weights_and_gradients_in_fp32(how: str, pair: dict[str, Any]) -> None:
    """The gradient is off by the rounding of products, not by that of a sum over ranks and passes in bf16."""
    assert pair[how]["kept in fp32"]
    assert 1e-4 < pair[how]["qwen3"] < 2e-2
    assert 1e-4 < pair[how]["gpt2"] < 2e-2


def test_blocks_that_average_are_caught(pair: dict[str, Any]) -> None:
    """As they do where sums are set on the root alone."""
    assert pair["averaged"] > 0.1


def test_the_norm_that_clips_is_that_of_one_process(pair: dict[str, Any]) -> None:
    """Parts are counted once, and so is what every rank or every group of replicas has."""
    assert pair["clipped"] == [[pytest.approx(1, rel=1e-5), pytest.approx(0, abs=NEAR)]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_four_processes(replicas: int, tmp_path: Path) -> None:
    """More than there are rows of some matrices; with replicas two groups of two hold the model."""
    names = ("grpo", "ppo", "ppo, shared: warm-up", "ppo: many passes", "dpo", "kto", "process", "denoise")
    found = found_by(4, tmp_path, *names, REPLICAS=str(replicas))
    assert {name: found[name]["apart"] < NEAR for name in names} == dict.fromkeys(names, True)
    assert all(same_measures(found[name]) for name in names)
    assert found["averaged"] > 0.1
    assert found["clipped"] == [[pytest.approx(1, rel=1e-5), pytest.approx(0, abs=NEAR)]] * 3


def alone(*words: str) -> dict[str, float]:
    """What a group of one process found."""
    command = [sys.executable, "-m", "tests.distributed.spread_alone", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_the_sampler_reads_the_weights_of_the_last_step() -> None:
    found = alone("cpu")
    assert found["gradient"] < NEAR
    assert max(found["mismatch before"], found["mismatch after"]) < 1e-5
    assert found["stale"] > 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("words", [("cuda",), ("cuda", "offload")])
def test_on_a_gpu(words: tuple[str, ...]) -> None:
    """Products in bf16, with the fused block and CUDA graphs."""
    found = alone(*words)
    assert found["gradient"] < 2e-2
    assert max(found["mismatch before"], found["mismatch after"]) < 0.1 < found["stale"]


def three(**settings: Any) -> World:
    """Three processes that were never started: what they cannot do is refused before they talk."""
    return World(rank=0, size=3, device=torch.device("cpu")).sharded("fsdp2", **settings)


def test_what_processes_cannot_do_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"distributed.replicas is 2 and there are 3 processes, which it does not divide"
    ):
        three(replicas=2)
    with pytest.raises(UserError, match=r"distributed.cpu_offload keeps in host memory .* this is a CPU: leave it out"):
        three(cpu_offload=True)


def test_one_process_has_everything() -> None:
    world = World.alone().sharded("fsdp2", replicas=8, cpu_offload=True)
    assert world == World.alone()
    assert (world.sharding.name, world.sharding.is_sharded) == ("none", False)


def test_models_that_transformers_runs_are_not_spread() -> None:
    class Spreading(Replicated):
        is_sharded = True

    world = replace(World.alone(), spread_by=Spreading(World.alone()))
    with pytest.raises(UserError, match=r"distributed.sharding spreads the families of whet's own decoder"):
        held(torch.nn.Linear(2, 2), world)
