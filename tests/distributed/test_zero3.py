"""Models that DeepSpeed's ZeRO-3 spreads: the gradient of one process, and the bits of whole models.

Skipped where DeepSpeed is not installed. All losses are computed within one pair of processes.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.distributed.test_spread import NEAR, found_by, same_measures
from whet.distributed.fsdp2 import Known
from whet.distributed.world import World
from whet.distributed.zero3 import require_even_rows
from whet.errors import UserError

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install 'whet[deepspeed]'"
)
ONE_PASS = ("grpo", "ppo", "ppo, shared", "ppo: warm-up", "ppo, shared: warm-up", "reinforce_pp", "gspo")
PASSES = ("ppo: many passes", "dapo: many passes", "llama: recomputed", "gpt2: recomputed")
ROWS = ("dpo", "dpo, another reference", "kto", "bradley_terry", "sft", "lm", "denoise", "dpo, adapters")
FAMILIES = ("llama", "gpt2", "olmoe", "deepseek_v2")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names = (*ONE_PASS, *PASSES, *ROWS, *FAMILIES)
    return found_by(2, tmp_path_factory.mktemp("zero3"), *names, ranks_of="zero3_ranks")


@needs_deepspeed
def test_gradients_are_those_of_one_process(pair: dict[str, Any]) -> None:
    """And of a single pass a rank those of whole models in two processes to the last bit."""
    names = (*ONE_PASS, *PASSES, *ROWS, *FAMILIES)
    assert {name: pair[name]["apart"] for name in names if not pair[name]["apart"] < NEAR} == {}
    assert {name: pair[name]["equal"] for name in ONE_PASS} == dict.fromkeys(ONE_PASS, True)
    assert [name for name in ROWS if not same_measures(pair[name])] == []
    assert [name for name in FAMILIES if not pair[name]["saved_alike"]] == []


@needs_deepspeed
def test_gradients_that_are_averaged_are_caught(pair: dict[str, Any]) -> None:
    """As DeepSpeed's engine averages them."""
    assert pair["averaged"] > 0.1


@needs_deepspeed
@pytest.mark.parametrize("name", ["steps", "steps, recomputed"])
def test_what_was_gathered_is_not_read_after_the_next_step(name: str, pair: dict[str, Any]) -> None:
    """Weights after three clipped steps, with other passes between them, which prefetching did not expect."""
    assert pair[name] < NEAR


@needs_deepspeed
def test_a_rank_keeps_its_parts_alone(pair: dict[str, Any]) -> None:
    """Half of every matrix, and nothing that was gathered, before and after passes."""
    assert pair["kept"]["matrices"] > 10
    assert pair["kept"]["own"] == 0.5
    assert pair["kept"]["whole bytes"] == [0, 0, 0, 0]


@needs_deepspeed
@pytest.mark.slow
def test_four_processes(tmp_path: Path) -> None:
    """Some have no rows, and they do not divide every vocabulary."""
    names = ("grpo", "dpo", "sft", "lm", "ppo: many passes")
    found = found_by(4, tmp_path, *names, ranks_of="zero3_ranks")
    assert max(found[name]["apart"] for name in names) < NEAR
    assert max(found["steps"], found["steps, recomputed"]) < NEAR
    assert found["kept"]["own"] == 0.25


def test_rows_that_the_processes_do_not_divide_are_refused() -> None:
    """Of blocks; those of the embedding stay whole."""
    model = torch.nn.ModuleList([torch.nn.Embedding(7, 8), torch.nn.Linear(8, 12), torch.nn.Linear(8, 18)])
    known = Known(blueprint=model, blocks=[2, 3], kept=frozenset())
    for size in (1, 2, 3, 6):
        require_even_rows(model, known, size)
    with pytest.raises(UserError, match=r"2.weight has 18 rows, and there are 4 processes.*: use a divisor of 6, or"):
        require_even_rows(model, known, 4)
    require_even_rows(model, Known(blueprint=model, blocks=[2, 3], kept=frozenset({"2.weight"})), 4)


def test_without_the_package_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    world = World(rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"distributed.sharding zero3 needs the package deepspeed.*whet\[deepspeed\]"):
        world.sharded("zero3")


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("deepspeed")
    other.__version__ = "0.20.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", other)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    world = World(rank=0, size=2, device=torch.device("cpu"))
    with pytest.raises(UserError, match=r"is made for DeepSpeed 0.19, and 0.20.1 is installed: pip install"):
        world.sharded("zero3")


def test_one_process_has_everything() -> None:
    assert World.alone().sharded("zero3") == World.alone()
