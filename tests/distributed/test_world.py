"""Processes that work together: three real ones over gloo, and the world of one."""

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.config import OnlineConfig
from whet.distributed.sharding import Replicated
from whet.distributed.world import TIMEOUT, World, timeout_seconds
from whet.errors import UserError
from whet.train.session.provenance import processes_line

SIZE = 3
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What each of three processes saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.ranks"],
            env={**shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert all(out for out, _ in outputs), [err for _, err in outputs]
    return [json.loads(out) for out, _ in outputs]


def test_sums_and_maxima_reach_every_rank(seen: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(seen):
        assert one["sum"] == [4.5, 3.0]
        assert one["untouched"] == [1.5, float(rank)]
        assert one["max"] == 0.0


def test_values_of_different_length_are_gathered_in_order(seen: list[dict[str, Any]]) -> None:
    expected = [{"rank": rank, "text": "é" * (10 * rank)} for rank in range(SIZE)]
    assert [one["gather"] for one in seen] == [expected] * SIZE


def test_interleaving_undoes_sharding(seen: list[dict[str, Any]]) -> None:
    assert [one["interleave"] for one in seen] == [[list(range(n)) for n in range(8)]] * SIZE


def test_rows_stand_one_behind_the_other_and_are_padded_to_the_widest(seen: list[dict[str, Any]]) -> None:
    numbers = [number for rank in range(SIZE) for number in (10 * rank, 2**60 + rank)]
    table = [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    assert [one["concat"] for one in seen] == [[numbers, table, [[0, 0], [2, 2]], []]] * SIZE


def test_gradients_are_summed_bucket_by_bucket(seen: list[dict[str, Any]]) -> None:
    """Σ over ranks of (position + 100·index + 1000·rank) = 3·(position + 100·index) + 3000."""
    expected = [[3.0 * (i + 100 * index) + 3000 for i in range(n)] for index, n in enumerate((6, 1, 20, 2))]
    assert [one["gradients"] for one in seen] == [expected] * SIZE


def test_one_process_writes(seen: list[dict[str, Any]]) -> None:
    assert [one["writer"] for one in seen] == [True, False, False]


def test_a_rank_that_is_gone_is_noticed(seen: list[dict[str, Any]]) -> None:
    for one in seen[:-1]:
        assert one["lost"].startswith("another process of the run has ended")
        assert "\n" not in one["lost"]


def test_a_world_of_one_is_no_special_case() -> None:
    world = World.alone()
    value = torch.tensor([1.0, 2.0])
    assert world.sum(value) is value
    assert world.max(-2.5) == -2.5
    assert world.gather({"a": 1}) == [{"a": 1}]
    assert world.shard([3, 1, 2]) == world.interleave([3, 1, 2]) == [3, 1, 2]
    assert world.concat(value) is value
    assert world.is_writer
    world.barrier()
    world.close()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_item_has_one_owner(size: int) -> None:
    worlds = [World(rank=rank, size=size, device=torch.device("cpu")) for rank in range(size)]
    items = list(range(11))
    shares = [world.shard(items) for world in worlds]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="torch finds no CUDA device: use device=cpu"):
        World.init("cuda")


MET = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2: ranks count from 0"),
        ({"WORLD_SIZE": "1"}, "RANK is 1 and WORLD_SIZE is 1"),  # nobody would write
        ({"RANK": "one"}, "RANK is 'one' in the environment, must be a whole number"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2' in the environment"),
        ({"MASTER_ADDR": ""}, "WORLD_SIZE is 2 and MASTER_ADDR is not set: start with torchrun"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT is 99999 in the environment, must be below 65536"),
        ({TIMEOUT: "soon"}, f"{TIMEOUT} is 'soon' in the environment, must be a number of seconds above 0"),
        ({TIMEOUT: "0"}, f"{TIMEOUT} is '0' in the environment"),
    ],
)
def test_an_environment_that_makes_no_sense_is_the_users_mistake(
    changed: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**MET, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=re.escape(sentence)):
        World.init("cpu")


def test_how_long_others_are_waited_for_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TIMEOUT, raising=False)
    assert timeout_seconds() == 900
    monkeypatch.setenv(TIMEOUT, "2.5")
    assert timeout_seconds() == 2.5


def test_ranks_that_differ_all_hear_of_it() -> None:
    class Told(World):
        def gather(self, value: Any) -> list[Any]:
            return [{"weights": "a", "step": 4}, {"weights": "a", "step": 2}]

    for rank in range(2):
        told = Told(rank=rank, size=2, device=torch.device("cpu"))
        with pytest.raises(UserError, match="rank 1 and rank 0 differ in step: read the same files"):
            told.require_same({"weights": "a", "step": 4 - 2 * rank}, "read the same files")
        told.require_same({"weights": "a"}, "")
    World.alone().require_same({"weights": "a"}, "")


@pytest.mark.parametrize(
    ("size", "how", "said"),
    [
        (1, {}, []),
        (
            1,
            {"sharding": "fsdp2"},
            ["processes: 1, which holds whole models; distributed.sharding=fsdp2 takes several (torchrun)"],
        ),
        (4, {}, ["processes: 4, each with whole models and its share of every step"]),
        (4, {"sharding": "fsdp2"}, ["processes: 4, models spread over them by fsdp2"]),
        (
            4,
            {"sharding": "fsdp2", "replicas": 2, "cpu_offload": True},
            [
                "processes: 4, models spread over them by fsdp2, in 2 groups with whole models each, weights and "
                "moments in host memory"
            ],
        ),
    ],
)
def test_a_run_says_how_its_processes_hold_the_models(size: int, how: dict[str, Any], said: list[str]) -> None:
    class Spread(Replicated):
        is_sharded = how.get("sharding", "none") != "none" and size > 1

    world = World(rank=0, size=size, device=torch.device("cpu"))
    settings = {"steps": 1, "model": {"new": {}}, "task": "sorting", "algorithm": "grpo", "distributed": how}
    config = OnlineConfig.model_validate(settings)
    assert processes_line(config, replace(world, spread_by=Spread(world))) == said
