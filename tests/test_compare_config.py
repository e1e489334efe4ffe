"""What the comparison of a pipeline may say."""

import pytest
from pydantic import ValidationError

from whet.config.pipeline import CompareConfig


def test_defaults():
    config = CompareConfig(start="@sft", reward="@reward", judge="@judge")
    assert (config.prompts, config.samples, config.temperature, config.best_of) == (200, 1, 1.0, (1, 2, 4, 8, 16))


def test_the_start_model_says_as_much_as_best_of_n_needs():
    assert CompareConfig(start="s", reward="r", samples=2).start_samples == 16
    assert CompareConfig(start="s", reward="r", samples=32).start_samples == 32
    assert CompareConfig(start="s", reward="r", samples=2, best_of=()).start_samples == 2
    assert CompareConfig(start="s", samples=2).start_samples == 2  # nobody chooses the best without a reward


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"best_of": (4, 2)}, "must go up"),
        ({"best_of": (1, 1)}, "each number once"),
        ({"judge_url": "http://h/v1"}, "belong together"),
        ({"judge_model": "m"}, "belong together"),
        ({"judge_url": "h:80", "judge_model": "m"}, "not the address of a server"),
        ({"judge_key_env": "KEY"}, "no judge_url"),
        ({"gold": False}, "nothing could tell which method is better"),
        ({"temperature": 0}, "greater than 0"),
        ({"promts": 3}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        CompareConfig(start="s", **given)
