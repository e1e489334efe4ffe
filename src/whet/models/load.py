"""From a directory, or from nothing, to a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from whet.errors import UserError
from whet.files import read_object
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES, Family, NotCovered, family_named, head_width, read_shape
from whet.models.finite import check_head
from whet.models.layers.decoder_config import DecoderConfig, parameter_count
from whet.models.protocol import CausalLM
from whet.models.storage.checksums import read_steadily, refuse_damage
from whet.models.storage.safetensors_files import (
    CONFIG,
    check_tensors,
    one_spelling,
    read_tensors,
    stored_tensors,
    weight_files,
)
from whet.models.storage.size_limits import check_claims

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load_model(path: Path) -> CausalLM:
    """The model in a Hugging Face directory, in fp32: our decoder where it covers the architecture, or transformers."""
    return read_steadily(path, _load)


def _load(path: Path) -> CausalLM:
    hf = checked_config(path)
    found = covered(path, hf)
    if found is not None:
        return _load_decoder(path, *found, hf)
    # Imported here because it takes seconds, and most models never need it.
    from whet.models.foreign import load_foreign

    return load_foreign(path)


def new_model(  # noqa: PLR0913 (the numbers that make a model)
    family: str,
    *,
    vocab_size: int,
    layers: int,
    heads: int,
    width: int,
    context: int,
    seed: int,
    kv_heads: int | None = None,
    mlp_width: int | None = None,
    tied_head: bool | None = None,
    eos: int | None = None,
) -> Decoder:
    """A decoder from nothing, the same for the same seed; `eos` is the id that its config.json names as the end.

    Unless said otherwise every head has its own keys, the MLP has the family's usual width, and so for the tied head.
    """
    row = family_named(family)
    tied = {} if tied_head is None else {"tied_head": tied_head}
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "layers": layers,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": head_width(width, heads),
        "width": width,
        "mlp_width": usual_mlp_width(row, width) if mlp_width is None else mlp_width,
        "context": context,
    }
    if row.traits["positions"] == "learned" and shape["kv_heads"] != heads:
        raise UserError(f"{family} has no grouped-query attention: leave kv_heads out, or use llama")
    return Decoder(
        DecoderConfig(**{**row.traits, **shape, **tied}), family=family, seed=seed, source={"eos_token_id": eos}
    )


def usual_mlp_width(family: Family, width: int) -> int:
    """Four times the width; a gated MLP has three matrices instead of two, so two thirds of that, in eights."""
    if family.traits["mlp"] == "gelu":
        return 4 * width
    return -(-(8 * width) // (3 * 8)) * 8


def model_summary(path: Path) -> dict[str, Any]:
    """What a checkpoint is, from its config and the headers of its files, without loading a weight."""
    hf = read_config(path)
    stored = stored_tensors(path)
    elements = {name: torch.Size(tensor.shape).numel() for name, tensor in stored.items()}
    by_dtype: Counter[str] = Counter()
    for name, tensor in stored.items():
        by_dtype[DTYPES.get(tensor.dtype, tensor.dtype)] += elements[name]
    found = covered(path, hf)
    if found is not None:
        _, config = found
        shape = {
            "parameters": parameter_count(config),
            "layers": config.layers,
            "width": config.width,
            "context": config.context,
            "vocab": config.vocab_size,
        }
    else:
        shape = {
            "parameters": sum(elements.values()),
            "layers": _first(hf, "num_hidden_layers", "n_layer", "num_layers"),
            "width": _first(hf, "hidden_size", "n_embd", "d_model"),
            "context": _first(hf, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
            "vocab": _first(hf, "vocab_size"),
        }
    return {
        "family": hf["model_type"],
        "implementation": "transformers" if found is None else "decoder",
        **shape,
        "dtype": by_dtype.most_common(1)[0][0] if by_dtype else None,
        "bytes": sum(file.stat().st_size for file in weight_files(path)),
    }


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a model directory."""
    if not path.is_dir():
        raise UserError(f"{path} is not a directory: expected a model with {CONFIG} and safetensors weights")
    if not (path / CONFIG).is_file():
        raise UserError(f"{path} has no {CONFIG}: expected a Hugging Face model directory")
    hf = read_object(path / CONFIG)
    if not isinstance(hf.get("model_type"), str):
        raise UserError(f"{path / CONFIG} names no model_type: expected a Hugging Face model directory")
    return hf


def checked_config(path: Path) -> dict[str, Any]:
    """config.json of a directory that is as its manifest says and holds weights that can be computed with."""
    refuse_damage(path)
    hf = read_config(path)
    if hf.get("quantization_config"):
        raise UserError(f"{path} holds quantised weights, which cannot be trained: use the original checkpoint")
    return hf


def covered(path: Path, hf: Mapping[str, Any]) -> tuple[Family, DecoderConfig] | None:
    """The family and the shape, or None where the decoder does not compute this architecture."""
    if hf["model_type"] not in FAMILIES:
        return None
    family = FAMILIES[hf["model_type"]]
    try:
        return family, read_shape(family, hf)
    except NotCovered:
        return None
    except UserError as error:
        raise UserError(f"{path / CONFIG}: {error}") from error


def _load_decoder(path: Path, family: Family, config: DecoderConfig, hf: Mapping[str, Any]) -> Decoder:
    found = stored_tensors(path)
    check_claims(hf, path / CONFIG, tensors=len(found))  # a module is made for each layer that is claimed
    model = Decoder(config, family=family.model_type, seed=None, source=hf)
    stored = one_spelling(found, family.stored_name, path)
    expected = family.export_weights(model.state_dict())
    copied_head = {name: stored.pop(name) for name in ("lm_head.weight",) if config.tied_head and name in stored}
    check_tensors(stored, expected, path)
    weights = family.import_weights(read_tensors(stored))
    for head in read_tensors(copied_head).values():
        if not torch.equal(head, weights["model.embed_tokens.weight"]):
            raise UserError(f"{path} has its own lm_head.weight: set tie_word_embeddings to false in {CONFIG}")
    model.load_state_dict(weights, assign=True)
    check_head(model, model.head_weight, str(path))
    return model


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if name in config), None)
