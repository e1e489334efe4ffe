"""Safetensors files written one tensor at a time, as the same bytes that safetensors itself writes.

The size of every tensor is known before its numbers are: so a model that is spread over processes is saved with one
whole tensor in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

Whole = Callable[[Tensor], Tensor]  # the whole of a tensor that may be spread over processes
Named = Iterator[tuple[str, Tensor]]
Items = Callable[[Whole], Named]  # named tensors, each made of whole ones

# Names of dtypes in a header, largest first as safetensors orders them.
DTYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
ALIGNMENT = 8  # bytes, of the end of the header


def as_it_is(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is spread over nothing."""
    return tensor


def shape_of(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and dtype without numbers."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def has_any(items: Items) -> bool:
    """Whether there is a tensor."""
    return next(items(shape_of), None) is not None


def write_items(path: Path | None, items: Items, whole: Whole = as_it_is) -> None:
    """Writes named tensors as they are made, one whole tensor in memory at a time.

    Every process that shares them calls it; those that write nothing name no file.
    """
    if path is None:
        for _ in items(whole):
            pass
        return
    with closing(TensorFile(path, dict(items(shape_of)))) as file:
        for name, tensor in items(whole):
            file.write(name, tensor)
        file.require_all()


class TensorFile:
    """One file of tensors with these shapes and dtypes, which are written in any order."""

    def __init__(self, path: Path, shapes: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        order = list(DTYPES)
        header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
        self._begins: dict[str, int] = {}
        end = 0
        for name in sorted(shapes, key=lambda name: (order.index(shapes[name].dtype), name)):
            one, begin = shapes[name], end
            end += one.numel() * one.element_size()
            self._begins[name] = begin
            header[name] = {"dtype": DTYPES[one.dtype], "shape": list(one.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        self._shapes, self._missing, self._path = dict(shapes), set(shapes), path
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._start = self._file.tell()

    def write(self, name: str, tensor: Tensor) -> None:
        """Writes one of the tensors at its place."""
        one = self._shapes[name]
        assert (tensor.shape, tensor.dtype) == (one.shape, one.dtype), f"{name}: {tensor.shape} of {tensor.dtype}"
        plain = tensor.detach().cpu().contiguous()
        self._file.seek(self._start + self._begins[name])
        self._file.write(plain.reshape(-1).view(torch.uint8).numpy().data)
        self._missing.discard(name)

    def require_all(self) -> None:
        """Fails if a tensor was not written."""
        assert not self._missing, f"{self._path} lacks {sorted(self._missing)}"

    def close(self) -> None:
        self._file.close()


class StoredItems(Mapping[str, Tensor]):
    """The tensors of a file, each read when it is asked for; none if there is no file."""

    def __init__(self, path: Path) -> None:
        self._file: Any = _opened(path) if path.exists() else None
        self._names: dict[str, None] = {} if self._file is None else dict.fromkeys(sorted(self._file.keys()))

    def __enter__(self) -> StoredItems:
        if self._file is not None:
            self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.__exit__(*error)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor.clone()  # the file may be replaced while the tensor is in use

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _opened(path: Path) -> Any:
    return safe_open(path, framework="pt")
