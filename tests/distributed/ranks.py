"""One of several processes that talk to each other: `RANK=… WORLD_SIZE=… python -m tests.distributed.ranks`.

Prints what it saw as JSON; the last rank then dies, and the others say how they learned of it.
"""

import json
import sys
from typing import Any

import torch

from whet.distributed import world as module
from whet.distributed.world import World
from whet.errors import RunFailed


def shares(rank: int) -> list[torch.Tensor]:
    """What a rank brings: whole numbers, tables of different height and width, and a rank without rows."""
    return [
        torch.tensor([10 * rank, 2**60 + rank]),
        torch.full((rank + 1, 3 - rank), float(rank)),
        torch.full((0 if rank == 1 else 1, 0 if rank == 1 else 2), rank, dtype=torch.uint8),
        torch.zeros(0),
    ]


def main() -> dict[str, Any]:
    world = World.init("cpu")
    module.BUCKET_BYTES = 24  # six floats: several buckets, and one parameter that is larger than a bucket
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 3), (1,), (4, 5), (2,))]
    for index, parameter in enumerate(parameters):
        parameter.grad = torch.arange(parameter.numel()).view_as(parameter).float() + 100 * index + 1000 * world.rank
    frozen = torch.nn.Parameter(torch.zeros(2))
    mine = torch.tensor([1.5, float(world.rank)], dtype=torch.float64)
    seen: dict[str, Any] = {
        "sum": world.sum(mine).tolist(),
        "untouched": mine.tolist(),
        "max": world.max(-float(world.rank)),
        "gather": world.gather({"rank": world.rank, "text": "é" * (10 * world.rank)}),
        "interleave": [world.interleave(world.shard(list(range(n)))) for n in range(8)],
        "concat": [world.concat(mine).tolist() for mine in shares(world.rank)],
        "writer": world.is_writer,
    }
    world.sum_gradients([*parameters, frozen])
    seen["gradients"] = [parameter.grad.reshape(-1).tolist() for parameter in parameters if parameter.grad is not None]
    world.barrier()
    if world.rank == world.size - 1:
        return seen
    try:
        world.sum(mine)
    except RunFailed as error:
        seen["lost"] = str(error)
    return seen


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
    sys.stdout.flush()
