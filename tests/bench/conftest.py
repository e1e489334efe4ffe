"""One tiny model for all tests."""

from pathlib import Path

import pytest

from bench.shapes import SHAPES, random_directory


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return random_directory(SHAPES["tiny"], tmp_path_factory.mktemp("bench") / "model")
