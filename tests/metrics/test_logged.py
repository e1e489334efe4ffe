"""What runs log and what the table has are the same: every logged metric has a row, every row is logged."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.metrics.guard import NoRow, guard
from tests.metrics.runs import logged
from whet.metrics.metric import Loop
from whet.metrics.table import METRICS, row_of
from whet.runs.directory import RunDirectory

Seen = dict[str, set[Loop]]  # logged name → loops


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    found: Seen = defaultdict(set)
    for loop, names in logged(tmp_path_factory.mktemp("logged")):
        for name in names:
            found[name].add(loop)
    return found


def test_every_logged_metric_has_a_row_that_names_its_loop(seen: Seen) -> None:
    for name, loops in seen.items():
        row = row_of(name)
        assert row is not None, f"{name} has no row in whet/metrics"
        assert loops <= set(row.loops), f"{name} is logged by {loops - set(row.loops)}"


def test_every_row_is_logged(seen: Seen) -> None:
    rows = {row.name for name in seen if (row := row_of(name)) is not None}
    assert [metric.name for metric in METRICS if metric.name not in rows] == []


def test_intervals_are_where_rows_say(seen: Seen) -> None:
    ends = {row.name for name in seen if name.endswith("_low") and (row := row_of(name)) is not None}
    assert ends == {metric.name for metric in METRICS if metric.has_interval}


def test_a_metric_without_a_row_is_noticed_in_any_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard(monkeypatch)
    with RunDirectory.create(tmp_path, "x", "loop: online\n") as run:
        run.log(1, {"kl": 0.1, "eval/hard/accuracy_low": 0.5})
        with pytest.raises(NoRow, match="kll"):
            run.log(2, {"kl": 0.1, "kll": 0.2})
        run.log_times(1, {"seconds/step": 1.0})
        with pytest.raises(NoRow, match="seconds/steps"):
            run.log_times(2, {"seconds/steps": 1.0})
