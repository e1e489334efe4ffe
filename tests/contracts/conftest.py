"""What the contracts share: one supervised run, and a model that it made."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.command import SUPERVISED, Zygote, only_run, write_recipe


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """As in the commands: the tensors are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def supervised(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished offline run."""
    return finished(zygote, tmp_path_factory.mktemp("supervised"), SUPERVISED)


@pytest.fixture(scope="session")
def beginner(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is right now and then: there is something to reinforce."""
    return finished(zygote, tmp_path_factory.mktemp("beginner"), {**SUPERVISED, "steps": 12}) / "best_model"


def finished(zygote: Zygote, directory: Path, recipe: Mapping[str, Any]) -> Path:
    path = write_recipe(directory / "sft.yaml", recipe)
    zygote.run("train", path, "--runs", directory / "runs")
    return only_run(directory / "runs")
