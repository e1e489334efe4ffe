"""Tokens per second of supervised language modelling on one device: `python -m bench.language_model`.

The same optimizer step on both sides: GPT-2's shape with random weights, random tokens, bf16 products with fp32 weights
on a GPU (fp32 on a CPU), gradient accumulation, clipping, fused AdamW. Sides: whet with and without `model.compile`,
transformers' GPT2LMHeadModel with SDPA attention under `torch.compile` and without. Model FLOPs per token are those of
PaLM's appendix B (Chowdhery et al. 2022): 6 for each weight of a matrix product, and 12 · layers · width · context.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from bench.clock import now, take_peak
from bench.machine import machine
from bench.results import RESULTS, write_result
from whet.algorithms.table import OBJECTIVES
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.models.decoder.decoder import Decoder
from whet.models.load import new_model
from whet.records import Sequences
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.rows.sft import fit_sequences

H200_PEAK = 989e12  # FLOP/s in dense bf16, NVIDIA's data sheet
SHAPES = {
    "gpt2-124m": {"layers": 12, "heads": 12, "width": 768, "context": 1024, "vocab": 50304},
    "nanogpt-char": {"layers": 6, "heads": 6, "width": 384, "context": 256, "vocab": 66},
    "small": {"layers": 4, "heads": 4, "width": 128, "context": 64, "vocab": 66},
}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--shape", choices=SHAPES, default="gpt2-124m")
    given.add_argument("--batch", type=int, default=512, help="windows of a step")
    given.add_argument("--micro-batch", type=int, default=32, help="windows of a forward pass")
    given.add_argument("--steps", type=int, default=5, help="timed steps after two others")
    given.add_argument("--sides", default="whet-compiled,whet,transformers-compiled,transformers")
    given.add_argument("--out", type=Path, default=RESULTS)
    given.add_argument("--quick", action="store_true", help="no result: proves that the code works")
    asked = given.parse_args()
    world = World.init("auto")
    shape = SHAPES[asked.shape]
    sides = {
        name: _measured(_step(name, shape, asked.micro_batch, world), shape, asked.batch, asked.steps, world)
        for name in asked.sides.split(",")
    }
    for name, side in sides.items():
        mfu = "" if side["mfu"] is None else f", MFU {side['mfu']:.1%}"
        print(f"{name}: {side['tokens_per_second']:,.0f} tokens/s, {side['seconds']:.3f} s a step{mfu}")
    workload = {"shape": asked.shape, **shape, "batch": asked.batch, "micro_batch": asked.micro_batch}
    content = {
        "what": f"language-model-{asked.shape}",
        "title": f"Supervised language modelling, {asked.shape}",
        "workload": workload,
        "sides": sides,
        "quick": asked.quick,
    }
    print(write_result(asked.out, machine(world.device.type), content))


Step = Callable[[torch.Tensor], None]


def _step(name: str, shape: dict[str, int], micro: int, world: World) -> Step:
    """One optimizer step of a side on (batch, context + 1) ids."""
    library, _, compiled = name.partition("-")
    return (_whet if library == "whet" else _transformers)(shape, micro, world, compiled == "compiled")


def _whet(shape: dict[str, int], micro: int, world: World, compiled: bool) -> Step:
    config = OfflineConfig.model_validate(
        {
            "steps": 1,
            "model": {"new": {"family": "gpt2"}},
            "task": {"name": "corpus", "path": "none"},
            "objective": "lm",
            "optimizer": {"lr": 6e-4, "weight_decay": 0.1},
            "update": {"micro_batch_tokens": micro * shape["context"]},
        }
    )
    given = {key: shape[key] for key in ("layers", "heads", "width", "context")}
    policy = new_model("gpt2", vocab_size=shape["vocab"], seed=0, **given).to(world.device)
    assert isinstance(policy, Decoder)
    policy.model.compiled = compiled
    optimizer = make_optimizer(policy, config.optimizer)

    def step(ids: torch.Tensor) -> None:
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[:, 0] = False
        lengths = torch.full((len(ids),), ids.shape[1], device=ids.device)
        sequences = Sequences(tokens=ids, mask=mask, lengths=lengths)
        fit_sequences(policy, optimizer, sequences, OBJECTIVES["lm"], config, world)

    return step


def _transformers(shape: dict[str, int], micro: int, world: World, compiled: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape["vocab"],
        n_layer=shape["layers"],
        n_head=shape["heads"],
        n_embd=shape["width"],
        n_positions=shape["context"],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        attn_implementation="sdpa",
        use_cache=False,
    )
    model: Any = GPT2LMHeadModel(config).to(world.device)
    run = torch.compile(model, dynamic=False) if compiled else model
    fused = world.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=fused)

    def step(ids: torch.Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        for some in torch.split(ids, micro):
            with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=fused):
                logits = run(input_ids=some[:, :-1]).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), some[:, 1:].flatten(), reduction="sum")
            (loss / ids[:, 1:].numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _measured(step: Step, shape: dict[str, int], batch: int, steps: int, world: World) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    seconds = []
    take_peak(world.device)
    for number in range(steps + 2):
        ids = torch.randint(shape["vocab"], (batch, shape["context"] + 1), generator=generator).to(world.device)
        began = now(world.device)
        step(ids)
        if number >= 2:
            seconds.append(now(world.device) - began)
    typical = statistics.median(seconds)
    speed = batch * shape["context"] / typical
    is_h200 = world.device.type == "cuda" and "H200" in torch.cuda.get_device_name()
    return {
        "seconds": typical,
        "runs": seconds,
        "tokens_per_second": speed,
        "mfu": speed * flops_per_token(shape) / H200_PEAK if is_h200 else None,
        "peak_bytes": take_peak(world.device),
    }


def flops_per_token(shape: dict[str, int]) -> float:
    """Of forward and backward pass."""
    weights = shape["layers"] * 12 * shape["width"] ** 2 + shape["vocab"] * shape["width"]
    return 6 * weights + 12 * shape["layers"] * shape["width"] * shape["context"]


if __name__ == "__main__":
    main()
