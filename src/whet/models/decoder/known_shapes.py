"""Shapes of well-known models, as their config.json on the hub states them: they can be planned without a download.

What a shape does not depend on (norms' epsilon, rotary base) has the family's default.
"""

import re

from whet.errors import UserError, nearest
from whet.models.decoder.families import FAMILIES, read_shape
from whet.models.decoder.family import LLAMA_KEYS
from whet.models.layers.decoder_config import DecoderConfig

FIELDS = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "mlp_width", "context")
TIED, UNTIED = True, False
# name → (family, vocabulary, width, layers, heads, KV heads, head width, MLP width, context, tied head)
KNOWN_SHAPES: dict[str, tuple[str, int, int, int, int, int, int, int, int, bool]] = {
    "smollm2-135m": ("llama", 49152, 576, 30, 9, 3, 64, 1536, 8192, TIED),
    "smollm2-360m": ("llama", 49152, 960, 32, 15, 5, 64, 2560, 8192, TIED),
    "smollm2-1.7b": ("llama", 49152, 2048, 24, 32, 32, 64, 8192, 8192, TIED),
    "qwen2.5-0.5b": ("qwen2", 151936, 896, 24, 14, 2, 64, 4864, 32768, TIED),
    "qwen2.5-1.5b": ("qwen2", 151936, 1536, 28, 12, 2, 128, 8960, 32768, TIED),
    "qwen2.5-3b": ("qwen2", 151936, 2048, 36, 16, 2, 128, 11008, 32768, TIED),
    "qwen2.5-7b": ("qwen2", 152064, 3584, 28, 28, 4, 128, 18944, 32768, UNTIED),
    "qwen2.5-14b": ("qwen2", 152064, 5120, 48, 40, 8, 128, 13824, 32768, UNTIED),
    "qwen3-0.6b": ("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960, TIED),
    "qwen3-1.7b": ("qwen3", 151936, 2048, 28, 16, 8, 128, 6144, 40960, TIED),
    "qwen3-4b": ("qwen3", 151936, 2560, 36, 32, 8, 128, 9728, 40960, TIED),
    "qwen3-8b": ("qwen3", 151936, 4096, 36, 32, 8, 128, 12288, 40960, UNTIED),
    "qwen3-14b": ("qwen3", 151936, 5120, 40, 40, 8, 128, 17408, 40960, UNTIED),
    "llama-3.2-1b": ("llama", 128256, 2048, 16, 32, 8, 64, 8192, 131072, TIED),
    "llama-3.2-3b": ("llama", 128256, 3072, 28, 24, 8, 128, 8192, 131072, TIED),
    "llama-3.1-8b": ("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072, UNTIED),
    "llama-2-7b": ("llama", 32000, 4096, 32, 32, 32, 128, 11008, 4096, UNTIED),
    "llama-2-13b": ("llama", 32000, 5120, 40, 40, 40, 128, 13824, 4096, UNTIED),
    "mistral-7b-v0.1": ("mistral", 32000, 4096, 32, 32, 8, 128, 14336, 32768, UNTIED),
    "mistral-7b-v0.3": ("mistral", 32768, 4096, 32, 32, 8, 128, 14336, 32768, UNTIED),
}
# Parts of a model's name that say how it was trained, not what shape it has.
OF_TRAINING = {"meta", "instruct", "base", "chat", "it", "hf", "coder", "math", "thinking", "2507"}


def shape_called(name: str) -> tuple[str, DecoderConfig] | None:
    """Name and shape of a well-known model: `Qwen/Qwen3-8B`, `qwen2.5-7b-instruct`; None for any other.

    Only the name of the model itself is looked at, without its owner; one that says more than how the model was
    trained (a quantised copy, somebody's own) is another model.
    """
    words = re.split(r"[-_]", name.strip().rpartition("/")[2].lower())
    known = "-".join(word for word in words if word not in OF_TRAINING)
    return (known, _shape(known)) if known in KNOWN_SHAPES else None


def require_shape(name: str) -> tuple[str, DecoderConfig]:
    """`shape_called`, or a UserError that lists what there is."""
    found = shape_called(name)
    if found is None:
        raise UserError(f"no shape {name!r}{nearest(name.lower(), KNOWN_SHAPES)} (known: {', '.join(KNOWN_SHAPES)})")
    return found


def _shape(known: str) -> DecoderConfig:
    family, *numbers, tied = KNOWN_SHAPES[known]
    values = dict(zip((LLAMA_KEYS[field] for field in FIELDS), numbers, strict=True))
    window = {"sliding_window": None} if family == "mistral" and not known.endswith("v0.1") else {}
    return read_shape(FAMILIES[family], {**values, **window, "tie_word_embeddings": tied})
