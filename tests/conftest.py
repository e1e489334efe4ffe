"""Settings that every test runs under."""

import os
from pathlib import Path

import pytest

# As the command does: see whet.cli.app.main.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

HERE = Path(__file__).parent
# Twenty seconds and more. They come first, so that at the end no worker waits for another one's last file.
LONGEST = (
    "test_readme.py",
    "test_pipelines.py",
    "contracts/test_additivity_ranks.py",
    "test_contributing.py",
    "contracts/test_resumption.py",
    "train/test_learning.py",
    "cli/test_pipeline.py",
    "bench/test_commands.py",
    "tasks/test_grading.py",
    "cli/test_compare.py",
    "cli/test_bad_models.py",
    "test_recipes.py",
    "cli/test_train.py",
    "engines/test_continuous.py",
    "runs/test_kill.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order."""
    place = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
