"""What the tests of runs share."""

from pathlib import Path

import pytest

from tests.contracts.here import save_small
from tests.rollout_pool.here import in_threads, train, written


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "start", sharp=2.0)


@pytest.fixture(scope="session")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with workers in threads, to which nothing happens."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_threads(monkeypatch)
        return train(written(model, threads=1), tmp_path_factory.mktemp("undisturbed") / "run")
