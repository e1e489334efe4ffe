"""The commands as they are typed, with real processes, on tiny shapes."""

import json

import pytest

from bench import cpu, gpu, offload
from bench.command import run_command
from bench.job import Job, group_of
from bench.machine import NOT_INSTALLED, version
from bench.results import command, read_result
from bench.shapes import SHAPES
from bench.side import SIDES, measured
from whet.errors import RunFailed


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_gpu_quick_writes_a_result(tmp_path, monkeypatch):
    monkeypatch.setitem(SIDES, "vllm rollout", ("bench.peer_vllm", ("no-such-package",)))
    assert run_command(gpu.main, ["--quick", "--only", "mixed", "--out", str(tmp_path), "--commit", "abc"]) == 0
    (path,) = tmp_path.glob("mixed-tiny-*.json")
    result = read_result(path)
    assert (result["quick"], result["commit"]) == (True, "abc")
    assert result["sides"]["vllm"] == {"missing": "no-such-package not installed"}
    assert result["sides"]["transformers"]["missing"].startswith("not measured")
    whet, ideal = result["sides"]["whet"], result["limits"]["ideal_seconds"]
    tokens = sum(new for _, new in gpu.QUICK["mixed"].requests())
    assert [run["tokens"] for run in whet["runs"]] == [tokens, tokens]
    last = whet["runs"][1]["seconds"]
    assert whet["figure"] == {
        "tokens_per_second": tokens / last,
        "milliseconds_per_step": 1e3 * last / 9,  # the longest completion
        "share_of_roofline": ideal / last,
    }


@pytest.mark.slow
def test_offload_quick_runs_both(tmp_path):
    assert run_command(offload.main, ["--quick", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("offload-*.json")
    sides = read_result(path)["sides"]
    assert list(sides) == ["never", "always"]
    for side in sides.values():
        assert len(side["runs"]) == offload.STEPS
        assert set(side["figure"]["stages"]) == {"rollout", "score", "annotate", "update"}


@pytest.mark.slow
def test_cpu_quick_compares(tmp_path, monkeypatch):
    monkeypatch.setitem(SIDES, "trl step", ("bench.peer_trl", ("no-such-package",)))
    quick = ["--quick", "--repeats", "1", "--steps", "2", "--threads", "1", "--out", str(tmp_path)]
    assert run_command(cpu.main, quick) == 0
    (path,) = tmp_path.glob("cpu-2x2x4-*.json")
    result = json.loads(path.read_text())
    figure, sides = result["figure"], result["sides"]
    rollout = sides["whet"]["repeats"][0]["runs"][1]["breakdown"]["rollout"]
    generate = sides["transformers"]["repeats"][0]["runs"][1]["seconds"]
    assert figure["rollout_ratio"]["median"] == generate / rollout
    assert figure["whet_rollout_tokens_per_second"]["median"] == 16 / rollout
    assert "step_ratio" not in figure
    assert sides["trl"] == {"missing": "no-such-package not installed"}
    assert result["notes"][0] == cpu.RANDOM_NOTE


@pytest.mark.slow
def test_cpu_profile_names_what_takes_longest(tmp_path, capsys):
    quick = ["--profile", "--quick", "--threads", "1", "--out", str(tmp_path)]
    assert run_command(cpu.main, quick) == 0
    (path,) = tmp_path.glob("cpu-profile-2x2x4-*.json")
    stages = read_result(path)["sides"]["whet"]["stages"]
    assert list(stages) == ["rollout", "update"]
    for stage in stages.values():
        seconds = [one["seconds"] for one in stage["operations"]]
        assert len(seconds) == 10
        assert seconds == sorted(seconds, reverse=True)
        assert 0 < sum(seconds) < 100 * stage["seconds"]  # the same clock, and watching costs
    calls = {name: {one["operation"]: one["calls"] for one in stage["operations"]} for name, stage in stages.items()}
    readings = 4  # of the prompts, and of every new token but the last
    assert calls["rollout"]["aten::mm"] == 2 * SHAPES["tiny"].config.layers * readings + 4  # and the head of each
    assert calls["update"]["_BlockBackward"] == SHAPES["tiny"].config.layers
    said = capsys.readouterr().out
    assert f"2x2x4 rollout: {stages['rollout']['seconds']:.3f} s" in said
    assert said.count(" × ") == 20


def test_a_busy_machine_is_said():
    assert cpu.busy_notes(0.3) == []
    assert cpu.busy_notes(5.123) == ["the machine was busy: load 5.1 before the first process"]


def test_ratios_of_rounds_by_hand():
    """TRL needs 8 and 6 s beside whet's 2 and 3: 4 times and twice, so three times."""

    def answers(*seconds):
        return {"repeats": [{"runs": [_run(99.0), _run(one)]} for one in seconds]}

    def _run(seconds):
        return {"seconds": seconds, "breakdown": {"rollout": seconds / 2}}

    sides = {"whet": answers(2.0, 3.0), "trl": answers(8.0, 6.0), "transformers": answers(2.0, 6.0)}
    job = Job(side="", model="", device="cpu", workload=group_of(2, 4, 5, 3), runs=2)
    figure = cpu.figure(sides, job)
    assert figure["step_ratio"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert figure["rollout_ratio"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert figure["transformers_tokens_per_second"] == {"median": 8.0, "low": 4.0, "high": 12.0}


def test_a_broken_measurement_says_why(tmp_path):
    if version("vllm") != NOT_INSTALLED:
        pytest.skip("needs a Python without vLLM")
    job = Job(side="vllm rollout", model="", device="cpu", workload=group_of(1, 1, 1, 1), runs=1)
    with pytest.raises(RunFailed, match=r"^vllm rollout ended with 1: .* No module named 'vllm'$"):
        measured(job, tmp_path)


def test_wrong_input_is_one_line(tmp_path, capsys):
    assert run_command(gpu.main, ["--quick", "--steps", "1"]) == 2
    assert capsys.readouterr().err == "error: --steps is 1: the first step compiles, so at least 2 are needed\n"
    assert run_command(cpu.main, ["--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} has no config.json")


def test_the_command_of_a_result_names_no_place_of_one_machine():
    assert command([cpu.__file__, "--model", "/a/b/smollm2", "--set", "lr=1"]) == (
        "python -m bench.cpu --model smollm2 --set lr=1"
    )
