"""`whet models export`: a model with its tokeniser as one GGUF file, which llama.cpp and what is built on it load."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.errors import RunFailed, UserError
from whet.imports import optional_package
from whet.manifests import sync_file
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.peft_files import read_adapter
from whet.models.decoder.decoder import Decoder
from whet.models.download.model_hub import BEST_MODEL, CHECKPOINT_MODEL, resolve_model
from whet.models.export.gguf_layout import (
    IN_FULL,
    Architecture,
    StoredAs,
    architecture_of,
    refuse_family,
    shape_settings,
    stored_tensors,
)
from whet.models.export.gguf_vocabulary import vocabulary
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.load import load_model, model_summary
from whet.models.model_shape import base_directory, covered, read_config
from whet.models.model_tokenizer import model_tokenizer
from whet.models.storage.rounding import rounded
from whet.models.storage.safetensors_files import CONFIG
from whet.models.text.tokenizers import HuggingFaceTokenizer

WRITING = "writing GGUF files"
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # `general.file_type`
STORED = {"bfloat16": "bf16", "float16": "f16"}
ROUNDED = {"f16": torch.float16, "bf16": torch.bfloat16}
Q8_BLOCK = 32  # weights of a row that share a scale
Q8_LARGEST = 127  # of a weight, in units of its scale
QUANTIZATION_VERSION = 2
LARGEST_F16 = 65504.0


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written."""

    path: Path
    bytes: int
    type: str
    architecture: str
    vocabulary: str  # tokenizer.ggml.model/tokenizer.ggml.pre
    notes: tuple[str, ...]


def export_gguf(model: str, file: Path, *, type_: str = "auto", overwrite: bool = False) -> Exported:
    """Writes a model directory, the best model of a run or a merged adapter as a GGUF file.

    The file is written under another name and renamed, so that it is complete or absent.
    """
    gguf = optional_package("gguf", WRITING)
    if type_ != "auto" and type_ not in FILE_TYPES:
        raise UserError(f"--type is {type_!r}: expected auto, {', '.join(FILE_TYPES)}")
    source = resolve_model(model)
    _check_target(file, overwrite=overwrite)
    if is_adapter(source) and read_adapter(source).is_reward:
        raise UserError(f"{source} is the adapter of a reward model, and only a language model becomes GGUF")
    hf, architecture, config = _described(base_directory(source) if is_adapter(source) else source)
    tokenizer = model_tokenizer(source)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    words = vocabulary(tokenizer, hf, rows=config.vocab_size, model_name=_name(source))
    kind = STORED.get(str(model_summary(source)["dtype"]), "f32") if type_ == "auto" else type_
    settings = {
        "general.type": "model",
        "general.name": words.model_name,
        "general.file_type": FILE_TYPES[kind],
        **({"general.quantization_version": QUANTIZATION_VERSION} if kind == "q8_0" else {}),
        **shape_settings(architecture, config),
        **words.settings,
    }
    decoder = load_model(source, keep_bf16=True)
    assert isinstance(decoder, Decoder)
    tensors = stored_tensors(architecture, decoder, partial(_in_precision, kind=kind))
    with _written_whole(file, overwrite=overwrite) as partial_file:
        _write(gguf, partial_file, architecture.name, settings, tensors, kind)
    return Exported(
        path=file,
        bytes=file.stat().st_size,
        type=kind,
        architecture=architecture.name,
        vocabulary=f"{settings['tokenizer.ggml.model']}/{settings['tokenizer.ggml.pre']}",
        notes=words.notes,
    )


def _check_target(file: Path, *, overwrite: bool) -> None:
    if file.suffix != ".gguf":
        raise UserError(f"{file} is to be a GGUF file: give it a name that ends in .gguf")
    if os.path.isdir(file):  # unlike Path.is_dir, without an error for a name that is too long
        raise UserError(f"{file} is a directory: name a file")
    if os.path.lexists(file) and not overwrite:
        raise UserError(f"{file} exists: name another file, or replace it with --overwrite")


def _described(directory: Path) -> tuple[dict[str, Any], Architecture, DecoderConfig]:
    """config.json, llama.cpp's architecture and the shape of a language model; refuses what is not covered."""
    hf = read_config(directory)
    found = covered(directory, hf)
    if found is None:
        refuse_family(str(hf["model_type"]))
        raise UserError(
            f"{directory} cannot be written as GGUF: {CONFIG} has settings that whet's own decoder does not cover"
        )
    family, config = found
    if not config.causal:
        raise UserError(f"{directory} is a bidirectional model, which llama.cpp cannot sample from")
    kinds = hf.get("architectures")
    if isinstance(kinds, list) and kinds and family.architecture not in kinds:
        raise UserError(
            f"{directory} holds a {kinds[0]}, and only a language model ({family.architecture}) becomes GGUF"
        )
    return hf, architecture_of(family.model_type, config), config


def _name(source: Path) -> str:
    """The name of a model: of the run, for its best model or a checkpoint."""
    path = source.resolve()
    return path.parent.name if path.name in (BEST_MODEL, CHECKPOINT_MODEL) else path.name


def _in_precision(name: str, tensor: Tensor, *, kind: str) -> Tensor:
    """A weight of the decoder, rounded as a saved model is; vectors and what is quantised later in fp32."""
    plain = tensor.detach().float()
    largest = float(plain.abs().max())
    if not math.isfinite(largest):
        raise UserError(f"the model is damaged: {name} has values that are not finite")
    if plain.dim() < 2 or "embed_positions" in name:
        return plain
    if largest > _largest(plain.shape, kind):
        raise UserError(f"{name} has values beyond those of f16, {LARGEST_F16:.0f}: use --type bf16 or f32")
    return rounded(name, plain, ROUNDED[kind]) if kind in ROUNDED else plain


def _largest(shape: Sequence[int], kind: str) -> float:
    """The largest weight of a matrix; the scale of a block in q8_0 is in f16, and so are rows without blocks."""
    if kind == "q8_0" and not shape[-1] % Q8_BLOCK:
        return Q8_LARGEST * LARGEST_F16
    return LARGEST_F16 if kind in ("f16", "q8_0") else math.inf


def _tensor_type(name: str, shape: Sequence[int], kind: str) -> str:
    """The type of one tensor: vectors stay in fp32, and rows that are no whole number of blocks in fp16."""
    if len(shape) < 2 or name in IN_FULL:
        return "f32"
    return "f16" if kind == "q8_0" and shape[-1] % Q8_BLOCK else kind


def _write(
    gguf: Any, path: Path, architecture: str, settings: Mapping[str, Any], tensors: Mapping[str, StoredAs], kind: str
) -> None:
    """One tensor is made at a time."""
    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in settings.items():
        add.get(type(value), writer.add_array if isinstance(value, list) else writer.add_string)(key, value)
    types = {name: _tensor_type(name, tensor.shape, kind) for name, tensor in tensors.items()}
    total = 0
    for name, tensor in tensors.items():
        stored = gguf.GGMLQuantizationType[types[name].upper()]
        block, bytes_ = gguf.GGML_QUANT_SIZES[stored]
        size = math.prod(tensor.shape) // block * bytes_
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), size, raw_dtype=stored)
        total += size
    _check_room(path, total)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in tensors.items():
            writer.write_tensor_data(_stored_bytes(gguf, tensor.make(), types[name]))
    finally:
        writer.close()


def _stored_bytes(gguf: Any, tensor: Tensor, kind: str) -> Any:
    """The numbers of a tensor as the file holds them."""
    if kind == "q8_0":
        return gguf.quantize(tensor.numpy(), gguf.GGMLQuantizationType.Q8_0)
    if kind == "bf16":
        return tensor.view(torch.int16).numpy()
    return tensor.to(torch.float16 if kind == "f16" else torch.float32).numpy()


def _check_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise RunFailed(f"the file needs {needed} bytes, and {path.parent} has {free}: free some space")


@contextmanager
def _written_whole(file: Path, *, overwrite: bool) -> Iterator[Path]:
    """Another name in the same directory, renamed to `file` at the end and removed after a failure.

    It is random: containers that share a disk have the same numbers of processes.
    """
    aside = file.with_name(f".{file.name}.{token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        sync_file(aside)
        _check_target(file, overwrite=overwrite)  # another process may have written it meanwhile
        aside.replace(file)
    except OSError as error:
        raise RunFailed(f"{file} cannot be written ({error.strerror or error}); nothing was kept") from error
    finally:
        with suppress(OSError):  # it is not there, or its directory is none
            aside.unlink()
