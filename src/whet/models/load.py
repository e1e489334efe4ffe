"""Loads a model from a Hugging Face directory, or makes a new one with random weights."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.errors import UserError
from whet.files import read_object
from whet.models.adapters.adapter_directory import ADAPTER_CONFIG, is_adapter
from whet.models.adapters.peft_files import apply_adapter, read_adapter
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import FAMILIES, family_named, read_shape
from whet.models.decoder.family import Family, NotCovered, head_width
from whet.models.download.model_hub import resolve_model
from whet.models.finite import check_head
from whet.models.layers.decoder_config import (
    DecoderConfig,
    LatentShape,
    all_heads_bytes_per_token,
    kv_bytes_per_token,
    parameter_count,
)
from whet.models.protocol import BIDIRECTIONAL, CausalLM
from whet.models.storage.checksums import read_steadily, refuse_damage
from whet.models.storage.safetensors_files import (
    CONFIG,
    StoredTensor,
    check_tensors,
    one_spelling,
    read_tensors,
    stored_tensors,
    weight_files,
)
from whet.models.storage.size_limits import check_claims

KV_DTYPE = torch.bfloat16  # the dtype that a summary counts the bytes of a KV cache in
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load_model(path: Path, *, bidirectional: bool | None = False, keep_bf16: bool = False) -> CausalLM:
    """The model of a directory, in fp32: our decoder if it covers the architecture, else transformers' own.

    An adapter (PEFT's layout) is merged into its base. Refuses a bidirectional model, or with `bidirectional` a causal
    one; None takes both. With `keep_bf16` matrices of our decoder that are stored in bf16 stay so: a frozen model needs
    no more.
    """
    return read_steadily(path, partial(_load, bidirectional=bidirectional, keep_bf16=keep_bf16))


def is_bidirectional(model: object) -> bool:
    """Whether it predicts masked tokens from the whole text around them."""
    return isinstance(model, Decoder) and not model.config.causal


def base_directory(adapter: Path) -> Path:
    """The directory of the model that an adapter was trained on."""
    base = read_object(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{adapter / ADAPTER_CONFIG} names no base_model_name_or_path: write the base model's directory there"
        )
    try:
        found = resolve_model(base)
    except UserError as error:
        raise UserError(f"the adapter {adapter} needs its base model: {error}") from error
    if is_adapter(found):
        raise UserError(f"the base of the adapter {adapter} is {found}, an adapter itself: merge that one first")
    return found


def _load(path: Path, bidirectional: bool | None, keep_bf16: bool = False) -> CausalLM:
    if is_adapter(path):
        files = read_adapter(path)
        if files.others:
            raise UserError(
                f"{path} changes {next(iter(files.others))!r} besides its adapters, so it is no language model's: a "
                "reward model is named as reward.model.path"
            )
        model = _load(base_directory(path), bidirectional)
        assert isinstance(model, torch.nn.Module)
        apply_adapter(model, files, prefix=layer_prefix(model))
        return model
    hf = checked_config(path)
    found = covered(path, hf)
    is_causal = found is None or found[1].causal
    if bidirectional is False and not is_causal:
        raise UserError(
            f"{path} is a bidirectional model, which predicts masked tokens and continues no text: sample from it "
            "(`whet sample`), or train it further with objective=denoise or objective=masked_lm"
        )
    if bidirectional and is_causal:
        raise UserError(
            f"{path} is a causal model, whose tokens see none after them: this objective needs a bidirectional one, "
            "made by model.new"
        )
    if found is not None:
        return _load_decoder(path, *found, hf, keep_bf16=keep_bf16)
    # Imported lazily: it takes seconds, and most models do not need it.
    from whet.models.foreign import load_foreign

    return load_foreign(path)


def layer_prefix(model: object) -> str:
    """What our names of layers have before those of transformers, which PEFT uses."""
    return "" if isinstance(model, Decoder) else "model."


def new_model(family: str, *, seed: int, eos: int | None = None, **shape: Any) -> Decoder:
    """A decoder of a `new_shape` with random weights, the same for the same seed.

    `eos` becomes config.json's eos_token_id.
    """
    return Decoder(new_shape(family, **shape), family=family, seed=seed, source={"eos_token_id": eos})


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
    tied = {} if tied_head is None else {"tied_head": tied_head}
    return DecoderConfig(**{**row.traits, **shape, **tied})


def usual_mlp_width(family: Family, width: int) -> int:
    """4 · width; two thirds of that, rounded up to a multiple of 8, for a gated MLP, which has three matrices."""
    if family.traits["mlp"] == "gelu":
        return 4 * width
    return -(-(8 * width) // (3 * 8)) * 8


def model_summary(path: Path) -> dict[str, Any]:
    """Family, shape, dtype and size of a checkpoint, from its config and file headers; loads no weights."""
    if is_adapter(path):
        base = base_directory(path)
        files = read_adapter(path)
        ranks = sorted({len(a) for a, _ in files.pairs.values()})
        adapter = f"LoRA of rank {', '.join(map(str, ranks))} on {len(files.pairs)} layers of {base}"
        return {**model_summary(base), "adapter": adapter}
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
            "context": config.longest,
            "vocab": config.vocab_size,
            **(_cache_bytes(config) if config.causal else {}),
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


def _cache_bytes(config: DecoderConfig) -> dict[str, int]:
    return {
        "kv_bytes_per_token": kv_bytes_per_token(config, KV_DTYPE),
        "kv_bytes_of_all_heads": all_heads_bytes_per_token(config, KV_DTYPE),
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
    """config.json of a directory that matches its manifest and holds trainable weights."""
    refuse_damage(path)
    hf = read_config(path)
    if hf.get("quantization_config"):
        raise UserError(f"{path} holds quantised weights, which cannot be trained: use the original checkpoint")
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
        raise UserError(f"{path / CONFIG}: {error}") from error


def _load_decoder(
    path: Path, family: Family, config: DecoderConfig, hf: Mapping[str, Any], *, keep_bf16: bool
) -> Decoder:
    stored = one_spelling(stored_tensors(path), family.stored_name, path)
    copied = stored.pop("lm_head.weight", None) if config.tied_head else None
    model = build_decoder(path, family, config, hf, stored, keep_bf16=keep_bf16)
    if copied is not None and not _is_same(copied, model.model.embed_tokens.weight):
        raise UserError(f"{path} has its own lm_head.weight: set tie_word_embeddings to false in {CONFIG}")
    check_head(model, model.head_weight, str(path))
    return model


def _is_same(stored: StoredTensor, weight: torch.Tensor) -> bool:
    return torch.equal(read_tensors({"": stored})[""], weight.float())


def build_decoder(
    path: Path,
    family: Family,
    config: DecoderConfig,
    hf: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
    *,
    keep_bf16: bool = False,
) -> Decoder:
    """A decoder with the stored tensors, which must have exactly the names and shapes that the config implies."""
    check_claims(hf, path / CONFIG, tensors=len(stored))  # before a module is built for each claimed layer
    model = Decoder(config, family=family.model_type, seed=None, source=hf)
    check_tensors(stored, family.export_weights(model.state_dict()), path)
    model.load_state_dict(family.import_weights(read_tensors(stored, keep_bf16=keep_bf16)), assign=True)
    return model


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if name in config), None)
