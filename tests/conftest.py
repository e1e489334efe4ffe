"""Settings that every test runs under."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import Zygote, blank_picture, blank_report
from tests.metrics.guard import guard

# As the command does: see whet.cli.app.main.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

HERE = Path(__file__).parent
# More than ten seconds. They come first, so that at the end no worker waits for another one's last file.
LONGEST = (
    "contracts/test_resumption.py",
    "test_pipelines.py",
    "cli/test_pipeline.py",
    "contracts/test_additivity_ranks.py",
    "distributed/test_spread.py",
    "contracts/test_resumption_spread.py",
    "test_readme.py",
    "cli/test_compare.py",
    "test_contributing.py",
    "contracts/test_resumption_state.py",
    "engines/test_steps.py",
    "tasks/test_grading.py",
    "train/test_inert.py",
    "learn/test_chapters.py",
    "cli/test_bad_input.py",
    "data/test_twins.py",
    "report/test_contest.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, the others in their order."""
    place = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="module", autouse=True)
def quick_report(request: pytest.FixtureRequest) -> Iterator[None]:
    """To draw a report takes a second, longer than most runs here: tests that look at one write it themselves.

    Other figures are composed and not rendered, except in tests/report.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.train.start.write_report", blank_report)
        if HERE / "report" not in request.path.parents:
            patch.setattr("whet.report.figures.png", blank_picture)
        yield


@pytest.fixture(scope="module", autouse=True)
def known_metrics(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every metric that a run logs has a row in the table; in tests/runs they have made-up names."""
    with pytest.MonkeyPatch.context() as patch:
        if HERE / "runs" not in request.path.parents:
            guard(patch)
        yield


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Forks `whet` commands from a process that has imported everything."""
    made = Zygote(tmp_path_factory.mktemp("commands"))
    yield made
    made.close()


@pytest.fixture
def whet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `whet …` in this process; a traceback fails the test because only SystemExit is caught."""
    from tests.cli.tiny import Outcome
    from whet.cli.app import main

    def run(*arguments: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["whet", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        code = stop.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, captured.out, captured.err)

    return run
