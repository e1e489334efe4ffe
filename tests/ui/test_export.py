"""An export: which answers are in its files, and what is said about what is not."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.fake_run import hostile_run, online_run
from tests.report.fake_sweep import comparison
from tests.ui.pages import ask
from tests.ui.test_rollouts import row
from whet.errors import UserError
from whet.runs.directory import RunDirectory
from whet.ui.export import by_importance, export, spread


def calls(text: str, function: str) -> list[list[Any]]:
    """The arguments of every line `function(…);` of a script."""
    lines = [line for line in text.splitlines() if line.startswith(f"{function}(")]
    return [json.loads(f"[{line.removeprefix(f'{function}(').removesuffix(');')}]") for line in lines]


def answers(made: Path) -> dict[str, Any]:
    scripts = [file.read_text("ascii") for file in sorted((made / "data").iterdir())]
    return {key: answer for script in scripts for key, answer in calls(script, "answered")}


def test_its_answers_are_those_of_the_server(tmp_path: Path) -> None:
    run = online_run(tmp_path / "runs", steps=30)
    made = export([run], tmp_path / "out", megabytes=20)
    found = answers(tmp_path / "out")
    assert made.left_out == []
    assert found[f"run?run={run.name}"] == ask(tmp_path / "runs", "run", run=run.name) | {"path": run.name}
    for log in ("metrics", "timings"):
        assert found[f"curves?log={log}&run={run.name}"] == ask(tmp_path / "runs", "curves", run=run.name, log=log)
    assert found[f"doctor?run={run.name}"] == ask(tmp_path / "runs", "doctor", run=run.name)
    assert (
        found[f"held_out?run={run.name}&step=0"]["answers"]
        == ask(tmp_path / "runs", "held_out", run=run.name, step=0)["answers"]
    )
    [listed] = found["runs"]["entries"]
    assert listed["name"] == run.name
    rolled = [
        row
        for file in (tmp_path / "out" / "rollouts").iterdir()
        for _, row in calls(file.read_text("ascii"), "rolledOut")
    ]
    whole = ask(tmp_path / "runs", "rollout", run=run.name, step=30, group=1, number=2)
    del whole["siblings"]
    assert whole in rolled
    assert len(rolled) == len(found[f"rollouts?run={run.name}"]["step"]) == 24


def test_only_the_named_runs_are_in_it(tmp_path: Path) -> None:
    """Of a comparison all of its runs."""
    secret = online_run(tmp_path / "runs", steps=10)
    comparison(tmp_path / "runs" / "sweep", {"grpo": [[0.1, 0.9]], "rloo": [[0.1, 0.2]]})
    export([tmp_path / "runs" / "sweep"], tmp_path / "out", megabytes=1)
    names = [entry["name"] for entry in answers(tmp_path / "out")["runs"]["entries"]]
    assert sorted(names) == ["sweep", "sweep/grpo/seed-0", "sweep/rloo/seed-0"]
    for file in (path for path in (tmp_path / "out").rglob("*") if path.is_file()):
        assert secret.name not in file.read_text("utf-8")
        assert str(tmp_path) not in file.read_text("utf-8"), file


def test_what_exceeds_the_limit_is_left_out_and_told(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "steps: 9\n", path=tmp_path / "r") as run:
        for step in range(1, 10):
            run.log(step, {"reward/mean": 0.5})
            run.record(step, [row("p", "x" * 1000)])
    made = export([tmp_path / "r"], tmp_path / "out", megabytes=0.08)
    [told] = made.left_out
    kept = answers(tmp_path / "out")["rollouts?run=r"]["step"]
    assert told == f"r: the rollouts of {9 - len(kept)} of 9 steps were left out of this export"
    assert kept[0] == 9
    assert kept[-1] == 1
    [contents] = calls((tmp_path / "out" / "contents.js").read_text("ascii"), "exported")[0]
    assert contents["left_out"] == made.left_out
    assert set(contents["rollouts"]["r"]) == {str(step) for step in kept}
    assert 2 <= len(kept) < 9


def test_steps_between_are_taken_from_the_middle() -> None:
    assert by_importance(range(1, 10), {4}) == [4, 9, 1, 5, 3, 7, 2, 6, 8]
    assert by_importance([7], set()) == [7]
    assert by_importance([], {3}) == []
    assert list(spread(range(100), 4)) == [0, 33, 66, 99]
    assert list(spread([3, 5], 4)) == [3, 5]


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    payload = "</script><script>alert(1)</script>\u2028\ud800`${1}"
    run = hostile_run(tmp_path / "runs", payload)
    (run / "report.html").write_text("<script>alert(1)</script>")
    export([run], tmp_path / "out", megabytes=1)
    found = answers(tmp_path / "out")  # each line is one call with JSON: there is no other script
    assert found[f"held_out?run={run.name}"]["answers"][0]["text"] == payload
    for script in [*(tmp_path / "out" / "data").iterdir(), *(tmp_path / "out" / "rollouts").iterdir()]:
        for line in script.read_text("ascii").splitlines():
            assert re.fullmatch(r"(answered|rolledOut)\(.*\);", line)
    [report] = [file for file in (tmp_path / "out" / "copied").iterdir() if file.suffix == ".html"]
    start = report.read_text("utf-8").partition("<script>")[0]
    assert "default-src 'none'" in start
    assert "script-src" not in start
    index = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "script-src 'self';" in index.partition("<script")[0]


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    run = online_run(tmp_path / "runs", steps=10)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        export([run], tmp_path / "out", megabytes=1)
    with pytest.raises(UserError, match="neither a run nor"):
        export([tmp_path / "out"], tmp_path / "new", megabytes=1)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_damaged_block_costs_its_rows_alone(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "runs", "r", "steps: 2\n") as run:
        for step in (1, 2):
            run.log(step, {"reward/mean": 0.5})
            run.record(step, [row("a", "b")] * 3)
        assert len(run.rollouts(2)) == 3
    file = run.path / "rollouts" / "step-000001.jsonl.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    made = export([run.path], tmp_path / "out", megabytes=math.inf)
    assert set(made.rollouts[run.path.name]) == {1, 2}
    rolled = [calls(one.read_text("ascii"), "rolledOut") for one in sorted((tmp_path / "out" / "rollouts").iterdir())]
    assert sorted(map(len, rolled)) == [0, 3]
    (told,) = [one for one in made.left_out if "block 1 of 1" in one]
    assert "step-000001" in told
    written = [one for one in (tmp_path / "out").rglob("*.js") if str(tmp_path) in one.read_text("utf-8")]
    assert written == [], "an export names no directory of this machine"


def test_runs_far_apart_are_exported_without_a_walk_through_all_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = online_run(tmp_path / "a" / "runs", steps=10), online_run(tmp_path / "b" / "x", steps=10)
    online_run(tmp_path / "c", steps=10)
    looked = set()
    entries = Path.iterdir

    def noted(path: Path) -> Iterator[Path]:
        looked.add(path)
        return entries(path)

    monkeypatch.setattr(Path, "iterdir", noted)
    export([one, other], tmp_path / "out", megabytes=1)
    assert [entry["name"] for entry in answers(tmp_path / "out")["runs"]["entries"]] == [
        f"b/x/{other.name}",
        f"a/runs/{one.name}",
    ]
    assert not looked & {tmp_path, tmp_path / "a", tmp_path / "b", tmp_path / "c"}
