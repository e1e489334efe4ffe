"""The limits, against figures that were worked out apart from this code (a sketch of decode loops on an H200)."""

import pytest

from bench import roofline
from bench.gpu import WORKLOADS
from bench.shapes import SHAPES, shape_of
from whet.models.layers.decoder_config import parameter_count

SMOL, QWEN = SHAPES["smollm2"].config, SHAPES["qwen3"].config


def test_the_shapes_are_the_published_ones():
    assert parameter_count(SMOL) == 134_515_008
    assert parameter_count(QWEN) == 596_049_920
    assert roofline.kv_bytes(SMOL) == 23_040
    assert roofline.kv_bytes(QWEN) == 114_688


def test_a_decode_step_by_hand():
    """Of a model with one layer of width 2 the traffic decides; for a thousand short sequences the products do."""
    config = shape_of(
        "hand", "llama", vocab_size=8, layers=1, heads=1, kv_heads=1, head_dim=2, width=2, mlp_width=4, context=64
    ).config
    n = 8 * 2 + (4 * 2 * 2) + (3 * 2 * 4) + 2 * 2 + 2  # embedding, attention, MLP, two norms, last norm
    assert parameter_count(config) == n
    # Keys and values: 2 · 1 layer · 2 numbers · 2 bytes = 8 bytes a token; contexts 3 and 5.
    assert roofline.decode_seconds(config, [3, 5]) == pytest.approx((2 * n + 8 * 8) / 4.8e12)
    products = 1000 * (2 * 134_515_008 + 4 * 30 * 576 * 1)
    assert roofline.decode_seconds(SMOL, [1] * 1000) == pytest.approx(products / 790e12)


def test_a_rollout_is_its_prompts_and_its_steps():
    """Prompts of 4 and 2 tokens, 1 and 2 new ones, twice each: a step of four sequences, then a step of two."""
    steps = roofline.decode_seconds(SMOL, [4, 2, 4, 2]) + roofline.decode_seconds(SMOL, [3, 3])
    prefill = 2 * 134_515_008 * 6 / 790e12
    assert roofline.rollout_seconds(SMOL, [(4, 1), (2, 2)], group=2) == pytest.approx(steps + prefill)


def test_the_keys_and_values_that_attention_reads():
    """A prompt of 4 and 3 new tokens: the first comes from the prefill of 4, two steps read 5 and 6 positions."""
    assert roofline.cache_bytes(SMOL, [(4, 3)], group=2) == 2 * 23_040 * (5 + 6)
    assert roofline.cache_bytes(SMOL, [(4, 3), (7, 1)]) == 23_040 * (5 + 6)


def test_the_ideal_of_mixed():
    lengths = [(len(tokens), new) for tokens, new in WORKLOADS["mixed"].requests()]
    speed = sum(new for _, new in lengths) / roofline.rollout_seconds(QWEN, lengths)
    assert speed == pytest.approx(39_900, rel=0.001)


@pytest.mark.parametrize(
    ("config", "batch", "contexts", "speed", "share"),
    [
        (SMOL, 512, range(128, 639), 205_500, 0.40),
        (SMOL, 1024, range(128, 639), 246_500, 0.47),
        (QWEN, 512, range(128, 639), 65_500, 0.63),
        (QWEN, 256, range(512, 1023), 36_500, 0.71),
    ],
)
def test_the_shares_of_the_sketch(config, batch, contexts, speed, share):
    ideal = sum(roofline.decode_seconds(config, [context] * batch) for context in contexts)
    assert speed / (batch * len(contexts) / ideal) == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize(("config", "seconds", "share"), [(SMOL, 1.28, 0.28), (SMOL, 1.34, 0.27), (QWEN, 3.98, 0.40)])
def test_the_shares_of_training(config, seconds, share):
    flop = roofline.training_flop(config, sequences=512, tokens=640)
    assert flop / seconds / roofline.FLOPS == pytest.approx(share, abs=0.005)
