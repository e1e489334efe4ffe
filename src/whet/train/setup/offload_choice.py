"""What is offloaded to host memory while it is not in use. Imports no torch: `whet plan` asks too."""

from collections.abc import Mapping

ROOM = 0.6  # of GPU memory for weights, gradients and moments; the rest is for activations and KV cache
MOST_WILLING = ("reward", "reference", "optimizer", "critic")  # in this order: frozen weights need no copy back


def to_offload(wanted: Mapping[str, str], sizes: Mapping[str, int], *, resident: int, memory: float) -> frozenset[str]:
    """What to offload: all set to `always`, then `auto` ones until the rest fits.

    `wanted` has never, auto or always for each name; `sizes`, `resident` (what cannot be offloaded) and `memory` are in
    bytes; `sizes` lists the models of this run.
    """
    away = {name for name in sizes if wanted[name] == "always"}
    for name in MOST_WILLING:
        staying = sum(size for other, size in sizes.items() if other not in away)
        if resident + staying <= ROOM * memory:
            break
        if name in sizes and wanted[name] == "auto":
            away.add(name)
    return frozenset(away)
