"""The hand-off of weights: exact, atomic, and proved; each way to be wrong is planted and found."""

import json
import os

import pytest
import torch
from safetensors import safe_open

from tests.small import small_model
from whet.engines.native.native_engine import NativeEngine
from whet.errors import RunFailed
from whet.models.adapters.lora import LoRAShape, attach, trained_tensors
from whet.train.rollout_pool import hand_off as module
from whet.train.rollout_pool.hand_off import HandOff, hand_off, remove_others, take_over


def moved(policy, seed):
    """The policy after a step in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in trained_tensors(policy).values():
            tensor += 0.05 * torch.randn(tensor.shape, generator=generator)
    return policy


def sides(*, lora=False):
    """A trainer's policy, and a worker's copy of what the run began with and its engine."""
    (mine, tokenizer), (theirs, _) = small_model(layers=1), small_model(layers=1)
    if lora:
        for model in (mine, theirs):
            attach(model, LoRAShape(rank=2, alpha=4.0, targets=("q_proj", "up_proj")), seed=3)
    return moved(mine, 1), theirs, NativeEngine(theirs, tokenizer)


def accept(handed, theirs, engine, *, version=1):
    take_over(theirs, engine, handed.file, version=version, seal=handed.seal)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "adapters"])
def test_the_worker_holds_every_bit_of_the_trainer(tmp_path, lora):
    mine, theirs, engine = sides(lora=lora)
    accept(hand_off(mine, 1, tmp_path), theirs, engine)
    for name, tensor in mine.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    assert engine.version == 1
    assert [path.name for path in tmp_path.iterdir()] == ["weights-000001.safetensors"]  # nothing unfinished


def test_adapters_travel_alone(tmp_path):
    mine, _, _ = sides(lora=True)
    handed = hand_off(mine, 4, tmp_path)
    with safe_open(handed.file, framework="pt") as file:
        names = set(file.keys())
    assert names == {name for name, _ in mine.named_parameters() if "lora_" in name}
    assert len(names) == 4
    assert handed.file.stat().st_size < sum(4 * p.numel() for p in mine.parameters()) / 4


def test_the_weights_of_another_version_are_stale(tmp_path):
    mine, theirs, engine = sides()
    old = hand_off(mine, 1, tmp_path)
    new = hand_off(moved(mine, 2), 2, tmp_path)
    os.replace(old.file, new.file)
    with pytest.raises(RunFailed, match="is not what the trainer wrote for version 2: it is stale or damaged"):
        accept(new, theirs, engine, version=2)


def test_one_flipped_bit_is_found_by_name(tmp_path):
    mine, theirs, engine = sides()
    handed = hand_off(mine, 1, tmp_path)
    content = bytearray(handed.file.read_bytes())
    content[-1] ^= 1  # of the last tensor, in the lowest bits of the exponent: still a number
    handed.file.write_bytes(content)
    with pytest.raises(
        RunFailed, match=r"holds other weights than the trainer's version 1: tensor '[\w.]+' is float32"
    ):
        accept(handed, theirs, engine)


def test_a_changed_list_of_checksums_is_found(tmp_path, monkeypatch):
    """Tensors and checksums that agree with each other, and not with what the trainer sealed."""
    mine, theirs, engine = sides()
    handed = hand_off(mine, 1, tmp_path)
    forged = hand_off(moved(mine, 5), 1, tmp_path)
    with pytest.raises(RunFailed, match="is not what the trainer wrote"):
        accept(HandOff(forged.file, handed.seal), theirs, engine)


def test_a_truncated_and_a_missing_file_are_told(tmp_path):
    mine, theirs, engine = sides()
    handed = hand_off(mine, 1, tmp_path)
    handed.file.write_bytes(handed.file.read_bytes()[:-8])
    with pytest.raises(RunFailed, match="the weights of version 1 cannot be loaded"):
        accept(handed, theirs, engine)
    handed.file.unlink()
    with pytest.raises(RunFailed, match="the weights of version 1 cannot be loaded"):
        accept(handed, theirs, engine)


def test_a_model_of_another_shape_is_told(tmp_path):
    mine, _, _ = sides()
    handed = hand_off(mine, 1, tmp_path)
    deep, tokenizer = small_model(layers=2)
    with pytest.raises(RunFailed, match="is another than the trainer's, tensor 'model"):
        accept(handed, deep, NativeEngine(deep, tokenizer))
    narrow, _ = small_model(layers=1, width=16)
    with pytest.raises(RunFailed, match="cannot be loaded"):
        accept(handed, narrow, NativeEngine(narrow, tokenizer))


def test_a_frozen_weight_that_differs_is_found_by_the_canary(tmp_path):
    """Checksums see what travels; the base under the adapters does not."""
    mine, theirs, engine = sides(lora=True)
    with torch.no_grad():
        theirs.model.layers[0].mlp.down_proj.weight[0, 0] += 1.0
    with pytest.raises(RunFailed, match="under its model the log-probs of a canary differ by"):
        accept(hand_off(mine, 1, tmp_path), theirs, engine)


def test_an_engine_that_reads_other_weights_is_found_by_the_canary(tmp_path):
    mine, theirs, engine = sides()
    stale, _ = small_model(layers=1, seed=9)

    class Deaf(NativeEngine):
        def sync(self, policy, *, version):
            self.policy = stale

    with pytest.raises(RunFailed, match="under its engine the log-probs of a canary differ by"):
        accept(hand_off(mine, 1, tmp_path), theirs, Deaf(theirs, engine.tokenizer))


def test_the_canary_is_that_of_the_trainer(tmp_path):
    mine, _, _ = sides()
    handed = hand_off(mine, 1, tmp_path)
    with safe_open(handed.file, framework="pt") as file:
        header = json.loads(file.metadata()[module.HEADER])
    assert header["canary"] == module.canary_logprobs(mine).tolist()
    assert len(header["canary"]) > 30
    assert all(value < 0 for value in header["canary"])


def test_versions_that_nobody_needs_are_removed(tmp_path):
    mine, _, _ = sides()
    for version in (1, 2, 3):
        hand_off(mine, version, tmp_path)
    (tmp_path / "weights-of-mine.safetensors").write_text("")
    remove_others(tmp_path, {1, 3})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["weights-000001.safetensors", "weights-000003.safetensors", "weights-of-mine.safetensors"]
