"""Decoder shapes that the CUDA kernels support, in sampling and in training. Imports no CUDA."""

from __future__ import annotations

from whet.models.layers.decoder_config import DecoderConfig

HEAD_WIDTHS = (16, 32, 64, 128)  # what the attention kernel's tiles fit


def is_served(config: DecoderConfig) -> bool:
    """Whether the kernels for CUDA compute this shape."""
    return has_usual_blocks(config) and config.head_dim in HEAD_WIDTHS


def has_usual_blocks(config: DecoderConfig) -> bool:
    """RMS norms before attention and a gated MLP, rotary positions, biases at most in queries, keys and values."""
    plain = (
        config.norm == "rms" and config.positions == "rope" and config.mlp == "swiglu" and config.norm_place == "pre"
    )
    biases = config.attention_out_bias or config.mlp_bias
    return plain and not biases and config.qk_norm != "full"
