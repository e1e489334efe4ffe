"""Without the built trainer these tests are skipped; `make test-native` builds it and sets NATIVE_REQUIRED."""

import os

import pytest

from tests.native_trainer.program import PROGRAM


@pytest.fixture(autouse=True)
def built() -> None:
    if not PROGRAM.is_file():
        if os.environ.get("NATIVE_REQUIRED"):
            pytest.fail(f"{PROGRAM} is missing: `make native` did not build it")
        pytest.skip("the trainer in C++ is not built: make native")
