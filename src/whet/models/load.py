"""Loads a model from a Hugging Face directory, or makes a new one with random weights."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from whet.errors import UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.peft_files import AdapterFiles, apply_adapter, read_adapter
from whet.models.adapters.stored_layers import StoredLayer, in_parts
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.family import Family
from whet.models.finite import check_head
from whet.models.layers.decoder_config import (
    DecoderConfig,
    all_heads_bytes_per_token,
    kv_bytes_per_token,
    parameter_count,
)
from whet.models.model_shape import base_directory, covered, new_shape, read_config
from whet.models.protocol import CausalLM
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


def load_model(
    path: Path, *, bidirectional: bool | None = False, keep_bf16: bool = False, mapped: bool = False
) -> CausalLM:
    """The model of a directory, in fp32: our decoder if it covers the architecture, else transformers' own.

    An adapter (PEFT's layout) is merged into its base. Refuses a bidirectional model, or with `bidirectional` a causal
    one; None takes both. With `keep_bf16` matrices of our decoder that are stored in bf16 stay so: a frozen model needs
    no more. With `mapped` its tensors are as stored and stay in their files until they are read: for a model whose
    parts are taken one by one.
    """
    return read_steadily(path, partial(_load, bidirectional=bidirectional, keep_bf16=keep_bf16, mapped=mapped))


def is_bidirectional(model: object) -> bool:
    """Whether it predicts masked tokens from the whole text around them."""
    return isinstance(model, Decoder) and not model.config.causal


def _load(path: Path, bidirectional: bool | None, keep_bf16: bool = False, mapped: bool = False) -> CausalLM:
    if is_adapter(path):
        files = read_adapter(path)
        if files.is_reward:
            raise UserError(
                f"{path} is the adapter of a reward model, not of a language model: name it as reward.model"
            )
        model = _load(base_directory(path), bidirectional)
        assert isinstance(model, torch.nn.Module)
        apply_adapter(model, own_layers(files, model), prefix=layer_prefix(model))
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
        return _load_decoder(path, *found, hf, keep_bf16=keep_bf16, mapped=mapped)
    # Imported lazily: it takes seconds, and most models do not need it.
    from whet.models.foreign import load_foreign

    return load_foreign(path)


def layer_prefix(model: object) -> str:
    """What our names of layers have before those of transformers, which PEFT uses."""
    return "" if isinstance(model, Decoder) else "model."


def stored_layer_of(trunk: object) -> StoredLayer:
    """From our names of layers to those of the checkpoint's that hold them, which PEFT uses."""
    return trunk.family.stored_layer if isinstance(trunk, Decoder) else lambda name: name.removeprefix("model.")


def own_layers(files: AdapterFiles, trunk: object) -> AdapterFiles:
    """An adapter by our names of layers, which may be parts of those that the checkpoint stores."""
    return in_parts(files, trunk, trunk.family.stored_layer) if isinstance(trunk, Decoder) else files


def new_model(family: str, *, seed: int, eos: int | None = None, **shape: Any) -> Decoder:
    """A decoder of a `new_shape` with random weights, the same for the same seed.

    `eos` becomes config.json's eos_token_id.
    """
    return Decoder(new_shape(family, **shape), family=family, seed=seed, source={"eos_token_id": eos})


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
            "context": config.context,
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


def checked_config(path: Path) -> dict[str, Any]:
    """config.json of a directory that matches its manifest and holds trainable weights."""
    refuse_damage(path)
    hf = read_config(path)
    if hf.get("quantization_config"):
        raise UserError(f"{path} holds quantised weights, which cannot be trained: use the original checkpoint")
    return hf


def _load_decoder(
    path: Path, family: Family, config: DecoderConfig, hf: Mapping[str, Any], *, keep_bf16: bool, mapped: bool
) -> Decoder:
    stored = one_spelling(stored_tensors(path), family.stored_name, path)
    copied = stored.pop("lm_head.weight", None) if config.tied_head else None
    model = build_decoder(path, family, config, hf, stored, keep_bf16=keep_bf16, mapped=mapped)
    if copied is not None and not _is_same(copied, model.model.embed_tokens.weight):
        raise UserError(f"{path} has its own lm_head.weight: set tie_word_embeddings to false in {CONFIG}")
    check_head(model, model.head_matrix, str(path))
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
    mapped: bool = False,
) -> Decoder:
    """A decoder with the stored tensors, which must have exactly the names and shapes that the config implies."""
    check_claims(hf, path / CONFIG, tensors=len(stored))  # before a module is built for each claimed layer
    model = Decoder(config, family=family.model_type, seed=None, source=hf)
    check_tensors(stored, family.export_weights(model.state_dict()), path)
    tensors = read_tensors(stored, keep_bf16=keep_bf16, mapped=mapped)
    model.load_state_dict(family.import_weights(tensors), assign=True)
    return model


def _first(config: Mapping[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if name in config), None)
