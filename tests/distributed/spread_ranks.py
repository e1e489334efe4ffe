"""One of several processes that share their models: `RANK=… … python -m tests.distributed.spread_ranks DIRECTORY`.

Of every loss it compares the gradient of models that are spread with that of one process, which it computes by itself,
and with that of whole models in as many processes. Rank 0 prints what it found as JSON: name → how far apart.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

from tests.contracts.additive import ALONE, VARIANTS, Scene, annotated, config_of, shaken
from tests.small import small_model
from tests.train import rows_on_disk as on_disk
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.batching import collate, micro_batches, take
from whet.config import OfflineConfig
from whet.distributed.fsdp2 import FSDP2
from whet.distributed.sharding import take_over
from whet.distributed.world import World
from whet.models.layers.packing import pack
from whet.models.logprobs import read_tokens
from whet.train.online.critic import Critic
from whet.train.online.learner import Learner
from whet.train.online.reference import Reference
from whet.train.online.update import update
from whet.train.rows.units import PLAIN
from whet.train.setup.chosen_algorithm import build_algorithm
from whet.train.spreading.spread_models import held

FAMILIES = ("llama", "qwen3", "gpt2", "phi3", "olmo2", "gemma2", "olmoe", "deepseek_v2")
Gradient = dict[str, Tensor]
Found = dict[str, Any]
FEW = ("grpo", "ppo", "ppo, shared", "ppo, bootstrap", "dapo", "grpo, entropy")  # of the slower checks
MEASURED = ("dpo", "kto", "bradley_terry", "process", "sft", "lm", "denoise")  # of held-out rows


def whole_gradients(model: Any, world: World) -> Gradient:
    """By name; zeros where there is none."""
    found = {}
    for name, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        found[name] = world.sharding.whole(grad).clone()
    return found


def apart(one: Gradient, two: Gradient) -> float:
    """How far, relative to the length of the first."""
    assert one.keys() == two.keys()
    a, b = (torch.cat([grads[name].flatten() for name in one]) for grads in (one, two))
    assert float(a.norm()) > 0
    return float((a - b).norm() / a.norm())


def equal(one: Gradient, two: Gradient) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


# --- policy gradients


def online_learner(scene: Scene, policy: Any, world: World, **settings: Any) -> Learner:
    """Its models are held as the world says, and nothing moves."""
    config = config_of(scene.name, padding_free=True, **settings)
    algorithm = build_algorithm(config.algorithm)
    policy = held(copy.deepcopy(policy), world)
    critic = Critic(policy, config, world) if algorithm.needs_values else None
    if critic is not None:
        critic.settings = critic.settings.model_copy(update={"lr": 0.0})
        with torch.no_grad():
            generator = torch.Generator().manual_seed(6)
            critic.head.weight.copy_(torch.randn(critic.head.weight.shape, generator=generator) * 0.3)
        if critic.trunk is not None:
            moved = dict(shaken(scene.policy, seed=8).named_parameters())
            for name, parameter in critic.trunk.named_parameters():
                take_over(parameter, moved[name].detach())
    reference = None
    if algorithm.needs_reference:
        reference = Reference(held(small_model(seed=1, sharp=6.0, layers=1)[0], world))
    return Learner(
        policy=policy,
        optimizer=torch.optim.SGD(policy.parameters(), lr=0.0),
        algorithm=algorithm,
        reference=reference,
        critic=critic,
        config=config,
        world=world,
    )


def online_gradient(scene: Scene, world: World, *, warmup: bool = False, **settings: Any) -> Gradient:
    """Of one update: batch and update are made by models that are held as the world says."""
    batch, _ = annotated(online_learner(scene, scene.policy, world, **settings), scene.groups)
    learner = online_learner(scene, scene.moved, world, **settings)
    if warmup:
        assert learner.critic is not None
        config = learner.config.critic.model_copy(update={"warmup_steps": 1})
        learner.critic.config = learner.config.model_copy(update={"critic": config})
    update(learner, batch, step=1)
    found = {f"policy/{name}": grad for name, grad in whole_gradients(learner.policy, world).items()}
    if learner.critic is not None:
        found |= {f"critic/{name}": grad for name, grad in whole_gradients(learner.critic, world).items()}
    return found


# --- rows


def offline_gradient(config: OfflineConfig, world: World, *, steps: int = 1) -> tuple[Gradient, dict[str, float]]:
    """Of one step, and what is measured of held-out rows, from weights that are not those of the reference."""
    parts, trainer = on_disk.built(config, world)
    generator = torch.Generator().manual_seed(5)
    for parameter in parts.policy.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.05
        take_over(parameter, world.sharding.whole(parameter.detach()) + noise)
    for group in parts.optimizer.param_groups:
        group["lr"] = 0.0
    rows = trainer.rows(steps)
    trainer.fit(rows)
    found = whole_gradients(parts.policy, world)
    if config.objective.name not in MEASURED:
        return found, {}
    return found, trainer.measure() | parts.measure(parts.policy)


def offline_configs(place: Path) -> Iterator[tuple[str, OfflineConfig]]:
    """One for every objective; their batches differ in size between ranks."""
    data = {"bradley_terry": "pairs", "outcome": "outcomes", "process": "traces"}
    packed = {"micro_batch_tokens": 64, "max_grad_norm": 1e9}
    for name in (*PREFERENCES, *REWARDS, "sft"):
        rows = place / f"{data.get(name, 'pairs')}.jsonl"
        head = {"reward_head": {"separator": "+"}} if name in REWARDS else {}
        yield name, on_disk.config(place / "start", rows, name, batch_size=7, update=packed, **head)
    other = {"reference": str(place / "other"), "batch_size": 7, "update": packed}
    yield "dpo, another reference", on_disk.config(place / "start", place / "pairs.jsonl", "dpo", **other)
    lora = {"path": str(place / "start"), "lora": {"rank": 4}}
    for name in ("dpo", "bradley_terry"):
        written = on_disk.config(place / "start", place / "pairs.jsonl", name, batch_size=7, update=packed).model_dump()
        yield f"{name}, adapters", OfflineConfig.model_validate(written | {"model": lora})
    text = {
        "loop": "offline",
        "steps": 4,
        "task": {"name": "corpus", "path": str(place / "text.txt"), "prompt_characters": 6, "answer_characters": 4},
        "batch_size": 5,
        "update": packed,
        "eval": {"examples": 4, "max_tokens": 8},
        "track": [],
        "device": "cpu",
    }
    new = {"family": "llama", "layers": 2, "heads": 2, "width": 32, "context": 24}
    for name in ("lm", "denoise", "masked_lm"):
        yield name, OfflineConfig.model_validate({**text, "objective": name, "model": {"new": new}})


# --- families of models


def family_gradient(
    place: Path, family: str, world: World, *, recompute: bool = False, is_half: bool = False
) -> Gradient:
    """Of log-probs of packed rows; also saves the model."""
    model, _ = small_model(family, sharp=3.0)
    model.gradient_checkpointing = recompute
    policy: Any = held(model, world)
    backward(policy, world, is_half=is_half)
    world.sharding.clip(list(policy.parameters()), 1e9)
    directory = place / f"{family}-{world.sharding.name}-{world.size}"
    if world.is_writer:
        directory.mkdir(exist_ok=True)
    policy.save(directory if world.is_writer else None, torch.bfloat16, world.sharding.whole)
    return whole_gradients(policy, world)


def backward(policy: Any, world: World, *, is_half: bool = False) -> None:
    """Of which one rank has more passes than another; the gradients of ranks are still to be summed.

    The longer row of the second of two ranks has no trained token, so that its batch makes no pass.
    """
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, policy.vocab_size, (5 + 3 * n,), generator=generator).tolist() for n in range(5)]
    mine = world.shard(rows)
    s = collate(mine, [[place > 1 and len(row) != 14 for place in range(len(row))] for row in mine], world.device)
    for some in world.sharding.evened(micro_batches(s.lengths, 16), policy):
        part = take(s, some)
        packing = pack(part.tokens, part.mask, some)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            reading = read_tokens(policy, part.tokens, part.lengths, part.mask, PLAIN, packing=packing)
        if reading.logprobs.requires_grad:
            (reading.logprobs.sum() / 60).backward()


def clipped(world: World) -> tuple[float, Gradient]:
    """The norm of a gradient and what clipping leaves of it, of a model with many vectors."""
    policy: Any = held(small_model("gpt2", sharp=3.0)[0], world)
    backward(policy, world)
    norm = world.sharding.clip(list(policy.parameters()), 0.01)
    return norm, whole_gradients(policy, world)


def clipping(worlds: Sequence[World]) -> Iterator[list[float]]:
    """Of each world: the norm relative to that of one process, and how far its clipped gradient is apart."""
    expected, gradient = clipped(ALONE)
    for world in worlds:
        norm, found = clipped(world)
        yield [norm / expected, apart(gradient, found)]


def halved(place: Path, world: World, *, cpu_offload: bool) -> Found:
    """Matrices gathered in bf16 for products in bf16, as on a GPU, here by autocast on a CPU."""
    sharding = FSDP2(world, replicas=1, cpu_offload=False)
    sharding._precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    sharding._offload = CPUOffloadPolicy(pin_memory=False) if cpu_offload else sharding._offload
    spread = replace(world, spread_by=sharding)
    found: Found = {}
    for family in ("qwen3", "gpt2"):
        half = family_gradient(place, family, spread, is_half=True)
        found[family] = apart(family_gradient(place, family, ALONE), half)
    policy: Any = held(small_model()[0], spread)
    return {**found, "kept in fp32": {parameter.dtype for parameter in policy.parameters()} == {torch.float32}}


def saved_alike(place: Path, family: str, spread: World) -> bool:
    """Whether spread models were saved as whole ones are."""
    names = ("model.safetensors", "config.json")
    one, two = (place / f"{family}-{end}" for end in ("none-1", f"{spread.sharding.name}-{spread.size}"))
    return all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


# --- what is compared


def compared(gradient: Callable[[World], Any], worlds: tuple[World, World], *, one_pass: bool) -> Found:
    """One process against models that are spread; of one pass also whole models in as many processes."""
    whole, spread = worlds
    alone, shared = gradient(ALONE), gradient(spread)
    found: Found = {}
    if isinstance(alone, tuple):
        (alone, measured), (shared, also) = alone, shared
        found["measured"] = {key: [value, also[key]] for key, value in measured.items()}
    if one_pass:
        found["equal"] = equal(gradient(whole), shared)
    return {**found, "apart": apart(alone, shared)}


def averaged(scene: Scene, world: World) -> float:
    """With the sums of the root alone: its blocks average, as they do by default."""
    batch, _ = annotated(online_learner(scene, scene.policy, world), scene.groups)
    learner = online_learner(scene, scene.moved, world)
    policy: Any = learner.policy
    for block in policy.model.layers:
        block.set_gradient_divide_factor(float(world.size))
    update(learner, batch, step=1)
    found = {f"policy/{name}": grad for name, grad in whole_gradients(learner.policy, world).items()}
    return apart(online_gradient(scene, ALONE), found)


def gradients(place: Path) -> Iterator[tuple[str, Callable[[World], Any], bool]]:
    """Name, what gives the gradient, and whether a rank makes one pass for it."""
    for name in VARIANTS:
        yield name, partial(online_gradient, Scene(name)), True
    for name in FEW:
        yield f"{name}: many passes", partial(online_gradient, Scene(name), micro_batch_tokens=24), False
    for name in ("ppo", "ppo, shared"):
        yield f"{name}: warm-up", partial(online_gradient, Scene(name), warmup=True), True
    for name in FAMILIES:
        yield name, partial(family_gradient, place, name), False
    for name in ("llama", "gpt2"):
        yield f"{name}: recomputed", partial(family_gradient, place, name, recompute=True), False
    for name, config in offline_configs(place):
        yield name, partial(offline_gradient, config), False


def main() -> Found:
    place, names = Path(sys.argv[1]), sys.argv[2:]
    world = World.init("cpu")
    worlds = world, world.sharded("fsdp2", replicas=int(os.environ.get("REPLICAS", "1")))
    found: Found = {}
    for name, gradient, one_pass in gradients(place):
        if not names or name in names:
            found[name] = compared(gradient, worlds, one_pass=one_pass)
            if name in FAMILIES and world.is_writer:
                found[name]["saved_alike"] = saved_alike(place, name, worlds[1])
    for cpu_offload in () if names else (False, True):
        found["halved, offloaded" if cpu_offload else "halved"] = halved(place, world, cpu_offload=cpu_offload)
    replicated = world.sharded("fsdp2", replicas=2)  # of two processes each then holds all parts
    found["clipped"] = list(clipping([*worlds, replicated]))
    found["averaged"] = averaged(Scene("grpo"), worlds[1])
    world.barrier()
    return found


if __name__ == "__main__":
    result = main()
    if os.environ["RANK"] == "0":
        json.dump(result, sys.stdout)
        sys.stdout.flush()
