"""What a run records beside its metrics: rollouts with the text of their tokens, and the machine."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, compress
from typing import Any

import torch

from whet.distributed.world import World
from whet.models.protocol import Tokenizer


def spelled(groups: Sequence[Sequence[Mapping[str, Any]]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The rows of all groups, each with the text of every sampled token."""
    rows = list(chain.from_iterable(groups))
    chosen = list(set(chain.from_iterable(compress(row["tokens"], row["mask"]) for row in rows)))
    texts = dict(zip(chosen, tokenizer.decode_many([[token] for token in chosen]), strict=True))
    for row in rows:
        yield {**row, "pieces": [texts[token] for token in compress(row["tokens"], row["mask"])]}


def machine(world: World) -> dict[str, Any]:
    """Hardware, as far as it matters for speed."""
    cuda = world.device.type == "cuda"
    return {
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if cuda else platform.machine(),
        "processes": world.size,
    }
