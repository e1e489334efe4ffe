"""Runs that end before their last step, and runs that sample nothing: what a session says, saves and resumes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import online
from tests.contracts.here import save_small
from tests.train import rows_on_disk as on_disk
from whet.cli.progress import SilentProgress
from whet.config import EarlyStoppingConfig
from whet.errors import UserError
from whet.evaluate.measures import measure_of
from whet.models.reward.scoring import load_scorer
from whet.recipe import Recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.rows.reward_training import RewardTrainer
from whet.train.session.early_stopping import is_new_best, over_budget, watched, watched_measure, without_improvement
from whet.train.start import resume_run, start_run

NAN = float("nan")
ACCURACY = measure_of("eval/accuracy")


@pytest.mark.parametrize(
    ("kl", "budget", "ends"), [(1.0, 2.0, False), (2.0, 2.0, False), (2.01, 2.0, True), (9.0, None, False)]
)
def test_a_budget_is_spent_above_it(kl: float, budget: float | None, ends: bool) -> None:
    assert bool(over_budget({"kl_rollout": kl}, EarlyStoppingConfig(kl=budget))) is ends


def test_the_reason_has_both_numbers() -> None:
    told = over_budget({"kl_rollout": 2.345678}, EarlyStoppingConfig(kl=1.5))
    assert told == "rollouts are 2.35 nats from the reference, above early_stopping.kl 1.5"
    assert over_budget({"updates": 0.0}, EarlyStoppingConfig(kl=1.5)) == ""  # a step without rollouts says nothing


@pytest.mark.parametrize(
    ("values", "patience", "since"),
    [
        ([0.1, 0.5, 0.4], 1, 1),
        ([0.1, 0.5, 0.4], 2, 0),
        ([0.1, 0.5, 0.4, 0.45], 2, 2),  # better than the last time, and still below the best
        ([0.1, 0.5, 0.6], 1, 0),
        ([0.5, 0.4, 0.5], 2, 2),  # as good as the best is no improvement
        ([0.0, 0.0, 0.0], 3, 0),  # a plateau from the evaluation before training on
        ([0.0, 0.0, 0.0, 0.0], 3, 3),
        ([0.5, 0.4, 0.5, 0.3, 0.2, 0.1], 5, 5),
        ([0.5, 0.4, 0.3], 0, 0),  # 0: it may fall for as long as it likes
        ([], 1, 0),
        ([0.5], 1, 0),
    ],
)
def test_patience_counts_evaluations_without_improvement(values: list[float], patience: int, since: int) -> None:
    rows = [{"step": step, "eval/accuracy": value} for step, value in enumerate(values)]
    rows = [row for pair in zip(rows, ({"step": 9, "loss": 1.0} for _ in rows), strict=True) for row in pair]
    stop = EarlyStoppingConfig(patience=patience)
    told = without_improvement(watched(rows, stop, ACCURACY), stop, ACCURACY)
    best = f"{max(values, default=0.0):.4g}"
    evaluations = "1 evaluation" if since == 1 else f"{since} evaluations"
    assert told == (f"eval/accuracy has not improved on its best, {best}, for {evaluations}" if since else "")


def test_what_is_no_number_is_no_fall() -> None:
    stop = EarlyStoppingConfig(patience=1, metric="eval/gold")
    gold = watched_measure(stop, ACCURACY)
    assert gold.metric == "eval/gold"
    assert watched([{"eval/gold": 1.0}, {"eval/gold": None}, {"eval/gold": NAN}, {"loss": 2.0}], stop, gold) == [1.0]
    assert without_improvement([1.0], stop, gold) == ""


def test_a_loss_is_past_its_best_when_it_has_risen() -> None:
    stop, loss = EarlyStoppingConfig(patience=2), measure_of("eval/loss")
    assert watched_measure(stop, loss) is loss  # without a metric of its own: that of the best model
    assert without_improvement([3.0, 2.0, 2.5], stop, loss) == ""
    told = without_improvement([3.0, 2.0, 2.5, 2.1], stop, loss)
    assert told == "eval/loss has not improved on its best, 2, for 2 evaluations"
    assert without_improvement([3.0, 2.0, 2.5, 2.0], stop, loss) != ""
    assert without_improvement([3.0, 2.0, 2.5, 1.9], stop, loss) == ""


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("eval/accuracy", [0.5, 0.5, 0.5], 1),  # nothing moved: the first trained model, not the one before training
        ("eval/accuracy", [0.5, 0.4, 0.5, 0.5], 2),
        ("eval/accuracy", [0.5, 0.6, 0.6, 0.4], 1),
        ("eval/accuracy", [0.5, 0.6, 0.7], 2),
        ("eval/accuracy", [0.5, 0.4, 0.3], 0),
        ("eval/loss", [2.0, 1.5, 1.5, 1.6], 1),
        ("eval/loss", [2.0, 2.0], 1),
    ],
)
def test_of_equal_models_the_first_trained_one_is_the_best(metric: str, values: list[float], best: int) -> None:
    kept: dict[str, Any] = {}
    for step, value in enumerate(values):
        if is_new_best(kept, {metric: kept.get("value")}, {metric: value}, measure_of(metric)):
            kept = {"step": step, "value": value}
    assert kept == {"step": best, "value": values[best]}


def test_equal_models_are_told_apart_by_the_other_measures() -> None:
    """While no answer is right, the loss says which model is further."""
    best, accuracy = {"step": 1}, measure_of("eval/accuracy")
    before = {"eval/accuracy": 0.0, "eval/loss": 2.0, "eval/length": 3.0}
    assert is_new_best(best, before, {**before, "eval/loss": 1.9}, accuracy)
    assert not is_new_best(best, before, {**before, "eval/loss": 2.1}, accuracy)
    assert not is_new_best(best, before, {**before, "eval/length": 9.0}, accuracy)  # no headline
    assert not is_new_best(best, {**before, "eval/accuracy": 0.1}, {**before, "eval/loss": 0.0}, accuracy)
    assert is_new_best(best, {"eval/accuracy": 0.0}, {"eval/accuracy": 0.1}, accuracy)


class Listening(SilentProgress):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def train(written: dict[str, Any], directory: Path) -> tuple[RunDirectory, list[str]]:
    progress = Listening()
    config = validate(written, where="test")
    path = start_run(Recipe(name="stop", config=config, written={}), directory, lambda *_: progress)
    return RunDirectory.open(path, is_writer=False), progress.notes


def results(run: RunDirectory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.path / "final_results.json").read_text())
    return found


def check_end(run: RunDirectory, notes: list[str], reason: str, *, before: int) -> int:
    """The run ended early, for this reason, evaluated and saved at its last step; returns the step."""
    found = results(run)
    last = found["steps"]
    assert 1 <= last < before
    assert reason in found["ended"]
    assert f"early stopping after step {last}: {found['ended']}" in notes
    metrics = run.metrics()
    assert metrics[-1]["step"] == last
    assert found["after"] == {name: value for name, value in metrics[-1].items() if name.startswith("eval/")}
    checkpoint = run.latest()
    assert checkpoint is not None
    assert checkpoint.step == last
    with pytest.raises(UserError, match="is finished; to train on, start a new run"):
        resume_run(run.path, [], lambda *_: SilentProgress())
    return int(last)


def drifting(model: Path, **changes: Any) -> dict[str, Any]:
    """A policy that moves fast: its rate is high and what it is paid for is to be short."""
    written = online(
        model,
        steps=40,
        algorithm={"preset": "grpo", "kl": {"coefficient": 1e-4}},
        rollout={"prompts": 4, "group": 6, "max_tokens": 6},
        reward={"length_penalty": 1.0},
        optimizer={"lr": 1e-2},
        update={"micro_batch_tokens": 512},
        eval={"every_steps": 40, "examples": 8, "max_tokens": 6},
        save={"every_steps": 40},
        device="cpu",
    )
    return {**written, **changes}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("model") / "start", sharp=2.0)


@pytest.fixture(scope="module")
def spent(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, list[str]]:
    """A run that has spent its KL."""
    return train(drifting(model, early_stopping={"kl": 0.5}), tmp_path_factory.mktemp("spent"))


def test_a_run_ends_when_its_kl_is_spent(spent: tuple[RunDirectory, list[str]]) -> None:
    run, notes = spent
    last = check_end(run, notes, "nats from the reference, above early_stopping.kl 0.5", before=40)
    drift = [row["kl_rollout"] for row in run.metrics() if row["step"] > 0]
    assert drift[-1] > 0.5
    assert all(kl <= 0.5 for kl in drift[:-1])
    assert last in run.answer_steps()  # looked at once more, although no evaluation was due


def test_killed_after_the_last_checkpoint_it_still_ends_there(
    spent: tuple[RunDirectory, list[str]], tmp_path: Path
) -> None:
    """What ended the run is saved with it: resumed equals never stopped."""
    run, _ = spent
    copy = Path(shutil.copytree(run.path, tmp_path / run.path.name))
    (copy / "final_results.json").unlink()
    resume_run(copy, [], lambda *_: SilentProgress())
    for name in ("metrics.jsonl", "checkpoints/step-{:06d}/model/model.safetensors".format(results(run)["steps"])):
        assert (copy / name).read_bytes() == (run.path / name).read_bytes()
    again = results(RunDirectory.open(copy, is_writer=False))
    same = ("steps", "ended", "before", "after", "best", "tokens")
    assert {key: again[key] for key in same} == {key: results(run)[key] for key in same}


def test_a_run_ends_when_a_metric_has_fallen_for_too_long(model: Path, tmp_path: Path) -> None:
    written = drifting(model, early_stopping={"patience": 2, "metric": "eval/length"})
    written["eval"] = {"every_steps": 1, "examples": 8, "max_tokens": 6}
    run, notes = train(written, tmp_path)
    check_end(run, notes, "eval/length has not improved on its best, ", before=40)
    lengths = [row["eval/length"] for row in run.metrics()]
    assert lengths.index(max(lengths)) == len(lengths) - 3  # its first maximum, and two evaluations after it


def test_a_run_on_a_plateau_ends_and_its_best_model_is_a_trained_one(model: Path, tmp_path: Path) -> None:
    written = drifting(model, early_stopping={"patience": 2}, optimizer={"lr": 1e-12})
    written["eval"] = {"every_steps": 1, "examples": 8, "max_tokens": 6}
    run, notes = train(written, tmp_path)
    assert len({row["eval/accuracy"] for row in run.metrics()}) == 1  # nothing moves
    assert check_end(run, notes, "eval/accuracy has not improved on its best, ", before=40) == 2
    assert results(run)["best"]["step"] == run.best_info()["step"] == 1


def test_a_run_that_does_not_fall_goes_to_its_end(model: Path, tmp_path: Path) -> None:
    run, _ = train(drifting(model, steps=3, early_stopping={"kl": 1e6, "patience": 3}), tmp_path)
    assert results(run)["steps"] == 3
    assert "ended" not in results(run)


def test_a_metric_that_nobody_measures_is_refused_before_training(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"early_stopping\.metric is 'eval/gold', which is not measured here; use one of eval/"
    ) as e:
        train(drifting(model, early_stopping={"patience": 1, "metric": "eval/gold"}), tmp_path)
    assert "\n" not in str(e.value)
    assert not list(tmp_path.iterdir())  # nothing was begun


def rewarding(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    on_disk.saved_model(tmp_path / "start")
    on_disk.pairs(tmp_path / "pairs.jsonl")
    config = on_disk.config(tmp_path / "start", tmp_path / "pairs.jsonl", "bradley_terry")
    written = {**config.model_dump(mode="json"), "eval": {"every_steps": 1, "examples": 12}, "save": {"every_steps": 2}}
    return {**written, **changes}


def test_a_run_that_samples_nothing_is_measured_saved_and_resumed(tmp_path: Path) -> None:
    run, notes = train(rewarding(tmp_path), tmp_path / "runs")
    assert run.answer_steps() == []
    measured = [row["eval/pair_accuracy"] for row in run.metrics()]
    assert len(measured) == 5  # before the first step and after each of four
    assert any(note.startswith(f"before training: held-out pair accuracy {measured[0]:.1%} [") for note in notes)
    best = max(range(5), key=lambda step: (measured[step], -run.metrics()[step]["eval/loss"]))  # of equals by the loss
    assert results(run)["best"] == {"step": best, "metric": "eval/pair_accuracy", "value": measured[best]}
    chosen, rejected = load_scorer(run.path / "best_model", on_disk.ALONE.device).score(["ab=", "ab="], ["abc", "hhh"])
    assert chosen != rejected

    stopped = Path(shutil.copytree(run.path, tmp_path / "stopped" / run.path.name))
    (stopped / "final_results.json").unlink()
    shutil.rmtree(stopped / "checkpoints" / "step-000004")
    resume_run(stopped, [], lambda *_: SilentProgress())
    for name in ("metrics.jsonl", "checkpoints/step-000004/model/model.safetensors"):
        assert (stopped / name).read_bytes() == (run.path / name).read_bytes()


def test_a_run_that_samples_nothing_may_end_early_too(tmp_path: Path) -> None:
    stop = {"patience": 2, "metric": "eval/calibration_error"}  # lower is better, and it soon rises
    run, notes = train(rewarding(tmp_path, steps=40, early_stopping=stop), tmp_path / "runs")
    check_end(run, notes, "eval/calibration_error has not improved on its best, ", before=40)


def test_a_row_that_another_process_has_logged_already_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several processes one writes, and the others may read its line of this very step: all must agree."""
    stop = {"patience": 2, "metric": "eval/calibration_error"}
    alone, _ = train(rewarding(tmp_path / "a", steps=40, early_stopping=stop), tmp_path / "a" / "runs")
    seen: list[dict[str, float]] = []
    measure, metrics = RewardTrainer.measure, RunDirectory.metrics

    def remembered(self: RewardTrainer) -> dict[str, float]:
        seen.append(measure(self))
        return seen[-1]

    monkeypatch.setattr(RewardTrainer, "measure", remembered)
    monkeypatch.setattr(
        RunDirectory, "metrics", lambda self: [*metrics(self), *({"step": len(seen) - 1, **row} for row in seen[-1:])]
    )
    late, _ = train(rewarding(tmp_path / "b", steps=40, early_stopping=stop), tmp_path / "b" / "runs")
    assert results(late)["steps"] == results(alone)["steps"]
    assert results(late)["ended"] == results(alone)["ended"]
