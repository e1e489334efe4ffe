"""A real vLLM: one in this process and one behind a URL, both on a CPU in fp32."""

import pytest

from tests.small import small_model
from tests.with_vllm.serve import VllmServer


def tiny(family="llama", *, seed=0, **shape):
    """A model with heads of a width that vLLM has a kernel for."""
    return small_model(family, seed=seed, **{"width": 128, "context": 256, "sharp": 4.0, **shape})


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    """A model with its tokeniser, saved."""
    path = tmp_path_factory.mktemp("tiny")
    model, tokenizer = tiny()
    model.save(path)
    tokenizer.save(path)
    return path


@pytest.fixture(scope="session")
def server(directory):
    """Started as docs/engines.md says."""
    with VllmServer(directory) as running:
        yield running
