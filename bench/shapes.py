"""The models that are measured, and their directories: true shapes, and a tokeniser whose end is never sampled."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from bench.task import word
from whet.errors import UserError
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import family_named
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.text.tokenizers import HuggingFaceTokenizer, wrap_backend

UNKNOWN = "<unk>"
# The id behind the model's last row. Whatever is sampled, it is not this, so every completion runs to its full length
# on every side without a word about it in any sampling code.
NEVER = "<never>"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model without its weights."""

    title: str
    family: str
    config: DecoderConfig


def shape_of(title: str, family: str, **numbers: Any) -> Shape:
    """A shape of this family."""
    traits = {**family_named(family).traits, "tied_head": True, **numbers}
    return Shape(title=title, family=family, config=DecoderConfig(**traits))


SHAPES = {
    "smollm2": shape_of(
        "SmolLM2-135M",
        "llama",
        vocab_size=49_152,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        width=576,
        mlp_width=1536,
        context=8192,
        rope_base=100_000.0,
        norm_eps=1e-5,
    ),
    "qwen3": shape_of(
        "Qwen3-0.6B",
        "qwen3",
        vocab_size=151_936,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        width=1024,
        mlp_width=3072,
        context=40_960,
        rope_base=1_000_000.0,
        norm_eps=1e-6,
    ),
    **{
        f"qwen3-{size}": shape_of(
            f"Qwen3-{size.upper()}",
            "qwen3",
            vocab_size=151_936,
            kv_heads=8,
            head_dim=128,
            context=40_960,
            rope_base=1_000_000.0,
            norm_eps=1e-6,
            **numbers,
        )
        for size, numbers in {
            "1.7b": {"layers": 28, "heads": 16, "width": 2048, "mlp_width": 6144},
            "4b": {"layers": 36, "heads": 32, "width": 2560, "mlp_width": 9728},
            "8b": {"layers": 36, "heads": 32, "width": 4096, "mlp_width": 12_288, "tied_head": False},
        }.items()
    },
    "qwen2.5-3b": shape_of(
        "Qwen2.5-3B",
        "qwen2",
        vocab_size=151_936,
        layers=36,
        heads=16,
        kv_heads=2,
        head_dim=128,
        width=2048,
        mlp_width=11_008,
        context=32_768,
        rope_base=1_000_000.0,
        norm_eps=1e-6,
    ),
    "tiny": shape_of(
        "tiny",
        "qwen3",
        vocab_size=512,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        width=32,
        mlp_width=64,
        context=256,
    ),
}


def random_directory(shape: Shape, directory: Path) -> Path:
    """Random weights in this shape with a tokeniser of one word per id: speed does not depend on the values."""
    directory.mkdir(parents=True)
    Decoder(shape.config, family=shape.family, seed=0).save(directory)
    word_tokenizer(shape.config.vocab_size).save(directory)
    return directory


def large_directory(shape: Shape, directory: Path, device: torch.device) -> Path:
    """As `random_directory`, in bf16 and drawn on the device: a model of billions of parameters in seconds."""
    directory.mkdir(parents=True)
    model = Decoder(shape.config, family=shape.family, seed=None).to(torch.bfloat16).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, shape.config.init_std, generator=generator)
    model.save(directory, torch.bfloat16)
    del model, parameter
    if device.type == "cuda":  # the measuring process needs the memory
        torch.cuda.empty_cache()
    word_tokenizer(shape.config.vocab_size).save(directory)
    return directory


def word_tokenizer(vocab_size: int) -> HuggingFaceTokenizer:
    """Every id is a word behind a space and decodes byte by byte, as in GPT-2's, Llama 3's and Qwen's tokenisers."""
    vocabulary = {UNKNOWN: 0} | {f"Ġ{word(index)}": index for index in range(1, vocab_size)}
    backend = Backend(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    return wrap_backend(backend, eos=NEVER)


def endless_directory(source: Path, directory: Path) -> Path:
    """A copy of a real model whose tokeniser ends with an id that the model has no row for."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (source / name).is_file():
            raise UserError(f"{source} has no {name}: give the directory of a model, as --model")
    directory.mkdir(parents=True)
    (directory / "model.safetensors").symlink_to((source / "model.safetensors").resolve())
    config = json.loads((source / "config.json").read_text("utf-8"))
    tokenizer = wrap_backend(Backend.from_file(str(source / "tokenizer.json")), eos=NEVER)
    if tokenizer.eos < config["vocab_size"]:
        shutil.rmtree(directory)
        raise UserError(f"{source}: the model has rows without tokens, so its end could be sampled; use another model")
    config["eos_token_id"] = None  # the real one would end completions
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    tokenizer.save(directory)
    return directory
