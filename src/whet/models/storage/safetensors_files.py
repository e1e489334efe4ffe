"""Reading, checking and writing of Hugging Face safetensors directories. Nothing is ever unpickled."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import RunFailed, UserError
from whet.files import read_object
from whet.models.storage.rounding import rounded
from whet.models.storage.tensor_file import TensorFile

SINGLE = "model.safetensors"
LARGEST_HEADER = 2**25  # bytes, about a hundred for each tensor
FILE_MODE = 0o644  # safetensors itself writes files that only their owner can read
INDEX = "model.safetensors.index.json"
SHARD = "model-{:05d}-of-{:05d}.safetensors"
SHARD_BYTES = 5 * 10**9  # as in transformers
CONFIG = "config.json"
READABLE = ("F64", "F32", "F16", "BF16")  # any other dtype is quantised and cannot be trained


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint: its file, and its shape and dtype from the file's header."""

    file: Path
    name: str  # in the file
    shape: tuple[int, ...]
    dtype: str  # as safetensors spells it: "BF16"


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint, from file headers alone; for shards, as the index assigns them."""
    tensors: dict[str, StoredTensor] = {}
    homes = {} if (directory / SINGLE).is_file() or not (directory / INDEX).is_file() else _weight_map(directory)
    for file in weight_files(directory):
        if not file.exists():
            raise UserError(f"{file} is missing, but {directory / INDEX} lists it: copy it there")
        for name, tensor in stored_in(file).items():
            if homes.get(name, file.name) != file.name:
                continue
            if name in tensors:
                first = tensors[name].file.name
                raise UserError(f"{directory} has tensor {name!r} twice, in {first} and {file.name}: remove one")
            tensors[name] = tensor
    return tensors


def stored_in(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of one safetensors file, from its header alone."""
    try:
        _check_header(file)
        with safe_open(file, framework="pt") as handle:
            parts = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118 (not a mapping)
            return {name: StoredTensor(file, name, tuple(p.get_shape()), p.get_dtype()) for name, p in parts.items()}
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing: copy it there") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged or truncated ({error}): copy it again") from error


def _check_header(file: Path) -> None:
    """Bounds the header, which is read into memory; the file's first eight bytes are its length."""
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is no regular file: copy the model again")
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
    if LARGEST_HEADER < length <= file.stat().st_size:  # a longer one is reported as damage
        raise UserError(f"{file} has a header of {length} bytes, more than {LARGEST_HEADER}: save the weights again")


def weight_files(directory: Path) -> list[Path]:
    """The one file or the shards that hold the weights."""
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if (directory / INDEX).is_file():
        return [directory / name for name in sorted(set(_weight_map(directory).values()))]
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if pickled:
        raise UserError(
            f"{directory} has only pickled weights ({pickled[0]}), which can run code: convert them to safetensors"
        )
    raise UserError(f"{directory} has no weights: expected {SINGLE} or {INDEX}")


def _weight_map(directory: Path) -> dict[str, str]:
    """Tensor name → shard file."""
    names = read_object(directory / INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) and _is_plain(n) for n in names.values()):
        raise UserError(f"{directory / INDEX} has no weight_map of file names: copy the file again")
    return names


def _is_plain(name: str) -> bool:
    """Whether it names a file in the directory itself."""
    return Path(name).name == name and name not in ("", "..") and "\0" not in name


def one_spelling(
    stored: Mapping[str, StoredTensor], spell: Callable[[str], str | None], directory: Path
) -> dict[str, StoredTensor]:
    """The tensors under the canonical names of `spell`, without those it maps to None; refuses duplicates."""
    spelled: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        canonical = spell(name)
        if canonical is None:
            continue
        if canonical in spelled:
            first = spelled[canonical].name
            raise UserError(f"{directory} has the same tensor as {first!r} and as {name!r}: remove one")
        spelled[canonical] = tensor
    return spelled


def check_tensors(stored: Mapping[str, StoredTensor], expected: Mapping[str, Tensor], directory: Path) -> None:
    """Refuses a checkpoint whose names or shapes differ from the expected ones; names the first difference."""
    missing, unexpected = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    if missing:
        raise UserError(f"{directory} lacks tensor {missing[0]!r}{_others(missing)}: does config.json belong to it?")
    if unexpected:
        raise UserError(
            f"{directory} has an unexpected tensor {unexpected[0]!r}{_others(unexpected)}: "
            "does config.json belong to it?"
        )
    for name, tensor in expected.items():
        shape = tuple(tensor.shape)
        if stored[name].shape != shape:
            raise UserError(f"{directory}: tensor {name!r} has shape {stored[name].shape}, config.json implies {shape}")


def read_tensors(
    stored: Mapping[str, StoredTensor], *, keep_bf16: bool = False, mapped: bool = False
) -> dict[str, Tensor]:
    """The tensors in fp32, copied: the files may be replaced while the model is in use.

    With `keep_bf16` matrices that are stored in bf16 stay so, for models that are frozen. With `mapped` tensors are as
    stored, in memory that maps the files: processes share it, and what is not read takes none.
    """
    by_file: dict[Path, list[str]] = {}
    for name, tensor in stored.items():
        if tensor.dtype not in READABLE:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name!r} is {tensor.dtype}: only fp32, fp16 and bf16 can be trained"
            )
        by_file.setdefault(tensor.file, []).append(name)
    tensors: dict[str, Tensor] = {}
    for file, names in by_file.items():
        try:
            with safe_open(file, framework="pt") as handle:
                for name in names:
                    is_kept = keep_bf16 and stored[name].dtype == "BF16" and len(stored[name].shape) > 1
                    dtype = torch.bfloat16 if is_kept else torch.float32
                    read: Tensor = handle.get_tensor(stored[name].name)
                    as_stored = mapped and read.dtype is not torch.float64
                    tensors[name] = read if as_stored else read.to(dtype, copy=True)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is damaged or truncated ({error}): copy it again") from error
    return tensors


def write_model(
    directory: Path | None,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None = torch.float32,
    pieces: Iterable[tuple[str, Tensor]] | None = None,
) -> None:
    """Writes the weights, then config.json, into an existing directory; fp32 weights are rounded to `dtype`.

    Without one every tensor is written as it is. Of a model that is spread over processes `tensors` have its shapes
    alone and `pieces` the whole tensors, in any order; a process that writes nothing names no directory.

    They are one file, model.safetensors; above SHARD_BYTES several with an index, as transformers has them. One tensor
    is copied at a time.
    """
    pieces = tensors.items() if pieces is None else pieces
    if directory is None:
        for _ in pieces:
            pass
        return
    if dtype not in (None, torch.float32):
        name = str(dtype).removeprefix("torch.")
        config = {**config, "dtype": name, "torch_dtype": name}
    shapes = {name: torch.empty(t.shape, dtype=dtype or t.dtype, device="meta") for name, t in tensors.items()}
    shards = _shards({name: _size(shape) for name, shape in shapes.items()})
    homes: dict[str, str] = {}
    try:
        with ExitStack() as stack:
            files: dict[str, TensorFile] = {}
            for number, names in enumerate(shards, start=1):
                file = SINGLE if len(shards) == 1 else SHARD.format(number, len(shards))
                own = {name: shapes[name] for name in names}
                files[file] = stack.enter_context(closing(TensorFile(directory / file, own, {"format": "pt"})))
                (directory / file).chmod(FILE_MODE)
                homes |= dict.fromkeys(names, file)
            for name, tensor in pieces:
                files[homes[name]].write(name, rounded(name, tensor, dtype or tensor.dtype))
            for one in files.values():
                one.require_all()
        if len(shards) > 1:
            index = {"metadata": {"total_size": sum(map(_size, shapes.values()))}, "weight_map": homes}
            (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{directory}: the model cannot be saved ({error})") from error


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shards(sizes: Mapping[str, int]) -> list[list[str]]:
    """The tensors in order, in shards of at most SHARD_BYTES; a larger tensor has one of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


class HasStateDict(Protocol):
    """A model with named weights."""

    def state_dict(self) -> dict[str, Any]: ...


def fingerprint(model: HasStateDict) -> str:
    """The sha256 of names, shapes, dtypes and bytes of all weights; bf16 and fp16 count as fp32 of the same value."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}\n".encode())
        digest.update(plain.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
