"""`python -m bench.asynchronous` as it is typed, and its figures by hand."""

import pytest

from bench import asynchronous
from bench.asynchronous import figure, main
from bench.command import run_command
from bench.results import read_result


def run(seconds, waiting, peak):
    stages = {"rollout": waiting + 0.5, "waiting": waiting}
    return {"seconds": seconds, "breakdown": stages, "peak_bytes": peak, "device_bytes": None}


def test_the_first_step_is_in_no_figure_of_time():
    found = figure([run(90.0, 80.0, 7), run(3.0, 1.0, 9), run(5.0, 2.0, 8), run(10.0, 0.0, 8)])
    assert (found["seconds"], found["mean_seconds"], found["waiting_seconds"]) == (5.0, 6.0, 1.0)
    assert found["stages"] == {"rollout": 1.5, "waiting": 1.0}
    assert (found["peak_bytes"], found["device_bytes"]) == (9, None)


def test_turns_need_no_waiting():
    plain = {"seconds": 1.0, "breakdown": {"rollout": 0.5}, "peak_bytes": None, "device_bytes": None}
    assert figure([plain, plain])["waiting_seconds"] is None


def test_one_step_is_refused(capsys):
    assert run_command(main, ["--quick", "--steps", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_quick_measures_both_with_real_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run_command(main, ["--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("asynchronous-tiny-*.json")
    sides = read_result(path)["sides"]
    assert list(sides) == list(asynchronous.SIDES)
    stages = {"rollout", "score", "annotate", "update"}
    assert set(sides["synchronous"]["figure"]["stages"]) == stages
    assert set(sides["asynchronous"]["figure"]["stages"]) == stages | {"waiting", "hand_off"}
    assert all(len(side["runs"]) == 4 for side in sides.values())
