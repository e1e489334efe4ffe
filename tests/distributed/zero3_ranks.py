"""One of several processes whose models DeepSpeed's ZeRO-3 spreads: `… python -m tests.distributed.zero3_ranks DIRECTORY`.

As `spread_ranks`, whose losses it takes.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from tests.contracts.additive import Scene
from tests.distributed.spread_ranks import Found, compared, gradients, saved_alike
from whet.distributed.world import World

FAMILIES = ("llama", "qwen3", "gpt2", "gemma2", "olmoe", "deepseek_v2")


def main() -> Found:
    place, names = Path(sys.argv[1]), sys.argv[2:]
    world = World.init("cpu")
    worlds = world, world.sharded("zero3")
    found: Found = {}
    for name, gradient, one_pass in gradients(place):
        if name in names or "all" in names:
            try:
                found[name] = compared(gradient, worlds, one_pass=one_pass)
            except Exception as e:
                import traceback; traceback.print_exc()
                raise
            print(name, {k: v for k, v in found[name].items() if k != "measured"}, file=sys.stderr, flush=True)
    world.barrier()
    return found


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # DeepSpeed prints
        result = main()
    if os.environ["RANK"] == "0":
        json.dump(result, sys.stdout)
        sys.stdout.flush()
