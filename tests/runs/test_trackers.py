"""TensorBoard is read back with its own reader; Weights & Biases is a small stand-in that keeps what it is told."""

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from whet.errors import UserError
from whet.runs.directory import RunDirectory


class FakeRun:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb_runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    runs: list[FakeRun] = []
    module = ModuleType("wandb")

    def init(**arguments: Any) -> FakeRun:
        runs.append(FakeRun(**arguments))
        return runs[-1]

    module.init = init  # type: ignore[attr-defined]
    module.Table = lambda columns, data: (columns, data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return runs


def tensorboard_scalars(run: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_a_resumed_run_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["tensorboard"], {}, first_step=1)
    for step in range(1, 7):
        run.log(step, {"reward": float(step), "kl": math.nan})
    run.close()  # steps 4 to 6 are lost: the last checkpoint is that of step 3
    resumed = RunDirectory.open(run.path)
    resumed.rewind(3)
    resumed.track(["tensorboard"], {}, first_step=4)
    for step in range(4, 8):
        resumed.log(step, {"reward": step + 0.5})
    resumed.close()
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert tensorboard_scalars(run.path, "reward") == expected


def test_what_a_checkpoint_saw_is_on_disk_in_tensorboard_too(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["tensorboard"], {}, first_step=1)
    run.log(1, {"reward": 0.25})
    run.save(1, lambda directory: None, {}, keep=1)
    assert tensorboard_scalars(run.path, "reward") == [(1, 0.25)]  # before close: a kill now loses nothing
    run.close()


def test_one_wandb_run_for_all_resumes(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["wandb"], {"steps": 3}, first_step=1)
    run.log(1, {"reward": 0.5, "kl": math.inf})
    run.close()
    resumed = RunDirectory.open(run.path)
    resumed.track(["wandb"], {"steps": 3}, first_step=2)
    resumed.log(2, {"reward": 0.75})
    resumed.close()
    first, second = wandb_runs
    assert first.arguments["id"] == second.arguments["id"] != ""
    assert first.arguments["resume"] == "allow"
    assert first.arguments["project"] == "whet"
    assert first.arguments["mode"] is None
    assert first.arguments["config"] == {"steps": 3}
    assert first.logged == [(1, {"reward": 0.5})]  # a number that is not finite is not shown
    assert second.logged == [(2, {"reward": 0.75})]
    assert first.finished
    assert second.finished


def test_wandb_listens_to_its_environment(
    tmp_path: Path, wandb_runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "towers")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["tensorboard", "wandb", "wandb"], {}, first_step=1)
    assert [(made.arguments["project"], made.arguments["mode"]) for made in wandb_runs] == [("towers", "offline")]


def test_wandb_missing_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # makes the import fail, installed or not
    with RunDirectory.create(tmp_path, "r", "") as run, pytest.raises(UserError, match="pip install wandb"):
        run.track(["wandb"], {}, first_step=1)


def test_an_error_inside_of_an_installed_package_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code, told in (
        (
            "wandb",
            "import no_such_module_of_wandb",
            r"its import fails: ModuleNotFoundError: .*no_such_module_of",
        ),
        ("mlflow", "raise TypeError('protobuf is too new')", "its import fails: TypeError: protobuf is too new"),
    ):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        with RunDirectory.create(tmp_path, "r", "") as run, pytest.raises(UserError, match=told) as caught:
            run.track([name], {}, first_step=1)
        assert "not installed" not in str(caught.value)


ANSWERS = [
    {"id": str(n), "prompt": f"{n}+1=", "answer": str(n + 1), "text": "# 2\n\n3", "correct": n == 1} for n in range(6)
]


def test_tensorboard_shows_completions_as_text(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["tensorboard"], {}, first_step=0)
        run.record_answers(3, ANSWERS)
        run.show(3, "samples/rollouts", [])
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert events.Tags()["tensors"] == ["samples/held_out/text_summary"]
    (event,) = events.Tensors("samples/held_out/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert text.count("**prompt**") == 4
    assert "**text**\n\n    # 2\n    \n    3\n\n**answer**\n\n    1" in text


def test_what_a_completion_does_not_have_is_left_out(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    greedy = {"prompt": "1", "text": "2", "answer": "", "correct": None, "reward": 0.5}
    sampled = {"prompt": "1", "text": "3", "answer": "", "correct": None}
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["tensorboard", "wandb"], {}, first_step=0)
        run.record_answers(3, [greedy, sampled])
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    text = events.Tensors("samples/held_out/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "correct" not in text
    assert "None" not in text
    assert text.count("**reward**") == 1
    table = wandb_runs[0].logged[0][1]["samples/held_out"]
    assert table == (["prompt", "text", "answer", "reward"], [["1", "2", "", 0.5], ["1", "3", "", None]])


def test_wandb_shows_completions_as_a_table(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["wandb"], {}, first_step=0)
        run.record_answers(0, ANSWERS)
        run.show(2, "samples/rollouts", [{"prompt": "1", "text": "2", "reward": 0.5, "tokens": [3]}])
    (step, held_out), (later, rollouts) = wandb_runs[0].logged
    columns, rows = held_out["samples/held_out"]  # type: ignore[misc]
    assert (step, later) == (0, 2)
    assert columns == ["prompt", "text", "answer", "correct"]
    assert rows[0] == ["0+1=", "# 2\n\n3", "1", False]
    assert len(rows) == 4
    assert rollouts["samples/rollouts"] == (["prompt", "text", "reward"], [["1", "2", 0.5]])


class FakeMLflow(ModuleType):
    """Keeps what it is told, as (function, arguments)."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.told.append((name, *arguments, *named.values()))
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        return call


def test_one_mlflow_run_for_all_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    run = RunDirectory.create(tmp_path, "r", "")
    run.track(["mlflow"], {"steps": 3, "model": {"path": "m"}}, first_step=1)
    run.log(1, {"eval/pass@4": 0.5, "kl": math.inf})
    run.record_answers(1, ANSWERS[:1])
    run.close()
    resumed = RunDirectory.open(run.path)
    resumed.track(["mlflow"], {"steps": 3}, first_step=2)
    resumed.close()
    row = {"prompt": "0+1=", "text": "# 2\n\n3", "answer": "1", "correct": False}
    assert fake.told == [
        ("set_experiment", "whet"),
        ("start_run", run.path.name),
        ("log_params", {"steps": "3", "model.path": "m"}),
        ("log_metrics", {"eval/pass_at_4": 0.5}, 1),
        ("log_dict", {"step": 1, "rows": [row]}, "samples/held_out/step-000001.json"),
        ("end_run",),
        ("start_run", "r1"),
        ("end_run",),
    ]


def test_trackio_resumes_a_run_by_its_name(
    tmp_path: Path, wandb_runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", sys.modules["wandb"])  # it has W&B's interface
    monkeypatch.setenv("TRACKIO_PROJECT", "towers")
    with RunDirectory.create(tmp_path, "r", "") as run:
        run.track(["trackio"], {"steps": 3}, first_step=1)
        run.log(1, {"reward": 0.5})
    told = {"project": "towers", "name": run.path.name, "resume": "allow", "config": {"steps": 3}}
    assert wandb_runs[0].arguments == told
    assert wandb_runs[0].logged == [(1, {"reward": 0.5})]
    assert wandb_runs[0].finished


def test_other_ranks_track_nothing(tmp_path: Path, wandb_runs: list[FakeRun]) -> None:
    with RunDirectory.create(tmp_path, "r", "") as run:
        other = RunDirectory.open(run.path, is_writer=False)
        other.track(["tensorboard", "wandb"], {}, first_step=1)
        other.log(1, {"reward": 1.0})
    assert wandb_runs == []
    assert not (run.path / "tensorboard").exists()
