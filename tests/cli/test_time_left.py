"""The time left, from the time of steps and of evaluations, on a clock that the test turns."""

import pytest

from whet.cli.progress import LineProgress, TimeLeft


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def evaluate(left: TimeLeft, clock: Clock, seconds: float) -> None:
    with left.evaluating():
        clock.now += seconds


def test_steps_and_evaluations_are_counted_apart() -> None:
    """25 steps of 3 s, evaluations of 30 s before training and after steps 10, 20 and 25."""
    clock = Clock()
    left = TimeLeft(25, 10, clock)
    clock.now += 100  # a model is loaded
    evaluate(left, clock, 30)
    told = {}
    for step in range(1, 26):
        clock.now += 3
        if step in (10, 20, 25):
            evaluate(left, clock, 30)
        told[step] = left.after(step, 3.0)
    assert told[1] == "0:02:42"  # 24 · 3 + 3 · 30
    assert told[9] == "0:02:18"  # 16 · 3 + 3 · 30
    assert told[10] == "0:01:45"  # 15 · 3 + 2 · 30
    assert told[19] == "0:01:18"
    assert told[20] == "0:00:45"
    assert told[24] == "0:00:33"
    assert told[25] == "0:00:00"


def test_without_evaluations_only_steps_count_and_saving_is_part_of_them() -> None:
    clock = Clock()
    left = TimeLeft(4, 0, clock)
    clock.now += 500  # loading, and a step of 2 s
    assert left.after(1, 2.0) == "0:00:06"
    clock.now += 4  # a checkpoint is saved, and a step of 2 s is made
    assert left.after(2, 2.0) == "0:00:06"  # two steps of (2 + 4) / 2


def test_a_step_that_was_trained_before_the_run_was_resumed_has_its_own_time() -> None:
    clock = Clock()
    left = TimeLeft(12, 10, clock)
    evaluate(left, clock, 30)  # of the step that was pending
    assert left.after(10, 5.0) == "0:00:40"  # 2 · 5 + 30


@pytest.mark.parametrize(
    ("steps", "every", "step", "coming"),
    [(20, 10, 9, 2), (20, 10, 10, 1), (20, 10, 20, 0), (5, 50, 1, 1), (7, 3, 6, 1)],
)
def test_evaluations_to_come_include_that_after_the_last_step(steps: int, every: int, step: int, coming: int) -> None:
    clock = Clock()
    left = TimeLeft(steps, every, clock)
    evaluate(left, clock, 60)
    assert left.after(step, 0.0) == f"0:0{coming}:00"


def test_a_line_has_the_seconds_of_the_step_and_of_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    LineProgress(1).step(1, {"reward/mean": 0.5}, {"seconds/step": 2.0, "seconds/waiting": 0.25})
    assert capsys.readouterr().err == "step 1/1  reward 0.500  s/step 2.00  s waiting 0.25  left 0:00:00\n"
