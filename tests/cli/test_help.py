"""What the command says about itself: examples that work, options that are explained, JSON where scripts want it."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.command_lines import check_example, every_command
from tests.cli.refusal import one_line, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.recipe import packaged_recipes, parse_yaml

COMMANDS = every_command()
EXAMPLE = re.compile(r"^ +(?:Example: |echo .* \| )?(whet .+|torchrun .+)$", re.MULTILINE)
TALKS = {"chat", "demo"}  # for people
SHOWN = 64  # characters of a summary that a terminal of 80 columns has room for


@pytest.mark.parametrize("name", COMMANDS)
def test_its_examples_are_commands_that_work(whet: Whet, name: str) -> None:
    examples = EXAMPLE.findall(whet(*name.split(), "--help").out)
    assert any(example.startswith(f"whet {name}") for example in examples)
    for example in examples:
        check_example(re.sub(r"^torchrun .* -m ", "", example))


def test_an_example_that_does_not_work_would_be_noticed() -> None:
    for wrong in ("whet train grpo-sorting steps=no", "whet eval RUN --passes 3", "whet trian x"):
        with pytest.raises(BaseException):  # noqa: B017, PT011 - click's, ours or the assertion's
            check_example(wrong)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert parameter.help, (name, parameter.name)


def test_the_list_of_commands_fits_a_terminal(whet: Whet) -> None:
    for group in ((), ("models",), ("data",)):
        listed = whet(*group, "--help").out.partition("Commands:\n")[2]
        assert listed.count("\n") >= 2
        for line in listed.strip().splitlines():
            assert len(line.split(maxsplit=1)[1]) <= SHOWN, line


@pytest.mark.parametrize("name", COMMANDS)
def test_scripts_can_have_json(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--json" in options or name in TALKS


def test_train_prints_its_results_as_json(whet: Whet, tmp_path: Path) -> None:
    result = whet("train", write_recipe(tmp_path), "--runs", tmp_path / "runs", "--json")
    told = json.loads(result.out)
    saved = json.loads((Path(told["run"]) / "final_results.json").read_text("utf-8"))
    assert told["after"]["eval/accuracy"] == saved["after"]["eval/accuracy"]
    assert set(told) >= {"run", "before", "after", "best"}


def test_train_prints_the_run_and_nothing_else(whet: Whet, tmp_path: Path) -> None:
    printed = whet("train", write_recipe(tmp_path), "--runs", tmp_path / "runs").out
    assert [Path(line) for line in printed.splitlines()] == [*(tmp_path / "runs").iterdir()]


def test_a_resumed_run_prints_json_too(whet: Whet, tmp_path: Path) -> None:
    run = train_tiny(tmp_path)
    before = json.loads((run / "final_results.json").read_text("utf-8"))
    (run / "final_results.json").unlink()
    told = json.loads(whet("train", run, "--resume", "--json").out)
    assert (told["run"], told["after"]) == (str(run), before["after"])


@pytest.mark.parametrize(
    "words",
    [
        *(["train", "nowhere"], ["eval", "nowhere"], ["sample", "nowhere"], ["score", "nowhere", "rows.jsonl"]),
        *(["compare", "nowhere", "--methods", "grpo"], ["explain", "nowhere"], ["keys", "nowhere"]),
        ["metrics", "nowhere"],
        *(["recipes", "nowhere"], ["tasks", "nowhere"], ["report", "nowhere"], ["check-loss", "nowhere"]),
        *(["models", "inspect", "nowhere"], ["models", "pull", "nowhere"], ["data", "explore", "nowhere"]),
    ],
    ids=" ".join,
)
def test_an_error_leaves_standard_output_empty(whet: Whet, words: list[str]) -> None:
    result = whet(*words, "--json")
    assert (result.code, result.out) == (2, "")
    assert one_line(result.code, result.err, 2)


def test_recipes_prints_a_recipe_as_json(whet: Whet) -> None:
    printed = json.loads(whet("recipes", "grpo-sorting", "--json").out)
    assert printed == parse_yaml(packaged_recipes()["grpo-sorting"], where="")
