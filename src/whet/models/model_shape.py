"""The shape of a model: of a directory by its config.json, and of a new one. Imports no torch: `whet plan` asks too."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.files import read_object
from whet.models.adapters.adapter_directory import ADAPTER_CONFIG, MODEL_CONFIG, is_adapter
from whet.models.decoder.families import FAMILIES, family_named, read_shape
from whet.models.decoder.family import Family, NotCovered, head_width
from whet.models.download.model_hub import resolve_model
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.layers.part_shapes import LatentShape
from whet.models.protocol import BIDIRECTIONAL
from whet.models.storage.size_limits import holds_tokenizer


def read_config(path: Path) -> dict[str, Any]:
    """config.json of a model directory."""
    if not path.is_dir():
        raise UserError(f"{path} is not a directory: expected a model with {MODEL_CONFIG} and safetensors weights")
    if not (path / MODEL_CONFIG).is_file():
        raise UserError(f"{path} has no {MODEL_CONFIG}: expected a Hugging Face model directory")
    hf = read_object(path / MODEL_CONFIG)
    if not isinstance(hf.get("model_type"), str):
        raise UserError(f"{path / MODEL_CONFIG} names no model_type: expected a Hugging Face model directory")
    return hf


def covered(path: Path, hf: Mapping[str, Any]) -> tuple[Family, DecoderConfig] | None:
    """Family and shape, or None for an architecture that the decoder does not implement."""
    name = hf["model_type"].removeprefix(BIDIRECTIONAL)
    if name not in FAMILIES:
        return None
    family, causal = FAMILIES[name], name == hf["model_type"]
    try:
        shape = replace(read_shape(family, hf), causal=causal)
        if not causal and hf.get("mask_token_id") != shape.vocab_size - 1:
            last = f"the last id, {shape.vocab_size - 1}"
            raise UserError(f"'mask_token_id' is {hf.get('mask_token_id')!r:.40}: expected {last}")
        return family, shape
    except NotCovered:
        return None
    except UserError as error:
        raise UserError(f"{path / MODEL_CONFIG}: {error}") from error


def base_directory(adapter: Path) -> Path:
    """The directory of the model that an adapter was trained on."""
    base = read_object(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{adapter / ADAPTER_CONFIG} names no base_model_name_or_path: write the base model's directory there"
        )
    try:
        found = resolve_model(base)
    except (UserError, OSError, RuntimeError) as error:  # also a name too long, or of a home that is not there
        where = f"if it has moved, change base_model_name_or_path in {adapter / ADAPTER_CONFIG}"
        raise UserError(f"the adapter {adapter} needs its base model: {error}; {where}") from error
    if is_adapter(found):
        raise UserError(f"the base of the adapter {adapter} is {found}, an adapter itself: merge that one first")
    return found


def tokenizer_directory(model: Path) -> Path:
    """Where the tokeniser of a model is: PEFT saves an adapter without one, and then it is the base's."""
    return base_directory(model) if is_adapter(model) and not holds_tokenizer(model) else model


def is_adapter_of(directory: Path, base: Path) -> bool:
    """Whether the directory holds an adapter that was trained on this base model."""
    return is_adapter(directory) and base_directory(directory).resolve() == base.resolve()


def new_shape(  # noqa: PLR0913 (the numbers that make a model)
    family: str,
    *,
    vocab_size: int,
    layers: int,
    heads: int,
    width: int,
    context: int,
    kv_heads: int | None = None,
    mlp_width: int | None = None,
    tied_head: bool | None = None,
    latent: Mapping[str, int | None] | None = None,
    causal: bool = True,
) -> DecoderConfig:
    """The shape of a new model.

    Defaults: as many KV heads as query heads, and the family's usual MLP width and tying of the head. `latent`: fields
    of LatentShape in place of the usual ones (None), for families with latent attention; q_rank 0: full-rank queries.
    Without `causal` it is bidirectional, and its last id is the mask token.
    """
    row = family_named(family)
    chosen = {field: value for field, value in (latent or {}).items() if value is not None}
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "layers": layers,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": head_width(width, heads),
        "width": width,
        "mlp_width": usual_mlp_width(row, width) if mlp_width is None else mlp_width,
        "context": context,
        "causal": causal,
    }
    if row.usual_latent is not None:
        sizes = {**row.usual_latent(width, heads), **chosen}
        shape["latent"] = LatentShape(**{**sizes, "q_rank": sizes["q_rank"] or None})  # type: ignore[arg-type]
        shape["head_dim"] = shape["latent"].head_dim
    elif chosen:
        others = ", ".join(name for name, other in FAMILIES.items() if other.usual_latent is not None)
        raise UserError(f"{family} has no latent attention: remove latent.{next(iter(chosen))}, or use {others}")
    if row.traits["positions"] == "learned" and shape["kv_heads"] != heads:
        raise UserError(f"{family} has no grouped-query attention: leave kv_heads out, or use llama")
    if row.traits.get("window") is not None and not causal:
        raise UserError(f"{family} has sliding windows, and a bidirectional model attends to all tokens: use llama")
    if row.usual_parts is not None:
        shape |= row.usual_parts(shape)
    tied = {} if tied_head is None else {"tied_head": tied_head}
    return DecoderConfig(**{**row.traits, **shape, **tied})


def usual_mlp_width(family: Family, width: int) -> int:
    """4 · width; two thirds of that, rounded up to a multiple of 8, for a gated MLP, which has three matrices."""
    if family.traits["mlp"] == "gelu":
        return 4 * width
    return -(-(8 * width) // (3 * 8)) * 8
