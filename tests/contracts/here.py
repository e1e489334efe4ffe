"""The loops in this process: for what a test wants to look into or break."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.small import small_model
from whet.cli.progress import SilentProgress
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.recipe import dump, validate
from whet.runs.directory import RunDirectory
from whet.train.online import loop as online
from whet.train.rows import loop as offline


def train_here(recipe: Mapping[str, Any], path: Path) -> RunDirectory:
    """Trains, or goes on with, the run at `path`; returns it for reading."""
    config = validate(recipe, where="test")
    is_run = (path / "config.yaml").exists()
    with (
        RunDirectory.open(path) if is_run else RunDirectory.create(path.parent, "test", dump(config), path=path) as run
    ):
        if isinstance(config, OfflineConfig):
            offline.train(config, run, World.alone(), SilentProgress())
        else:
            online.train(config, run, World.alone(), SilentProgress())
    return RunDirectory.open(path, is_writer=False)


def save_small(directory: Path, *, seed: int = 0, sharp: float = 8.0) -> Path:
    """A random model with strong opinions, as a directory."""
    policy, tokenizer = small_model(seed=seed, sharp=sharp, layers=1)
    directory.mkdir(parents=True)
    policy.save(directory)
    tokenizer.save(directory)
    return directory
