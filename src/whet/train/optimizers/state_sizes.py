"""Bytes of an optimizer's state, in memory and in checkpoints. Imports no torch."""

STATE_BYTES = {
    "adamw": 8,
    "adamw_bf16": 4,
    "adamw_8bit": 2,
    "lion": 4,
    "muon": 8,
}  # per weight; muon: half for hidden matrices
MOMENTS = {"lion": 1}  # per weight, where it is not two; muon: one for hidden matrices
BLOCK = 256  # numbers that share a scale, where moments are saved in 8 bits
SCALE_BYTES = 4


def moment_bytes(optimizer: str) -> int:
    """Bytes of one moment of one weight, as the optimizer keeps it."""
    return STATE_BYTES[optimizer] // moments_per_weight(optimizer)


def moments_per_weight(optimizer: str) -> int:
    return MOMENTS.get(optimizer, 2)


def saved_moment_bytes(kept: int, how: str) -> float:
    """Bytes in a checkpoint of a moment that takes `kept` in memory; `how` is `save.optimizer`."""
    sizes = {"exact": kept, "bf16": 2, "8bit": 1 + SCALE_BYTES / BLOCK, "none": 0}
    return min(kept, sizes[how])
