"""Log-probs of rows under a model that does not change: computed once, and kept on disk by a hash of the content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.files import home_directory
from whet.models.protocol import CausalLM
from whet.records import Row
from whet.train.whole import stacked, summed_logprobs, whole_units

CHUNK_ROWS = 256  # read at a time, so that padding to the longest of all rows costs no memory


def reference_logprobs(
    model: CausalLM, name: str, rows: Sequence[Row], settings: UpdateConfig, world: World, directory: Path
) -> list[float]:
    """The summed log-prob of each row's trained tokens; `name` is the fingerprint of the model's weights."""
    path = directory / f"{_digest(name, rows, world.device.type)}.safetensors"
    kept = _read(path, len(rows))
    if kept is not None:
        return kept
    found: list[float] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        found += _computed(model, list(rows[start : start + CHUNK_ROWS]), settings, world)
    if world.is_writer:
        _write(path, found)
    return found


def cache_directory() -> Path:
    """$WHET_HOME/reference, else ~/.cache/whet/reference."""
    return home_directory("reference")


@torch.no_grad()
def _computed(model: CausalLM, rows: list[Row], settings: UpdateConfig, world: World) -> list[float]:
    sequences = stacked(rows, world)
    sums = torch.zeros(len(rows))
    for some in whole_units(sequences, 1, settings, model):
        sums[some.cpu()] = summed_logprobs(model, sequences, some, 1, settings, world.device)[0].float().cpu()
    return sums.tolist()


def _digest(name: str, rows: Sequence[Row], device: str) -> str:
    content = hashlib.sha256(f"{name} {device} {len(rows)}".encode())
    for row in rows:
        content.update(repr(row.tokens).encode() + bytes(row.mask))
    return content.hexdigest()


def _read(path: Path, count: int) -> list[float] | None:
    """What was kept, unless it is missing or broken; then it is computed again."""
    try:
        kept = load_file(path)["logprobs"]
    except (OSError, SafetensorError, KeyError):
        return None
    return kept.tolist() if len(kept) == count else None


def _write(path: Path, found: Sequence[float]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    save_file({"logprobs": torch.tensor(found, dtype=torch.float32)}, part)
    part.replace(path)
