"""Copies of a block's matrices, those with the same input joined, for the passes that read each weight once.

Letters: D width, M width of the MLP, Q = heads · dim, KV = kv_heads · dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.models.adapters.lora import LoRALinear


@dataclass(frozen=True, slots=True)
class Joined:
    """A block's matrices in the dtype of its products, those with the same input joined."""

    qkv: Tensor  # (Q + 2 · KV, D)
    qkv_bias: Tensor | None  # (Q + 2 · KV,)
    out: Tensor  # (D, Q)
    gate_up: Tensor  # (2 · M, D); (M, D) without a gate
    down: Tensor  # (D, M)
    sizes: list[int]  # [Q, KV, KV]: rows of queries, keys and values in `qkv`

    @classmethod
    def of(cls, matrices: Sequence[Any], dtype: torch.dtype) -> Joined:
        """Copies of `Block.matrices`."""
        q, k, v, q_bias, k_bias, v_bias, out, gate, up, down = matrices

        def joined(*weights: Tensor) -> Tensor:
            return torch.cat([weight.detach().to(dtype) for weight in weights])

        return cls(
            qkv=joined(q, k, v),
            qkv_bias=None if q_bias is None else joined(q_bias, k_bias, v_bias),
            out=joined(out),
            gate_up=joined(up) if gate is None else joined(gate, up),
            down=joined(down),
            sizes=[len(q), len(k), len(v)],
        )

    def products(self) -> list[Tensor | None]:
        """Views of the matrices of q, k, v, out, gate (None without one), up and down."""
        gates = torch.split(self.gate_up, self.down.shape[1])
        return [*torch.split(self.qkv, self.sizes), self.out, *([None] if len(gates) == 1 else []), *gates, self.down]

    def parts(self) -> list[Tensor]:
        """Views of the joined matrices, in the order of `Block.matrices`, without absent ones."""
        biases = [] if self.qkv_bias is None else torch.split(self.qkv_bias, self.sizes)
        gates = torch.split(self.gate_up, self.down.shape[1])
        return [*torch.split(self.qkv, self.sizes), *biases, self.out, *gates, self.down]


class JoinedWeights:
    """Joined copies of the blocks, one set per dtype, shared by the training pass and the native engine.

    They are filled again at every use: nothing signals that a weight has changed (fused AdamW leaves a tensor's
    `_version` alone). Of a model with adapters the copies hold W + s·B·A. Only the adapters change there, and they are
    small: they are compared with those that were folded in last.
    """

    def __init__(self) -> None:
        self._copies: dict[torch.dtype, list[Joined]] = {}
        self._folded: dict[torch.dtype, Tensor] = {}  # all A and B in the copies; empty: the base alone

    def __deepcopy__(self, memo: dict[int, Any]) -> JoinedWeights:
        """Empty: a copy is filled when it is used."""
        return JoinedWeights()

    def clear(self) -> None:
        """Frees the copies; the next use makes them again, at other addresses."""
        self._copies, self._folded = {}, {}

    @torch.no_grad()
    def refreshed(self, blocks: Sequence[Any], dtype: torch.dtype) -> list[Joined]:
        """The copies of all blocks with the weights of now, in the same memory as before."""
        matrices = [block.matrices() for block in blocks]
        adapted = [block.adapters() for block in blocks]
        if any(layer is not None for layers in adapted for layer in layers):
            return self._with_adapters(matrices, adapted, dtype)
        copies = self._copies.get(dtype)
        if copies is None or copies[0].out.device != matrices[0][6].device:
            copies = [Joined.of(some, dtype) for some in matrices]
        if dtype is matrices[0][6].dtype:  # a matrix that is not joined with another needs no copy
            pairs = zip(copies, matrices, strict=True)
            copies = [replace(half, out=some[6].detach(), down=some[9].detach()) for half, some in pairs]
        targets = [part for half in copies for part in half.parts()]
        sources = [tensor for some in matrices for tensor in some if tensor is not None]
        copied = [pair for pair in zip(targets, sources, strict=True) if pair[0].data_ptr() != pair[1].data_ptr()]
        torch._foreach_copy_([target for target, _ in copied], [source for _, source in copied])
        self._copies[dtype] = copies
        return copies

    def _with_adapters(
        self, matrices: Sequence[Sequence[Any]], adapted: Sequence[Sequence[LoRALinear | None]], dtype: torch.dtype
    ) -> list[Joined]:
        """The copies of frozen blocks, with the adapters of now folded in."""
        layers = [layer for some in adapted for layer in some if layer is not None]
        device, copies = layers[0].weight.device, self._copies.get(dtype)
        if copies is None or copies[0].out.device != device:
            self._folded.pop(dtype, None)
            copies = [Joined.of(some, dtype) for some in matrices]
        now = torch.cat(
            [one.detach().flatten() for layer in layers if layer.is_on for one in (layer.lora_A, layer.lora_B)]
            or [torch.empty(0, device=device)]
        )
        known = self._folded.get(dtype)
        if known is None or not torch.equal(known, now):
            self._folded.pop(dtype, None)  # if folding fails half-way, nothing counts as folded
            generator = torch.Generator(device).manual_seed(0)  # the same weights are rounded alike
            for joined, some in zip(copies, adapted, strict=True):
                for target, layer in zip(joined.products(), some, strict=True):
                    if layer is not None:
                        assert target is not None
                        layer.fold_into(target, generator)
            self._folded[dtype] = now
        self._copies[dtype] = copies
        return copies
