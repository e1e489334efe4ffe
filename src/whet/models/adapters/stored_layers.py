"""Adapters of layers that a checkpoint stores as one, as Phi-3's qkv_proj holds q_proj, k_proj and v_proj by rows.

PEFT has one adapter for a stored layer. That of parts with adapters of their own is exact: A has the rows of all their
A, B is block-diagonal, and the rank is the sum of theirs. A part without an adapter has no columns. The other way round
every part of a stored layer has its A, and of B the rows that are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from whet.errors import UserError
from whet.models.adapters.lora import LoRALinear
from whet.models.adapters.nf4 import NF4Linear
from whet.models.adapters.peft_files import AdapterFiles

Linear = nn.Linear | NF4Linear | LoRALinear
Pair = tuple[Tensor, Tensor]  # A and B
StoredLayer = Callable[[str], str]  # our name of a linear layer → that of the checkpoint's layer that holds it


def parts_by_layer(model: nn.Module, stored_layer: StoredLayer) -> dict[str, dict[str, Linear]]:
    """The linear layers of a checkpoint, each with ours in the order of its rows, which is that of the model."""
    found: dict[str, dict[str, Linear]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Linear):
            found.setdefault(stored_layer(name), {})[name] = layer
    return found


def joined_pair(parts: Iterable[Linear]) -> Pair:
    """One adapter in place of those of the parts, of which one or more have one."""
    layers = list(parts)
    adapted = [layer for layer in layers if isinstance(layer, LoRALinear)]
    if len(layers) == 1:
        return adapted[0].lora_A.detach(), adapted[0].lora_B.detach()
    rows, columns = _slices(_rows(layers)), _slices(_ranks(layers))
    b = adapted[0].lora_B.new_zeros(rows[-1].stop, columns[-1].stop)
    for layer, own_rows, own_columns in zip(layers, rows, columns, strict=True):
        if isinstance(layer, LoRALinear):
            b[own_rows, own_columns] = layer.lora_B.detach()
    return torch.cat([layer.lora_A.detach() for layer in adapted]), b


def separate_pairs(pair: Pair, parts: Mapping[str, Linear]) -> dict[str, Pair]:
    """What `joined_pair` made one of, by the names of the parts with adapters; nothing if the sizes are others."""
    a, b = pair
    rows, ranks = _rows(parts.values()), _ranks(parts.values())
    if len(a) != sum(ranks) or tuple(b.shape) != (sum(rows), sum(ranks)):
        return {}
    places = zip(parts, _slices(rows), _slices(ranks), strict=True)
    found = {name: (a[own_columns], b[own_rows, own_columns]) for name, own_rows, own_columns in places}
    return {name: own for name, own in found.items() if len(own[0])}


def in_parts(files: AdapterFiles, model: nn.Module, stored_layer: StoredLayer) -> AdapterFiles:
    """An adapter of stored layers as one of ours; `model` is the plain one that it is for."""
    layers = parts_by_layer(model, stored_layer)
    ours = {name for parts in layers.values() for name in parts}
    pairs: dict[str, Pair] = {}
    scales: dict[str, float] = {}
    for stored, pair in files.pairs.items():
        if stored in ours and stored not in layers:
            raise UserError(
                f"{files.directory} adapts {stored!r}, which {files.base} stores in one matrix with others: is it "
                "another base model?"
            )
        # What is neither stays, and is refused where it is looked for.
        for name, own in _shares(files, stored, pair, layers.get(stored, {})).items():
            pairs[name], scales[name] = own, files.scales[stored]
    return replace(files, pairs=pairs, scales=scales)


def _shares(files: AdapterFiles, stored: str, pair: Pair, parts: Mapping[str, Linear]) -> dict[str, Pair]:
    """What an adapter changes in each part."""
    if len(parts) < 2:
        return dict.fromkeys(parts or (stored,), pair)
    (a, b), rows = pair, _rows(parts.values())
    if len(b) != sum(rows):
        columns = next(iter(parts.values())).in_features
        raise UserError(
            f"{files.directory}: the adapter of {stored!r} is for a matrix of {len(b)} × {a.shape[1]}, and that of "
            f"{files.base} has {sum(rows)} × {columns}: is it another base model?"
        )
    found = {name: _without_zeros(a, b[own]) for name, own in zip(parts, _slices(rows), strict=True)}
    return {name: own for name, own in found.items() if len(own[0])}


def _without_zeros(a: Tensor, b: Tensor) -> Pair:
    """The same product without the columns of B that are zero; where A is not finite they stay, to be refused."""
    kept = b.any(dim=0) | ~a.isfinite().all(dim=1)
    return a[kept], b[:, kept]


def _rows(layers: Iterable[Linear]) -> list[int]:
    return [layer.out_features for layer in layers]


def _ranks(layers: Iterable[Linear]) -> list[int]:
    return [len(layer.lora_A) if isinstance(layer, LoRALinear) else 0 for layer in layers]


def _slices(sizes: list[int]) -> list[slice]:
    """Consecutive ones of these sizes."""
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
