"""A hostile new user at the command line: every mistake is one line with what, where and how to fix it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import whet.cli.app as command
from tests.cli.refusal import refused, train_tiny, write_recipe
from tests.cli.tiny import Whet
from whet.errors import RunFailed

WHET = (sys.executable, "-m", "whet")
COMMANDS = [
    *(("demo",), ("train",), ("eval",), ("sample",), ("chat",), ("report",), ("explain",), ("plan",), ("recipes",)),
    *(("tasks", "list"), ("tasks", "show"), ("tasks", "play"), ("tasks", "check")),
    *(("compare",), ("check-loss",), ("models", "list"), ("models", "inspect"), ("models", "pull")),
    *(("models", "merge"), ("models", "card"), ("models", "push"), ("models", "export")),
    *(("data", "explore"), ("data", "formats"), ("data", "tokenize"), ("runs",), ("keys",), ("score",), ("sandbox",)),
    *(("metrics",), ("doctor",), ("redteam",), ("ui",)),
    *(("learn", name) for name in ("list", "start", "check", "hint", "progress")),
    *(("launch", name) for name in ("local", "slurm", "ray", "skypilot", "modal", "k8s", "list", "logs", "stop")),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path)


@pytest.mark.parametrize("names", COMMANDS)
def test_every_command_has_help_with_an_example(whet: Whet, names: tuple[str, ...]) -> None:
    result = whet(*names, "--help")
    assert (result.code, result.err) == (0, "")
    assert "Example" in result.out
    assert f"whet {' '.join(names)}" in result.out.partition("Example")[2]


def test_help_covers_every_command() -> None:
    app: Any = command.app
    registered: list[tuple[str, ...]] = [(c.name,) for c in app.registered_commands]
    grouped: list[tuple[str, ...]] = [
        (group.name, c.name or c.callback.__name__)
        for group in app.registered_groups
        for c in group.typer_instance.registered_commands
    ]
    assert sorted(registered + grouped) == sorted(COMMANDS)


@pytest.mark.parametrize("names", [(), ("models",)])
def test_a_command_alone_prints_its_help(whet: Whet, names: tuple[str, ...]) -> None:
    result = whet(*names)
    assert (result.code, result.err) == (0, "")
    assert "Commands:" in result.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("frobnicate",), "No such command 'frobnicate' (see `whet --help`)"),
        (("models", "frobnicate"), "No such command 'frobnicate' (see `whet models --help`)"),
        (("train",), "Missing argument 'RECIPE|RUN' (see `whet train --help`)"),
        (("train", "x", "--frobnicate"), "No such option: --frobnicate"),
        (("train", "x", "--runs"), "'--runs' requires an argument"),
        (("eval", "x", "--examples", "0"), "Invalid value for '--examples'"),
        (("sample", "x", "y", "--count", "many"), "Invalid value for '--count'"),
        (("demo", "--seed", "-1"), "seed must be greater than or equal to 0, not -1"),
    ],
)
def test_a_wrong_command_line(whet: Whet, arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(whet, *arguments)


@pytest.mark.parametrize("name", ["train", "explain"])
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("stepz=3",), "unknown key 'stepz'; did you mean 'steps'?"),
        (("rollout.grup=3",), "unknown key 'rollout.grup'; did you mean 'group'?"),
        (("model.new.layerz=3",), "unknown key 'model.new.layerz'; did you mean 'layers'?"),
        (("algorithm.clip.hihg=3",), "unknown key 'algorithm.clip.hihg'; did you mean 'high'?"),
        (("task=sortng",), "there is no task 'sortng'; did you mean 'sorting'?"),
        (("task.levle=3",), "task sorting has no option 'levle'; did you mean 'level'?"),
        (("task.level=abc",), "task sorting: option 'level' is 'abc' (str), must be int"),
        (("task.level=99",), "level is 99, must be between 1 and 10"),
        (("task={name: rows}",), "task rows needs the option 'path'"),
        (("task={name: rows, path: nowhere.jsonl}",), "cannot read nowhere.jsonl: No such file"),
        (("task={name: rows, path: .}",), " is a folder without files of rows"),
        (("model={path: x, new: {}}",), "model: give either path"),
        (("steps=abc",), "steps must be a whole number, not 'abc'"),
        (("steps=0",), "steps must be greater than 0, not 0"),
        (("steps=-3",), "steps must be greater than 0, not -3"),
        (("steps=true",), "steps: must be a number, not true"),
        (("seed=99999999999999999999",), "seed must be less than"),
        (("lr=fast",), "optimizer.lr must be a number, not 'fast'"),
        (("rollout.group=2.5",), "rollout.group must be a whole number, not 2.5"),
        (("rollout.group=1",), "set rollout.group to 2 or more"),
        (("algorithm=reinforce", "update.epochs=2"), "set update.epochs and update.minibatches to 1"),
        (("lr",), "'lr' is not an override: write key=value"),
        (("=3",), "'=3' is not an override"),
        (("lr 3",), "'lr 3' is not an override"),
        (("model.new.heads=3",), "width 16 is not a multiple of heads 3"),
        (("model.new.tokenizer=/nowhere",), "no directory /nowhere to load a tokenizer from"),
    ],
)
def test_a_wrong_recipe_is_refused_and_leaves_nothing(
    whet: Whet, recipe: Path, name: str, overrides: tuple[str, ...], told: str
) -> None:
    result = whet(name, recipe, *overrides)
    assert result.code == 2
    assert told in result.err
    assert result.err.startswith("whet: ")
    assert result.err.count("\n") == 1
    assert list(recipe.parent.iterdir()) in (
        [recipe],
        [recipe, recipe.parent / "runs"],
        [recipe.parent / "runs", recipe],
    )
    assert list(recipe.parent.glob("runs/*")) == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("model=/nowhere",), "no directory /nowhere; give a model directory"),
        (("model=nowhere",), "unknown model 'nowhere' (known: smollm2-135m-instruct"),
        (("model=smollm2",), "did you mean 'smollm2-135m-instruct'?"),
        (("model=org/name",), "no model of that name is pulled; fetch it: whet models pull org/name"),
        (("track=[wandb]",), "track: [wandb] needs the package wandb, which is not installed: pip install wandb"),
        (("device=cuda",), "device is 'cuda' and torch finds no CUDA device: use device=cpu"),
        (("model.new.context=3",), "a prompt has 4 tokens and the model's context is 3"),
        (("model.new.width=16000000000",), "width is 16000000000: expected at most 1048576"),
        (("model.new.width=524288", "model.new.heads=512"), "out of memory: lower update.micro_batch_tokens"),
    ],
)
def test_what_only_training_needs(
    whet: Whet, recipe: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], told: str
) -> None:
    monkeypatch.setenv("WHET_HOME", str(recipe.parent / "home"))
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not installed
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code = 1 if "out of memory" in told else 2
    assert told in refused(whet, "train", recipe, *overrides, code=code)
    if code == 2:
        assert list(recipe.parent.glob("runs/*")) == []


@pytest.mark.parametrize("place", ["tiny.yaml", "tiny.yaml/below", "/proc/nowhere"])
def test_a_place_where_no_run_can_be_made(whet: Whet, recipe: Path, place: str) -> None:
    assert f"cannot create a run in {place}" in refused(whet, "train", recipe, "--runs", place)


ROWS = {
    "empty": (b"", "has no rows"),
    "malformed": (b'{"prompt": "1>"}\n{"prompt": "1', ".jsonl:2 is not JSON"),
    "no prompt": (b'{"question": "1>"}\n', " has no 'prompt', which the format prompts needs (columns: question)"),
    "not UTF-8": (b'{"prompt": "\xff"}\n', ".jsonl:1 is not UTF-8: invalid start byte"),
    "no object": (b"[1]\n", ".jsonl:1 must be a JSON object, not a list"),
    "one row": (
        b'{"prompt": "1>", "answer": "1"}\n',
        "all rows have the same prompt or twin, so none can be held out",
    ),
    "cut gzip": (b"\x1f\x8b\x08\x00", "is not a complete gzip file"),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_file_of_rows_that_cannot_be_used(whet: Whet, recipe: Path, case: str) -> None:
    content, told = ROWS[case]
    path = recipe.parent / ("rows.jsonl.gz" if "gzip" in case else "rows.jsonl")
    path.write_bytes(content)
    message = refused(whet, "train", recipe, f"task={{name: rows, path: {path}}}")
    assert str(path) in message
    assert told in message


OFFLINE = "loop: offline\nsteps: 1\nbatch_size: 4\neval: {examples: 4, max_tokens: 3}\ntrack: []\n"


TOO_LONG = "training prompts have more than 15 tokens: set task.overlong_prompts=truncate"


@pytest.mark.parametrize(
    ("prompt", "answer", "online", "offline"),
    [
        ("{:030d}>", "1", TOO_LONG, TOO_LONG),
        (
            "{:03d}>",
            "1" * 20,
            "",
            "has 4 prompt and 21 answer tokens; it needs at least one prompt token and at most 16",
        ),
        ("{:03d}\n>", "1", r"character '\n' (in", r"character '\n' (in"),
        ("{:03d}>", "é", "", "character 'é' (in 'é') is not in the alphabet '0123456789>'"),
    ],
)
def test_examples_that_the_model_cannot_read(
    whet: Whet, recipe: Path, run: Path, prompt: str, answer: str, online: str, offline: str
) -> None:
    path = recipe.parent / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt.format(i), "answer": answer}) + "\n" for i in range(60)))
    overrides = (f"task={{name: rows, path: {path}}}", f"model={{path: {run}}}")
    (recipe.parent / "offline.yaml").write_text(OFFLINE)
    assert offline in refused(whet, "train", "offline.yaml", *overrides)
    if online:
        assert online in refused(whet, "train", recipe, *overrides)
    assert list(recipe.parent.glob("runs/*")) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("eval", "BEST"), "is a model, not a run: say which task, --task"),
        (("eval", "RUN", "--task", "nothing"), "there is no task 'nothing'"),
        (("eval", "RUN", "--task", "rows", "path=nowhere.jsonl"), "cannot read nowhere.jsonl"),
        (("eval", "RUN", "--task", "arithmetic"), "character '+'"),
        (("eval", "RUN", "--k", "4", "--samples", "2"), "pass@4 needs 1 <= k <= samples, got samples=2"),
        (("eval", "RUN", "--k", "two"), "--k 'two' is not a list of whole numbers"),
        (("eval", "RUN", "level"), "'level' is not an option of a task: write key=value"),
        (("eval", "nowhere", "--task", "sorting"), "unknown model 'nowhere'"),
        (("sample", "RUN", "1" * 40), "a prompt has 40 tokens and the model's context is 16"),
        (("sample", "RUN", "1 2"), "character ' '"),
        (("sample", "RUN", "--task", "nothing"), "there is no task 'nothing'"),
        (("sample", "BEST"), "nothing to complete: give a prompt"),
        (("sample", "RUN", "1", "--temperature", "nan"), "temperature must be 0 (greedy) or more"),
        (("chat", "nowhere"), "unknown model 'nowhere'"),
        (("chat", "./nowhere"), "no directory ./nowhere"),
        (("report", "./nowhere"), "nowhere is neither a run nor a comparison; name a directory that"),
        (("report", "BEST"), "is neither a run nor a comparison"),
        (("report", "nowhere"), "no directory nowhere, and no run has that in its name: there are no runs below /"),
        (("report", "./tiny.yaml"), "tiny.yaml is neither a run nor a comparison"),
        (("tasks", "nothing"), "there is no task 'nothing'"),
        (("tasks", "sorting", "level=x"), "must be int"),
        (("recipes", "nothing"), "no recipe 'nothing'"),
        (("explain", "nothing"), "no recipe 'nothing'"),
        (("explain", "RUN"), "is a directory: give a .yaml file"),
        (("train", "RUN"), "--resume"),
        (("models", "inspect", "."), ". holds no model (no config.json"),
        (("models", "inspect", "tiny.yaml"), "unknown model 'tiny.yaml'"),
        (("models", "pull", "nothing"), "unknown model 'nothing'"),
        (("models", "pull", "../../etc"), "unknown model '../../etc'"),
    ],
)
def test_the_other_commands(whet: Whet, recipe: Path, run: Path, arguments: tuple[str, ...], told: str) -> None:
    places = {"RUN": run, "BEST": run / "best_model"}
    assert told in refused(whet, *(places.get(argument, argument) for argument in arguments))


def test_a_character_model_is_told_of_the_newline_in_its_prompt(whet: Whet, run: Path) -> None:
    assert r"character '\n'" in refused(whet, "sample", run, "-", stdin="12\n34")
    assert "character 'h'" in refused(whet, "chat", run, stdin="hello\n")


def test_the_real_command_says_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    found = subprocess.run([*WHET, "train", "tiny.yaml", "task=nothing"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("whet: there is no task 'nothing'")
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize("arguments", [("recipes", "demo-grpo"), ("tasks", "sorting", "--count", "5000")])
def test_a_reader_who_has_gone_is_no_error(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    found = subprocess.run([*WHET, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert found.stderr == ""


def test_a_message_of_several_lines_from_elsewhere_becomes_one(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise RunFailed("the disk\n  is full\n")

    monkeypatch.setattr("whet.report.run.page.write_report", fail)
    (tmp_path / "config.yaml").write_text("loop: online\n", "utf-8")
    assert refused(whet, "report", tmp_path, code=1) == "the disk is full"
