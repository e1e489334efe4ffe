"""Models that both libraries load."""

from pathlib import Path

import pytest

from tests.models.hf_models import CASES, build
from whet.models.text.tokenizers import character_tokenizer


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Small random models with a tokeniser, as directories that both libraries load; by the names of `CASES`."""
    made: dict[str, Path] = {}

    def checkpoint(case: str) -> Path:
        if case not in made:
            made[case] = tmp_path_factory.mktemp("parity") / case
            build(*CASES[case]).save_pretrained(made[case])
            character_tokenizer("0123456789+=").save(made[case])
        return made[case]

    return checkpoint


@pytest.fixture
def checkpoint(checkpoints):
    """The model for tests that do not look at it."""
    return checkpoints("llama-tied")
