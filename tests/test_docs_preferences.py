"""What docs/algorithms.md says of preferences and reward models."""

import re
from pathlib import Path

import pytest

from whet.algorithms.cells import options
from whet.algorithms.preference import losses as preference
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.config import OfflineConfig
from whet.recipe import parse_yaml, validate

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
LOSSES = {**PREFERENCES, **REWARDS}


def section(heading: str) -> str:
    start = TEXT.index(f"\n## {heading}\n")
    end = TEXT.find("\n## ", start + 1)
    return TEXT[start : end if end > 0 else None]


@pytest.mark.parametrize(
    ("heading", "table"), [("Preferences (direct alignment)", PREFERENCES), ("Reward models", REWARDS)]
)
def test_every_row_is_there_with_its_options_and_defaults(heading, table):
    lines = {
        found[1]: found[0]
        for found in re.finditer(r"^\| `(\w+)` \| [^|]* \| [^|]* \| [^|]* \| .*$", section(heading), re.M)
    }
    assert list(lines) == list(table)
    for key, row in table.items():
        stated = dict(re.findall(r"`(\w+)` ([\d.]+|false|true)(?=[,| ])", lines[key]))
        assert {name: float(parse_yaml(f"x: {value}", where="docs")["x"]) for name, value in stated.items()} == {
            name: float(value) for name, value in options(row.loss).items()
        }
        assert ("a reference" in lines[key]) == (table is PREFERENCES and row.needs_reference)


def test_the_points_are_those_of_the_rows_that_need_one():
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", section("Preferences (direct alignment)"), re.M) == ["kto", "bco"]


def test_what_others_do_has_one_line_for_each_row():
    table = section("The same name in other libraries").split("Preferences and reward models:")[1]
    assert re.findall(r"^\| (\w+) \| .+ \|$", table, re.M)[1:] == list(LOSSES)


def test_which_one_names_rows_and_options_only():
    table = section("Preferences (direct alignment)").split("| you have |")[1].split("\nReward accuracy")[0]
    assert set(re.findall(r"`(\w+)`", table)) <= set(PREFERENCES)


def test_the_recipes_in_the_prose_are_recipes():
    examples = re.findall(r"`(objective: [^`]+)`", section("Preferences (direct alignment)"))
    assert len(examples) == 2
    for text in examples:
        written = {"steps": 1, "loop": "offline", "model": {"new": {}}, "task": "sorting", "data": "pairs.jsonl"}
        config = validate({**written, **parse_yaml(text, where="docs")}, where="docs")
        assert isinstance(config, OfflineConfig)
        assert config.objective.name == "dpo"


def test_the_choices_that_the_prose_states():
    assert options(preference.ipo)["per_token"] is False
    assert options(preference.simpo) == {"beta": 2.0, "gamma": 1.0}
