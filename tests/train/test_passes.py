"""Which rows are read together: by the number that a recipe says, or by one that fits."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.small import small_model
from tests.train.scenes import Table
from whet.batching import collate, packed, passes, tokens_that_fit
from whet.config.parts import UpdateConfig
from whet.models.decoder.families import family_named
from whet.models.layers.decoder_config import DecoderConfig
from whet.models.sizes import pass_bytes
from whet.models.sizes.pass_bytes import saved_by_model

CPU = torch.device("cpu")
# Two groups: a prompt of three tokens with answers of four and one, and a prompt of one with an answer of two.
ROWS = collate(
    [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 8], [9, 8, 7]],
    [[False] * 3 + [True] * 4, [False] * 3 + [True], [False, True, True]],
    CPU,
)
GROUPS = torch.tensor([5, 5, 2])


def read(**settings: object) -> list[list[int]]:
    config = UpdateConfig.model_validate(settings)
    return [rows.tolist() for rows in passes(ROWS, GROUPS, config, Table())]  # type: ignore[arg-type]


def test_a_number_bounds_what_is_read_at_a_time() -> None:
    assert read(micro_batch_tokens=7) == [[0, 1], [2]]  # 6, and 0 more for row 1, whose prompt is there; then 2
    assert read(micro_batch_tokens=8) == [[0, 1, 2]]
    assert read(micro_batch_tokens=1) == [[0], [1], [2]]
    assert read(micro_batch_tokens=8, padding_free=False) == [[0], [1, 2]]  # padded: 7, then two of 4


def test_without_a_number_all_of_it_fits() -> None:
    assert read() == [[0, 1, 2]]
    assert read(padding_free=False) == [[0, 1, 2]]


def test_a_prompt_is_packed_once_where_rows_have_a_group() -> None:
    shared = packed(ROWS, GROUPS, UpdateConfig())
    alone = packed(ROWS, None, UpdateConfig())
    assert shared is not None
    assert alone is not None
    assert shared.tokens.tolist() == [9, 1, 2, 3, 8, 4, 5, 6]
    assert alone.tokens.tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 3, 9, 8]
    assert packed(ROWS, GROUPS, UpdateConfig(padding_free=False)) is None


def test_a_token_of_smollm_by_hand() -> None:
    """30 layers of width 576, 9 and 3 heads of 64, an MLP of 1536: bytes that a block keeps of each token."""
    shape = {"vocab_size": 49152, "layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64, "width": 576}
    config = DecoderConfig(**{**family_named("llama").traits, **shape, "mlp_width": 1536, "context": 2048})
    stream = 2 * 4 * 576  # fp32, before attention and before the MLP
    attention = 2 * (9 + 3 + 3 + 9) * 64  # bf16: queries, keys, values, and what they gave
    gate = 2 * 2 * 1536  # bf16: both halves of what the gate reads
    statistics = 4 * 9 + 2 * 4  # fp32: a log-sum-exp of each head, the scale of each norm
    assert saved_by_model(config) == 30 * (stream + attention + gate + statistics) + stream
    normed = replace(config, qk_norm="head")  # bf16: queries, keys and values as they were before their norm
    assert saved_by_model(normed) == saved_by_model(config) + 30 * 2 * (9 + 3 + 3) * 64


@pytest.mark.parametrize(("gib", "expected"), [(0.001, 4096), (1000, 32_768)])
def test_a_gpu_s_memory_decides_within_bounds(gib: float, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small_model()
    properties = SimpleNamespace(total_memory=int(gib * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(model, "parameters", lambda: iter([on_gpu]))
    assert tokens_that_fit(model) == expected
    other = SimpleNamespace(parameters=lambda: iter([on_gpu]))  # of whose shape nothing is known
    assert tokens_that_fit(other) == 4096  # type: ignore[arg-type]
    monkeypatch.setattr(pass_bytes, "FEW", 1)
    monkeypatch.setattr(pass_bytes, "MANY", 10**12)
    assert tokens_that_fit(model) == int(0.2 * properties.total_memory / saved_by_model(model.config))


def test_on_a_cpu_it_is_a_constant() -> None:
    assert tokens_that_fit(small_model()[0]) == tokens_that_fit(Table()) == 4096  # type: ignore[arg-type]
