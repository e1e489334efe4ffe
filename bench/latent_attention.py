"""Plain, grouped and latent attention at equal parameter count: `python -m bench.latent_attention`.

Bytes of the KV cache for each token, parameters, and decoded tokens a second by the length of the context. All are
decoded by the plain loop (`Decoder.begin` and `extend`, bf16 on a GPU, fp32 on a CPU); on a GPU the native engine has
CUDA graphs for plain attention besides, which `bench.gpu` measures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.clock import now, take_peak
from bench.command import run_command
from bench.machine import machine
from bench.results import RESULTS, write_result
from bench.spread import timed_median
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import DecoderConfig, autocast, kv_bytes_per_token, parameter_count
from whet.models.model_shape import new_shape

GROUP = 4  # query heads to a KV head of grouped-query attention
FAMILY = {"plain": "llama", "grouped": "llama", "latent": "deepseek_v3"}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The shape of the plain model, and what is decoded."""

    vocab_size: int
    layers: int
    heads: int
    width: int
    rows: int  # sequences at once
    contexts: tuple[int, ...]  # tokens of their prompts
    steps: int  # tokens that each of them gets
    repeats: int  # the first is apart


FULL = Workload(
    vocab_size=50304, layers=12, heads=12, width=768, rows=64, contexts=(128, 1024, 4096), steps=64, repeats=4
)
QUICK = Workload(vocab_size=512, layers=2, heads=8, width=128, rows=4, contexts=(32, 256), steps=8, repeats=3)


def main(arguments: Sequence[str]) -> None:
    """Measures all three and writes a result file."""
    options = _options(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    workload = QUICK if options.quick else FULL
    sides = {name: measured(config, FAMILY[name], workload, device) for name, config in configs(workload).items()}
    content = {
        "what": "latent-attention",
        "title": f"{workload.layers} layers of width {workload.width}, {workload.heads} heads",
        "quick": options.quick,
        "workload": asdict(workload),
        "sides": sides,
    }
    path = write_result(options.out, machine(device.type), content, revision=options.commit)
    print(*table(sides, workload), path, sep="\n")


def configs(workload: Workload) -> dict[str, DecoderConfig]:
    """The three shapes; the MLPs of the others are as wide as gives them the parameters of the plain one."""
    sizes = {key: getattr(workload, key) for key in ("vocab_size", "layers", "heads", "width")}
    sizes["context"] = max(workload.contexts) + workload.steps
    plain = new_shape("llama", **sizes)
    others = {
        "grouped": new_shape("llama", **sizes, kv_heads=workload.heads // GROUP),
        "latent": new_shape("deepseek_v3", **sizes),
    }
    return {"plain": plain, **{name: with_parameters(other, plain) for name, other in others.items()}}


def with_parameters(config: DecoderConfig, like: DecoderConfig) -> DecoderConfig:
    """The config with the MLP, in steps of 8, that brings its parameters nearest to those of `like`."""
    each = 3 * config.width * config.layers  # parameters for one more unit of a gated MLP
    missing = parameter_count(like) - parameter_count(config)
    return replace(config, mlp_width=max(8, 8 * round((config.mlp_width + missing / each) / 8)))


def measured(config: DecoderConfig, family: str, workload: Workload, device: torch.device) -> dict[str, Any]:
    """Sizes of a model, and its speed at every context."""
    model = Decoder(config, family=family, seed=0).to(device)
    cached = torch.bfloat16 if device.type == "cuda" else torch.float32
    return {
        "parameters": parameter_count(config),
        "mlp_width": config.mlp_width,
        "kv_bytes_per_token": kv_bytes_per_token(config, cached),
        "contexts": {str(context): decoded(model, context, workload, device) for context in workload.contexts},
    }


@torch.no_grad()
def decoded(model: Decoder, context: int, workload: Workload, device: torch.device) -> dict[str, Any]:
    """Seconds of `steps` tokens for every row after prompts of this length, which are not counted; tokens a second."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, model.vocab_size, (workload.rows, context), generator=generator).to(device)
    lengths = torch.full((workload.rows,), context)
    seconds = []
    take_peak(device)
    for _ in range(workload.repeats):
        with autocast(device):
            states, cache = model.begin(prompts, lengths, room=workload.steps)
            begun = now(device)
            for _ in range(workload.steps):
                states = model.extend(model.head(states).argmax(dim=-1), cache)
            seconds.append(now(device) - begun)
    median = timed_median(seconds)
    return {
        "seconds": seconds,
        "tokens_per_second": workload.rows * workload.steps / median,
        "peak_bytes": take_peak(device),
    }


def table(sides: Mapping[str, Mapping[str, Any]], workload: Workload) -> list[str]:
    """Markdown, one row for each kind of attention."""
    speeds = [f"tokens/s at {context:,}" for context in workload.contexts]
    lines = [f"| attention | KV bytes a token | parameters | {' | '.join(speeds)} |", "|---" * (3 + len(speeds)) + "|"]
    for name, side in sides.items():
        found = [f"{side['contexts'][str(context)]['tokens_per_second']:,.0f}" for context in workload.contexts]
        cells = [name, f"{side['kv_bytes_per_token']:,}", f"{side['parameters']:,}", *found]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latent_attention", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the result file goes")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="a tiny shape, to see that it works")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
