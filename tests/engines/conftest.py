"""A small model of ours, alone and behind a real server."""

import pytest

from tests.engines.openai_server import Served, serving
from tests.small import small_model
from whet.engines.native.native_engine import NativeEngine


@pytest.fixture(scope="module")
def native():
    model, tokenizer = small_model()
    return NativeEngine(model, tokenizer)


@pytest.fixture
def served(native):
    with serving(Served(native)) as served:
        yield served
