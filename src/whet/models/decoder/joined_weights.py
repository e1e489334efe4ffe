"""A block's matrices, those with the same input joined, for the passes that read each weight once.

Letters: D width, M width of the MLP, Q = heads · dim, KV = kv_heads · dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whet.models.adapters.lora import LoRALinear
from whet.models.adapters.nf4 import Matrix, NF4Matrix, dense

BIASES = (3, 4, 5)  # of queries, keys and values, among `Block.matrices`


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
    @torch.no_grad()
    def of(
        cls, matrices: Sequence[Any], dtype: torch.dtype, adapted: Sequence[LoRALinear | None] = (None,) * 7
    ) -> Joined:
        """Copies of `Block.matrices`; the places of adapted ones are empty, for `fold`."""
        q, k, v, q_bias, k_bias, v_bias, out, gate, up, down = matrices

        def room(*weights: Matrix) -> Tensor:
            rows = sum(len(weight) for weight in weights)
            return torch.empty(rows, weights[0].shape[1], dtype=dtype, device=weights[0].device)

        made = cls(
            qkv=room(q, k, v),
            qkv_bias=None if q_bias is None else torch.cat([q_bias, k_bias, v_bias]).to(dtype),
            out=room(out),
            gate_up=room(up) if gate is None else room(gate, up),
            down=room(down),
            sizes=[len(q), len(k), len(v)],
        )
        for target, weight, layer in zip(made.products(), (q, k, v, out, gate, up, down), adapted, strict=True):
            if target is not None and layer is None:
                target.copy_(dense(weight))
        return made

    def fold(self, adapted: Sequence[LoRALinear | None], *, seed: int) -> None:
        """Writes W + s·B·A of the adapted matrices; `seed` is that of their rounding, by the block's index.

        The same weights are rounded alike, in whatever order the blocks are folded.
        """
        generator = torch.Generator(self.out.device).manual_seed(seed)
        for target, layer in zip(self.products(), adapted, strict=True):
            if layer is not None:
                assert target is not None
                layer.fold_into(target, generator)

    @classmethod
    @torch.no_grad()
    def shared(cls, matrices: Sequence[Any]) -> Joined:
        """`Block.matrices` become views of the joined tensors, so that there is one copy of them."""
        q, k, v, _, _, _, out, gate, up, down = matrices
        joined = []
        for parts in ((q, k, v), (up,) if gate is None else (gate, up)):
            whole = torch.cat([part.detach() for part in parts])
            for part, view in zip(parts, torch.split(whole, [len(part) for part in parts]), strict=True):
                part.data = view
            joined.append(whole)
        biases = [bias.detach().to(q.dtype) for bias in matrices[3:6] if bias is not None]
        return cls(
            qkv=joined[0],
            qkv_bias=torch.cat(biases) if biases else None,
            out=out.detach(),
            gate_up=joined[1],
            down=down.detach(),
            sizes=[len(q), len(k), len(v)],
        )

    def holds(self, matrices: Sequence[Any]) -> bool:
        """Whether these matrices are views of the joined tensors."""
        tensors = [tensor for number, tensor in enumerate(matrices) if tensor is not None and number not in BIASES]
        views = [view for view in self.products() if view is not None]
        return all(one.data_ptr() == other.data_ptr() for one, other in zip(views, tensors, strict=True))

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
    small: they are compared with those that were folded in last. Weights in bf16 become views of their joined tensors:
    trainer, optimizer and sampler then read and write one copy. Of a quantised model the copies of all blocks exist
    only while it samples; a training pass makes those of one block at a time, as of a model that is spread.
    """

    def __init__(self, *, one_block: bool = False) -> None:
        """`one_block`: packed passes keep the copy of one block at a time, as of a quantised model."""
        self.one_block = one_block
        self.are_spread = False  # blocks over several processes: each is whole only while it computes
        self._copies: dict[torch.dtype, list[Joined]] = {}
        self._folded: dict[torch.dtype, Tensor] = {}  # all A and B in the copies; empty: the base alone

    def __deepcopy__(self, memo: dict[int, Any]) -> JoinedWeights:
        """Empty: a copy is filled when it is used."""
        return JoinedWeights()

    def clear(self) -> None:
        """Frees the copies; the next use makes them again, at other addresses."""
        self._copies, self._folded = {}, {}

    def release(self, blocks: Sequence[Any]) -> bool:
        """Frees the copies of a quantised model after it has sampled; whether it is one."""
        is_quantized = _is_quantized(blocks)
        if is_quantized:
            self.clear()
        return is_quantized

    def by_block(self, blocks: Sequence[Any], dtype: torch.dtype) -> list[Callable[[], Joined]]:
        """For a packed pass: what gives each block its copy when the pass enters it, forwards and backwards.

        The copy of a quantised or spread block is freed when the next one is made, and made again by the backward pass.
        No weight changes between a forward pass and its backward pass.
        """
        if not (self.one_block or self.are_spread or _is_quantized(blocks)):
            return [partial(_given, joined) for joined in self.refreshed(blocks, dtype)]
        newest: dict[int, Joined] = {}

        def made(index: int) -> Joined:
            if index not in newest:
                newest.clear()
                adapted = blocks[index].adapters()
                joined = Joined.of(blocks[index].matrices(), dtype, adapted)
                joined.fold(adapted, seed=index)
                newest[index] = joined
            return newest[index]

        return [partial(made, index) for index in range(len(blocks))]

    @torch.no_grad()
    def refreshed(self, blocks: Sequence[Any], dtype: torch.dtype) -> list[Joined]:
        """The copies of all blocks with the weights of now, in the same memory as before."""
        matrices = [block.matrices() for block in blocks]
        adapted = [block.adapters() for block in blocks]
        if any(layer is not None for layers in adapted for layer in layers):
            return self._with_adapters(matrices, adapted, dtype)
        copies = self._copies.get(dtype)
        if dtype is torch.bfloat16 and dtype is matrices[0][6].dtype:
            return self._shared(matrices)
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

    def _shared(self, matrices: Sequence[Sequence[Any]]) -> list[Joined]:
        """The joined tensors that bf16 weights are views of; weights that were moved are joined again."""
        known: Sequence[Joined | None] = self._copies.pop(torch.bfloat16, [None] * len(matrices))
        self._copies[torch.bfloat16] = copies = [
            joined if joined is not None and joined.holds(some) else Joined.shared(some)
            for joined, some in zip(known, matrices, strict=True)
        ]
        for joined, some in zip(copies, matrices, strict=True):
            if joined.qkv_bias is not None:  # biases are in fp32
                joined.qkv_bias.copy_(torch.cat([some[number].detach() for number in BIASES]))
        return copies

    def _with_adapters(
        self, matrices: Sequence[Sequence[Any]], adapted: Sequence[Sequence[LoRALinear | None]], dtype: torch.dtype
    ) -> list[Joined]:
        """The copies of frozen blocks, with the adapters of now folded in."""
        layers = [layer for some in adapted for layer in some if layer is not None]
        device, copies = layers[0].weight.device, self._copies.get(dtype)
        if copies is None or copies[0].out.device != device:
            self._folded.pop(dtype, None)
            copies = [Joined.of(some, dtype, beside) for some, beside in zip(matrices, adapted, strict=True)]
        now = torch.cat(
            [one.detach().flatten() for layer in layers if layer.is_on for one in (layer.lora_A, layer.lora_B)]
            or [torch.empty(0, device=device)]
        )
        known = self._folded.get(dtype)
        if known is None or not torch.equal(known, now):
            self._folded.pop(dtype, None)  # if folding fails half-way, nothing counts as folded
            for index, (joined, some) in enumerate(zip(copies, adapted, strict=True)):
                joined.fold(some, seed=index)
            self._folded[dtype] = now
        self._copies[dtype] = copies
        return copies


def _is_quantized(blocks: Sequence[Any]) -> bool:
    """Whether the matrices of these blocks are in NF4: then all of them are."""
    return any(isinstance(module, NF4Matrix) for module in blocks[0].modules())


def _given(joined: Joined) -> Joined:
    return joined
