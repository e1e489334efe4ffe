"""Which layers get an adapter, by name. Imports no torch: `whet plan` counts them too."""

import re
from collections.abc import Iterable, Sequence

from whet.errors import UserError

ALL_LINEAR = "all-linear"  # every linear layer but the LM head
HEADS = ("lm_head", "embed_out", "score", "classifier", "head")  # never adapted: they end in logits or scores


def chosen(names: Sequence[str], targets: str | Sequence[str]) -> list[str]:
    """`targeted` by the names of all linear layers."""
    linear = [name for name in names if name.rpartition(".")[2] not in HEADS]
    if isinstance(targets, str) and any(_is_called(name, targets) for name in linear):
        targets = (targets,)
    if targets == ALL_LINEAR:
        found = linear
    elif isinstance(targets, str):
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise UserError(
                f"{targets!r} is no regular expression ({error}): name layers, as in [q_proj, v_proj]"
            ) from None
        found = [name for name in linear if pattern.fullmatch(name)]
    else:
        unknown = [one for one in targets if not any(_is_called(name, one) for name in linear)]
        if unknown:
            raise UserError(f"the model has no linear layer {unknown[0]!r}: it has {_leaves(linear)}")
        found = [name for name in linear if any(_is_called(name, one) for one in targets)]
    if not found:
        raise UserError(f"{targets!r} matches no linear layer of the model: it has {_leaves(linear)}")
    return found


def refuse_rank(rank: int, shapes: Iterable[Sequence[int]]) -> None:
    """Refuses a rank that none of the adapted matrices, of these rows and columns, can have."""
    most = max(map(min, shapes))
    if rank > most:
        raise UserError(
            f"model.lora.rank is {rank}, and the shorter side of every adapted matrix is {most} or less, so that no "
            f"change of it has a higher rank: lower it to {most}"
        )


def _is_called(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _leaves(names: Sequence[str]) -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in names})) or "none that can be adapted"
