"""Settings that every test runs under."""

import os
from collections.abc import Iterator
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


def blank_report(path: Path) -> Path:
    """Files where a run's report belongs."""
    for name in ("training_curves.png", "report.html"):
        (path / name).write_text("")
    return path / "report.html"


@pytest.fixture(scope="module", autouse=True)
def quick_report(request: pytest.FixtureRequest) -> Iterator[None]:
    """To draw a report takes a second, longer than most runs here: modules that look at one are marked real_report."""
    if request.node.get_closest_marker("real_report"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.train.start.write_report", blank_report)
        yield
