"""The best model of a resumed run: what its results name is what best_model holds, whatever happened in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.runs.checkpoints import Checkpoint
from whet.runs.directory import RunDirectory
from whet.runs.recorded_inputs import Change, Input, Inputs, accept
from whet.train.session.resume import changed_measures, intact_best

BEST: dict[str, Any] = {"step": 4, "metric": "eval/accuracy", "value": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with RunDirectory.create(tmp_path, "r", "loop: offline\n") as made:
        for step in range(7):
            made.log(step, {"eval/accuracy": 0.1})
            made.log_times(step, {"seconds/step": 1.0})
        save_best(made, 4)
        yield made


def save_best(run: RunDirectory, step: int) -> None:
    run.save_best(lambda directory: None, {**BEST, "step": step})


def resumed(
    run: RunDirectory, step: int = 6, *, every: int = 1, best: dict[str, Any] = BEST
) -> tuple[dict[str, Any], list[str]]:
    """The best model after resuming, with evaluations every so many steps."""
    checkpoint = Checkpoint(path=run.path, step=step, state={"best": best, "lost": [], "processes": 1})
    return intact_best(run, checkpoint, lambda _: None, processes=1, is_evaluated=lambda step: step % every == 0)


def accepted(run: RunDirectory, key: str, *, after_step: int) -> None:
    began = Inputs(known={key: Input(path="p", files={"f": "1"})})
    change = Change(key=key, sentence=f"{key} p changed")
    run.write_inputs(accept(began, {key: Input(path="p", files={"f": "2"})}, [change], after_step=after_step))


def test_the_best_model_of_the_checkpoint_stands(run: RunDirectory) -> None:
    assert resumed(run) == (BEST, [])


def test_one_that_was_saved_after_the_checkpoint_is_found_again_by_the_same_steps(run: RunDirectory) -> None:
    """The run was killed between an evaluation and the next checkpoint: best_model is no longer the one of step 4."""
    save_best(run, 7)
    assert resumed(run) == ({}, [])


def test_one_that_no_evaluation_finds_again_is_lost(run: RunDirectory) -> None:
    save_best(run, 7)
    best, lost = resumed(run, every=5)
    assert best == {}
    assert lost == [
        "the best model, of step 7, was saved after the newest checkpoint, and that step is not evaluated any more: "
        "the best after step 6 takes its place"
    ]


def test_one_of_another_step_before_the_checkpoint_is_not_it(run: RunDirectory) -> None:
    save_best(run, 2)
    best, lost = resumed(run)
    assert best == {}
    assert lost == ["the best model, of step 4, is damaged (it is that of step 2): the best after it takes its place"]


@pytest.mark.parametrize("key", ["task.path", "data.path", "eval.data.hard.path", "model.path", "reward.model.path"])
@pytest.mark.parametrize("pending", [False, True])
def test_other_data_measure_anew(run: RunDirectory, key: str, pending: bool) -> None:
    """Accepted now, or before the run was killed again ahead of its next checkpoint."""
    accepted(run, key, after_step=6)
    if pending:
        run.accepted_inputs = run.inputs()
        run.write_inputs(Inputs())
    best, lost = resumed(run)
    assert best == {}
    assert lost == [f"the best model, of step 4, was chosen before {key} changed: the best after it takes its place"]


@pytest.mark.parametrize(("key", "after_step"), [("reward.functions.0", 6), ("algorithm.loss", 6), ("data.path", 3)])
def test_what_does_not_measure_or_changed_before_leaves_the_best(run: RunDirectory, key: str, after_step: int) -> None:
    accepted(run, key, after_step=after_step)
    assert resumed(run) == (BEST, [])


@pytest.mark.parametrize("metric", ["eval/reward", "eval/hard/reward", "eval/parts/short"])
def test_other_reward_functions_measure_rewards_anew(run: RunDirectory, metric: str) -> None:
    accepted(run, "reward.functions.0", after_step=6)
    best, (lost,) = resumed(run, best={**BEST, "metric": metric})
    assert best == {}
    assert "was chosen before reward.functions.0 changed" in lost
    assert changed_measures(run, 6, [metric]) == ["reward.functions.0"]
    assert changed_measures(run, 7, [metric]) == changed_measures(run, 6, ["eval/accuracy"]) == []


def test_results_that_were_changed_are_not_believed(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "r", "loop: offline\n") as run:
        run.finish({"after": {"eval/accuracy": 0.25}, "best": {"step": 3}})
        assert run.results() == {"after": {"eval/accuracy": 0.25}, "best": {"step": 3}}
        file = run.path / "final_results.json"
        file.write_text(file.read_text().replace("0.25", "0.75"))
        assert not run.finished
        with pytest.raises(Exception, match=r"does not match its checksum; whet train \S+ --resume writes it again"):
            run.results()


@pytest.mark.parametrize("damage", ['"0.1"', "[]", "true", "{}"])
@pytest.mark.parametrize("read", [RunDirectory.metrics, RunDirectory.timings])
def test_a_line_with_another_type_is_named(run: RunDirectory, damage: str, read: Callable[[RunDirectory], Any]) -> None:
    name = {"metrics": "metrics.jsonl", "timings": "timings.jsonl"}[read.__name__]
    file = run.path / name
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace("0.1" if name == "metrics.jsonl" else "1.0", damage)
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(Exception, match=rf"{name}, line 3: \S+ is not a number"):
        read(run)
