"""Shapes of well-known models: their sizes are the published ones, and names are recognised."""

import pytest

from whet.errors import UserError
from whet.models.decoder.known_shapes import KNOWN_SHAPES, require_shape, shape_called
from whet.models.layers.decoder_config import is_served, parameter_count

# Parameters as the hub counts them in the weight files of these models.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
}


def test_every_shape_has_the_published_number_of_parameters() -> None:
    assert {name: parameter_count(require_shape(name)[1]) for name in KNOWN_SHAPES} == PUBLISHED
    assert all(is_served(require_shape(name)[1]) for name in KNOWN_SHAPES)


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-0.5b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("smollm2-135m-instruct", "smollm2-135m"),
    ],
)
def test_names_of_the_hub_are_recognised(written: str, known: str) -> None:
    found = shape_called(written)
    assert found is not None
    assert found[0] == known


@pytest.mark.parametrize("other", ["Qwen/Qwen3-8B-AWQ", "me/qwen3-8b-poet", "Qwen/Qwen3-30B-A3B", "", "/", "8b"])
def test_another_model_is_not_taken_for_one(other: str) -> None:
    assert shape_called(other) is None


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no shape 'qwen3-8'; did you mean 'qwen3-8b'\?.*known: smollm2-135m"):
        require_shape("qwen3-8")


def test_the_window_of_mistral() -> None:
    assert require_shape("mistral-7b-v0.1")[1].window == 4096
    assert require_shape("mistral-7b-v0.3")[1].window is None
