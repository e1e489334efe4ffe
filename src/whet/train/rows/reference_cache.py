"""Log-probs of rows under a fixed model: computed once, and cached on disk by a hash of model and rows."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from whet.config.parts import UpdateConfig
from whet.distributed.world import World
from whet.files import home_directory
from whet.models.protocol import CausalLM
from whet.records import Row
from whet.runs.logs import write_atomic
from whet.train.rows.units import stacked, summed_logprobs, whole_units

LOGPROBS, CHECKSUM = "logprobs", "sha256"  # the tensor in a file, and the key of its checksum in the header
CHUNK_ROWS = 256  # read at a time, so that padding to the longest of all rows costs no memory


def reference_logprobs(
    model: CausalLM,
    name: str,
    rows: Sequence[Row],
    settings: UpdateConfig,
    world: World,
    directory: Path,
    note: Callable[[str], None] = lambda _: None,
) -> list[float]:
    """The summed log-prob of each row's trained tokens; `name` is the fingerprint of the model's weights."""
    path = directory / f"{_digest(name, rows, world.device.type)}.safetensors"
    kept = _read(path, len(rows)) if path.exists() else None
    # All ranks compute or none: passes through a model that is spread are made together.
    if world.max(float(kept is None)) == 0:
        assert kept is not None
        return kept
    if path.exists() and kept is None:
        note(f"reference: {path} is damaged or has no checksum, so the log-probs are computed again")
    found: list[float] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        found += _computed(model, list(rows[start : start + CHUNK_ROWS]), settings, world)
    if world.is_writer:
        try:
            _write(path, found)
        except OSError as error:
            note(f"reference: the log-probs cannot be kept in {path} ({error}), so the next start computes them again")
    return found


def cache_directory() -> Path:
    """$WHET_HOME/reference, else ~/.cache/whet/reference."""
    return home_directory("reference")


@torch.no_grad()
def _computed(model: CausalLM, rows: list[Row], settings: UpdateConfig, world: World) -> list[float]:
    sequences = stacked(rows, world)
    sums = torch.zeros(len(rows))
    for some in world.sharding.evened(whole_units(sequences, 1, settings, model), model):
        sums[some.cpu()] = summed_logprobs(model, sequences, some, 1, settings, world.device)[0].float().cpu()
    return sums.tolist()


def _digest(name: str, rows: Sequence[Row], device: str) -> str:
    content = hashlib.sha256(f"{name} {device} {len(rows)}".encode())
    for row in rows:
        content.update(repr(row.tokens).encode() + bytes(row.mask))
    return content.hexdigest()


def _read(path: Path, count: int) -> list[float] | None:
    """The cached log-probs; None if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            kept, checksum = file.get_tensor(LOGPROBS), (file.metadata() or {}).get(CHECKSUM)
    except (OSError, SafetensorError):
        return None
    is_intact = kept.shape == (count,) and kept.dtype == torch.float32 and checksum == _checksum(path, kept)
    return kept.tolist() if is_intact else None


def _write(path: Path, found: Sequence[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logprobs = torch.tensor(found, dtype=torch.float32)
    write_atomic(path, save({LOGPROBS: logprobs}, metadata={CHECKSUM: _checksum(path, logprobs)}))


def _checksum(path: Path, logprobs: Tensor) -> str:
    """SHA-256 of the numbers and of the file's name, which is the hash of model and rows."""
    return hashlib.sha256(path.stem.encode() + logprobs.contiguous().numpy().tobytes()).hexdigest()
