"""The measurement of both sides, on a tiny shape."""

from pathlib import Path

import pytest

from bench import native
from bench.command import run_command
from bench.results import read_result

pytestmark = pytest.mark.native


def test_quick_writes_a_result(tmp_path: Path) -> None:
    arguments = f"--quick --repeats 1 --steps 4 --threads 1 --commit abc --out {tmp_path}"
    assert run_command(native.main, arguments.split()) == 0
    (path,) = tmp_path.glob("native-tiny-*.json")
    result = read_result(path)
    assert (result["quick"], result["commit"]) == (True, "abc")
    assert 0 <= result["workload"]["largest_difference_of_losses"] < 1e-4
    for side in ("native", "python"):
        (answer,) = result["sides"][side]["repeats"]
        assert {len(values) for values in answer.values()} == {4}
        middle = sorted(answer["seconds"][1:])[1]
        assert result["figure"][f"{side}_tokens_per_second"]["median"] == pytest.approx(4 * 16 / middle)
    assert result["figure"]["ratio"]["median"] == pytest.approx(
        result["figure"]["native_tokens_per_second"]["median"] / result["figure"]["python_tokens_per_second"]["median"]
    )


def test_sides_that_compute_different_losses_are_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LR", 0.1)  # of the side in C++ alone: the other is a process of its own
    assert run_command(native.main, ["--quick", "--repeats", "1", "--steps", "4", "--out", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())


def test_a_program_that_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PROGRAM", tmp_path / "whet-native")
    assert run_command(native.main, ["--quick", "--out", str(tmp_path)]) == 2
