"""Which layers get an adapter, by name. Imports no torch: `whet plan` counts them too."""

import re
from collections.abc import Iterable, Sequence

from whet.errors import UserError

ALL_LINEAR = "all-linear"  # every linear layer but the LM head
# Names of Phi-3's and GPT-2's layers in checkpoints, and so in PEFT → ours that they hold.
STORED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "c_attn": ("q_proj", "k_proj", "v_proj"),
    "c_proj": ("o_proj", "down_proj"),
    "c_fc": ("up_proj",),
}
HEADS = ("lm_head", "embed_out", "score", "classifier", "head")  # never adapted: they end in logits or scores


def chosen(names: Sequence[str], targets: str | Sequence[str]) -> list[str]:
    """`targeted` by the names of all linear layers. A name of a checkpoint stands for all of ours that it holds."""
    linear = [name for name in names if name.rpartition(".")[2] not in HEADS]
    if isinstance(targets, str) and any(_is_meant(name, targets) for name in linear):
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
        _refuse_stored_names(targets, linear)
    else:
        unknown = [one for one in targets if not any(_is_meant(name, one) for name in linear)]
        if unknown:
            raise UserError(f"the model has no linear layer {unknown[0]!r}: it has {_leaves(linear)}")
        found = [name for name in linear if any(_is_meant(name, one) for one in targets)]
    if not found:
        raise UserError(f"{targets!r} matches no linear layer of the model: it has {_leaves(linear)}")
    return found


def _refuse_stored_names(pattern: str, linear: Sequence[str]) -> None:
    """An expression that names layers of a checkpoint: it would match the others alone."""
    leaves = {name.rpartition(".")[2] for name in linear}
    named = next((one for one in STORED if re.search(rf"(?<![a-z_]){one}", pattern) and one not in leaves), None)
    if named is not None and leaves.issuperset(STORED[named]):
        raise UserError(
            f"{pattern!r:.80} names {named!r}, and a regular expression is matched with whet's names of layers: "
            f"write {', '.join(STORED[named])} in its place"
        )


def _is_meant(name: str, target: str) -> bool:
    """Whether a layer is called so, or is held by a checkpoint's layer that is."""
    parent, _, leaf = target.rpartition(".")
    parts = STORED.get(leaf, ())
    return _is_called(name, target) or any(_is_called(name, f"{parent}.{part}" if parent else part) for part in parts)


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
