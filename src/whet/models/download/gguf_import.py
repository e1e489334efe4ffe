"""Converts GGUF files of Llama models with a byte-level BPE vocabulary to Hugging Face directories.

Quantised weights are dequantised and keep the file's precision. Anything that this reader does not implement (another
architecture, scaled RoPE, another vocabulary) is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from whet.errors import UserError
from whet.imports import optional_package
from whet.models.storage.safetensors_files import write_model
from whet.models.text.byte_level_splits import SPLIT_NAMES, split_named

GGUF_FILES = "reading GGUF files"
CONTROL, USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`: special tokens, and text that is never split
# The keys `llama.…` that are implemented; any other could be a scale or a window that changes the logits.
KNOWN = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
)
EOS_KEY = "tokenizer.ggml.eos_token_id"

NAMES = {  # GGUF tensor without block number → module of transformers' Llama
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, directory: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Writes config.json, model.safetensors, generation_config.json and the tokeniser's files into `directory`."""
    fields, tensors = _read(source)
    try:
        _convert(fields, tensors, directory, dtype)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError) as error:
        # Settings of unexpected types or sizes.
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{source} is not a sound GGUF file ({type(error).__name__}: {reason}); fetch it again"
        ) from error


def _convert(fields: Mapping[str, Any], tensors: dict[str, Any], directory: Path, dtype: torch.dtype) -> None:
    import gguf

    config = _config(fields, tied="output.weight" not in tensors, dtype=dtype)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    state: dict[str, Tensor] = {}
    for name in list(tensors):
        tensor = tensors.pop(name)
        expanded = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
        part = name.split(".")[-2]
        if part in heads:
            expanded = _split_halves(expanded, heads=heads[part])
        state[_module_name(name)] = expanded.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory, config, state)
    _save_tokenizer(fields, directory)


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and tensors (quantised, memory-mapped) of the file, by name."""
    gguf = optional_package("gguf", GGUF_FILES)
    try:
        reader = gguf.GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, TypeError, ValueError) as error:
        raise UserError(f"{source} is not a readable GGUF file ({error}); fetch it again") from error
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def _split_halves(weight: Tensor, *, heads: int) -> Tensor:
    """Rotary pairs (2i, 2i+1) of a head become (i, i + d/2): GGUF rotates neighbours, transformers rotates halves."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _module_name(name: str) -> str:
    block = name.split(".")
    prefix = f"model.layers.{block[1]}." if block[0] == "blk" else ""
    part, suffix = block[-2:]
    if part not in NAMES or suffix != "weight" or len(block) != (4 if prefix else 2):
        raise UserError(f"GGUF tensor {name} is not part of a plain Llama model; convert this file with another tool")
    return f"{prefix}{NAMES[part]}.weight"


def _config(fields: Mapping[str, Any], *, tied: bool, dtype: torch.dtype) -> dict[str, Any]:
    """The file's settings as a config.json of Llama."""
    if fields.get("general.architecture") != "llama":
        raise UserError(f"GGUF architecture {fields.get('general.architecture')!r} is not supported; only 'llama' is")
    unknown = [key for key in fields if key.startswith("llama.") and key.removeprefix("llama.") not in KNOWN]
    if unknown:
        raise UserError(f"GGUF setting {unknown[0]} is not known here and may change the numbers; use the hub's files")
    heads, width = _need(fields, "llama.attention.head_count"), _need(fields, "llama.embedding_length")
    head_dim = fields.get("llama.attention.key_length", width // heads)
    for key, what in {
        "rope.dimension_count": "partly rotated heads",
        "attention.value_length": "values unlike keys",
    }.items():
        if fields.get(f"llama.{key}", head_dim) != head_dim:
            raise UserError(f"GGUF setting llama.{key} ({what}) is not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": _need(fields, "llama.feed_forward_length"),
        "num_hidden_layers": _need(fields, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _need(fields, "llama.context_length"),
        "rms_norm_eps": _shortest(_need(fields, "llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(fields.get("llama.rope.freq_base", 10000.0)),
        "vocab_size": len(_need(fields, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _need(fields, EOS_KEY),
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _save_tokenizer(fields: Mapping[str, Any], directory: Path) -> None:
    """Writes the tokeniser: vocabulary, special tokens and chat template."""
    from whet.models.text.template import PLAIN_TEMPLATE
    from whet.models.text.tokenizers import wrap_backend

    kind, name = _need(fields, "tokenizer.ggml.model"), _need(fields, "tokenizer.ggml.pre")
    split = split_named(name)
    if kind != "gpt2" or split is None:
        raise UserError(
            f"GGUF vocabulary {kind!r}/{name!r} is not supported; known: gpt2 with {', '.join(SPLIT_NAMES)}"
        )
    if fields.get("tokenizer.ggml.add_bos_token", False):
        raise UserError("GGUF setting tokenizer.ggml.add_bos_token is not supported for this vocabulary")
    tokens, types = _need(fields, "tokenizer.ggml.tokens"), _need(fields, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _need(fields, "tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, merges, ignore_merges=split.ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(split.parts))
    backend.decoder = decoders.ByteLevel()
    whole = [token for token, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in whole])
    tokenizer = wrap_backend(
        backend,
        eos=tokens[_need(fields, EOS_KEY)],
        chat_template=fields.get("tokenizer.chat_template", PLAIN_TEMPLATE),
        specials=[token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL],
    )
    tokenizer.save(directory)


def _need(fields: Mapping[str, Any], key: str) -> Any:
    if key not in fields:
        raise UserError(f"the GGUF file lacks {key}, so it is incomplete; fetch it again")
    return fields[key]


def _shortest(value: float) -> float:
    """The shortest decimal with the same float32: 9.999999747378752e-06 was written as 1e-5."""
    return float(str(np.float32(value)))
