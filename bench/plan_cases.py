"""The configurations that `bench.plan` measures: shapes, losses, ways to keep the weights, batch sizes."""

from __future__ import annotations

from dataclasses import dataclass

ONLINE, SFT, DPO = "online", "sft", "dpo"
RECOMPUTE = "model.gradient_checkpointing=true"
BF16_WEIGHTS = ("optimizer.master_weights=bf16", "optimizer.name=adamw_bf16")
STREAM = "optimizer.master_weights=offload"
QLORA = ("model.lora.rank=16", "model.lora.quantization=nf4")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration, of which a few steps are measured."""

    name: str
    shape: str  # of bench.shapes
    loss: str = ONLINE
    prompts: int = 32  # offline: rows
    group: int = 8
    prompt: int = 128  # tokens
    new: int = 256
    overrides: tuple[str, ...] = ()
    checks: bool = False  # the shares of `durations` were fitted without it
    limits: bool = False  # also run with less memory than predicted, and with a little more


def micro(tokens: int) -> str:
    return f"update.micro_batch_tokens={tokens}"


def slots(count: int) -> str:
    return f"engine.max_sequences={count}"


CASES = (
    Case(name="smollm2 grpo", shape="smollm2", prompts=64, new=512),
    Case(name="smollm2 grpo small passes", shape="smollm2", prompts=32, overrides=(micro(4096),), limits=True),
    Case(name="smollm2 sft", shape="smollm2", loss=SFT, prompts=128, new=512, limits=True),
    Case(name="0.6b grpo", shape="qwen3", prompts=32, new=512),
    Case(name="0.6b grpo kl", shape="qwen3", overrides=("algorithm.kl.coefficient=0.01", micro(8192)), limits=True),
    Case(name="0.6b ppo", shape="qwen3", prompts=128, group=1, overrides=("algorithm=ppo", micro(8192))),
    Case(name="0.6b grpo long", shape="qwen3", prompts=8, prompt=512, new=1024, overrides=(micro(16384),)),
    Case(name="0.6b dpo", shape="qwen3", loss=DPO, prompts=64, new=256, overrides=(micro(8192),), limits=True),
    Case(name="0.6b grpo recompute", shape="qwen3", overrides=(RECOMPUTE, micro(16384))),
    Case(name="1.7b grpo", shape="qwen3-1.7b", overrides=(micro(16384),)),
    Case(
        name="1.7b grpo bf16 weights",
        shape="qwen3-1.7b",
        new=512,
        overrides=(*BF16_WEIGHTS, RECOMPUTE, micro(8192), slots(64)),
    ),
    Case(
        name="1.7b grpo lora",
        shape="qwen3-1.7b",
        new=512,
        overrides=("model.lora=16", micro(8192), slots(64), RECOMPUTE),
    ),
    Case(
        name="1.7b grpo qlora",
        shape="qwen3-1.7b",
        new=512,
        overrides=(*QLORA, micro(8192), slots(64), RECOMPUTE),
    ),
    Case(
        name="1.7b sft lora",
        shape="qwen3-1.7b",
        loss=SFT,
        prompts=64,
        overrides=("model.lora=32", micro(4096)),
        limits=True,
    ),
    Case(name="1.7b grpo kl lora", shape="qwen3-1.7b", overrides=("model.lora=8", "algorithm.kl.coefficient=0.01")),
    Case(name="4b grpo recompute", shape="qwen3-4b", prompts=16, overrides=(RECOMPUTE, micro(8192), slots(64))),
    Case(
        name="4b dpo lora",
        shape="qwen3-4b",
        loss=DPO,
        prompts=32,
        overrides=("model.lora=16", micro(4096)),
        limits=True,
    ),
    Case(
        name="8b grpo lora",
        shape="qwen3-8b",
        new=512,
        overrides=("model.lora=16", micro(8192), RECOMPUTE, slots(128)),
    ),
    Case(
        name="8b grpo qlora",
        shape="qwen3-8b",
        new=512,
        overrides=(*QLORA, micro(8192), RECOMPUTE, slots(128)),
    ),
    Case(
        name="8b grpo bf16 weights",
        shape="qwen3-8b",
        new=512,
        overrides=(*BF16_WEIGHTS, RECOMPUTE, micro(8192), slots(256)),
    ),
    Case(
        name="3b grpo bf16 weights",
        shape="qwen2.5-3b",
        new=512,
        checks=True,
        overrides=(*BF16_WEIGHTS, RECOMPUTE, micro(8192), slots(128)),
    ),
    Case(
        name="4b grpo stream",
        shape="qwen3-4b",
        prompts=16,
        checks=True,
        overrides=(STREAM, RECOMPUTE, micro(8192), slots(64)),
    ),
    Case(
        name="8b grpo stream",
        shape="qwen3-8b",
        prompts=8,
        new=128,
        checks=True,
        overrides=(STREAM, RECOMPUTE, micro(4096), slots(64)),
    ),
    Case(
        name="4b grpo bf16 weights",
        shape="qwen3-4b",
        prompts=16,
        checks=True,
        overrides=(*BF16_WEIGHTS, RECOMPUTE, micro(8192), slots(64)),
    ),
    Case(name="0.6b sft", shape="qwen3", loss=SFT, prompts=64, new=768, checks=True, overrides=(micro(16384),)),
    Case(name="smollm2 ppo", shape="smollm2", prompts=256, group=1, checks=True, overrides=("algorithm=ppo",)),
    Case(
        name="1.7b dpo bf16 weights",
        shape="qwen3-1.7b",
        loss=DPO,
        prompts=32,
        new=384,
        checks=True,
        overrides=(*BF16_WEIGHTS, micro(8192)),
    ),
    Case(
        name="4b grpo lora long",
        shape="qwen3-4b",
        prompts=8,
        prompt=512,
        new=512,
        checks=True,
        overrides=("model.lora=32", RECOMPUTE, micro(8192)),
    ),
)
QUICK = (
    Case(name="tiny grpo", shape="tiny", prompts=2, group=4, prompt=8, new=12),
    Case(name="tiny grpo kl lora", shape="tiny", prompts=2, group=4, prompt=8, new=12, overrides=("model.lora=4",)),
    Case(name="tiny sft", shape="tiny", loss=SFT, prompts=4, prompt=8, new=12),
    Case(name="tiny dpo", shape="tiny", loss=DPO, prompts=4, prompt=8, new=12),
    Case(name="tiny unknown key", shape="tiny", prompts=2, group=4, prompt=8, new=12, overrides=("model.unknown=1",)),
)
