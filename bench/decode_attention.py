"""Bandwidth of decode attention by rows, contexts and number of splits: `python -m bench.decode_attention`.

Contexts are uniform between two lengths, as in the workload "mixed". GB/s counts keys and values once.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import median

import torch

from bench.command import run_command
from bench.shapes import SHAPES
from whet.engines.native import decode_kernels
from whet.engines.native.slots import SlotCache, SlotRows
from whet.errors import UserError

ROWS = (256, 192, 128, 96, 64, 32, 16)
REPEATS = 20


def main(arguments: Sequence[str]) -> None:
    """Prints GB/s for every number of rows and splits."""
    parser = argparse.ArgumentParser(prog="python -m bench.decode_attention", description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="qwen3")
    parser.add_argument("--contexts", type=int, nargs=2, default=(200, 2048), metavar=("LEAST", "MOST"))
    parser.add_argument("--splits", type=int, nargs="+", default=(1, 2, 4, 8, 16))
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device: run this on a GPU machine")
    print("rows", *(f"{splits:>6}" for splits in options.splits))
    for rows in ROWS:
        found = [bandwidth(options.model, rows, options.contexts, splits) for splits in options.splits]
        print(f"{rows:4}", *(f"{one / 1e9:6.0f}" for one in found), flush=True)


def bandwidth(model: str, rows: int, contexts: Sequence[int], splits: int) -> float:
    """Bytes of keys and values per second, median of some runs over two layers in turn."""
    config, device = SHAPES[model].config, torch.device("cuda")
    lengths = sorted((random.Random(0).randint(*contexts) for _ in range(rows)), reverse=True)
    capacity = -(-contexts[1] // 64) * 64
    cache = SlotCache(config, slots=rows, capacity=capacity, dtype=torch.bfloat16, device=device)
    cache.shape = (2, *cache.shape[1:])
    cache.hold()
    state = SlotRows.empty(rows + 1, 8, device)
    state.positions[:rows] = torch.tensor(lengths, dtype=torch.int32, device=device) - 1
    slots = torch.arange(rows, dtype=torch.int32, device=device)
    queries = torch.randn(rows, config.heads, config.head_dim, dtype=torch.bfloat16, device=device)
    for layer in range(2):
        for tensor in cache.layer(layer):
            tensor.normal_()
    seconds = []
    for number in range(REPEATS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        decode_kernels.attend(queries, cache, number % 2, slots, state, splits)
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    size = 2 * sum(lengths) * config.kv_heads * config.head_dim * 2
    return size / median(seconds[3:])


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
