"""What the benchmark of records compares."""

from bench.records import EVERY, differences


def test_a_record_is_its_step_and_the_next_beside_those_around_them():
    """A step takes 10; a record adds 2 to its own and 1 to the next, on top of a slow drift."""
    seconds = [10 + step / 8 + 2 * (step % EVERY == 0) + (step % EVERY == 1 and step > 1) for step in range(1, 40)]
    found = differences(seconds)
    assert found == [3.0] * len(found)
    assert len(found) == len(range(6, 39, EVERY))  # all but the record of the warm-up


def test_steps_at_which_the_doctor_looks_are_not_compared_with_others():
    """Of 240 steps it looks at every sixth, which takes 5."""
    seconds = [10.0 + 2 * (step % EVERY == 0) + 5 * (step % 6 == 0) for step in range(1, 241)]
    found = differences(seconds)
    assert found == [2.0] * 39
