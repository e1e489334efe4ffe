"""Data, completions, names and other people's messages are printed as what they are, whatever is in them."""

import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.hostile import HOSTILE, NAME_SEEN, SEEN, does_something, file_called, harmless
from tests.cli.refusal import RECIPE, refused, write_recipe
from tests.cli.tiny import Whet, bigram_model
from tests.engines.openai_server import MODEL, Served, serving
from whet.engines.native.native_engine import NativeEngine
from whet.models.load import load_model
from whet.models.text.tokenizers import load_tokenizer

CHAIN = "a\x1b[2J\x9b\u202e\r\x07/]"  # what the model says after an a, a character at a time
ANSWER_SEEN = r"\x1b[2J\x9b\u202e\r\x07/]"
OWN = f"""
from whet.records import Example, Score

HOSTILE = {HOSTILE!r}
WHOLE = HOSTILE.replace("\\ud83d", "")

class Task:
    \"\"\"About.\"\"\"
    name, alphabet = "mine", "0123456789>" + WHOLE
    def __init__(self, colour: str = HOSTILE): ...
    def draw(self, count, *, seed):
        return [Example(id=f"t{{i}}", prompt=f"1{{i}}>", answer="1") for i in range(sum(seed), sum(seed) + count)]
    def held_out(self, count):
        return [Example(id=f"h{{i}}", prompt=f"2{{i % 10}}>", answer=WHOLE) for i in range(count)]
    def score(self, example, text):
        return Score(reward=float(text == example.answer), parts={{}})
    def correct(self, example, text):
        return text == example.answer
Task.__doc__ = HOSTILE

class Hostile(Task):
    def held_out(self, count):
        return [Example(id=HOSTILE, prompt="a", answer=HOSTILE)]

def reward(completions, **columns): raise ValueError(HOSTILE)
def loss(logprobs, advantages): raise ValueError(HOSTILE)
def breaks(self, *_, **__): raise ValueError(HOSTILE)
class DrawRaises(Task): draw = breaks
class HalfAlphabet(Task): alphabet = "12>\\ud83d"
class InitRaises(Task): __init__ = breaks
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says all that its alphabet holds, whatever it is asked."""
    after = {first: {then: 1.0} for first, then in pairwise(CHAIN)}
    return bigram_model(tmp_path_factory.mktemp("model") / "m", after, alphabet=CHAIN)


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    with serving(Served(NativeEngine(load_model(model), load_tokenizer(model)))) as served:
        yield served


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a user's module in it and a recipe."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    return write_recipe(tmp_path).parent


def test_data_explore_shows_rows_as_they_are(whet: Whet, tmp_path: Path) -> None:
    # Rows with half of a character are refused.
    whole, seen = HOSTILE.replace("\ud83d", ""), SEEN.replace(r"\ud83d", "")
    rows = [{"prompt": f"{i} {whole}", "chosen": f"two\nlines\t{whole}", "rejected": whole} for i in range(3)]
    path = file_called(tmp_path, ".jsonl", "")
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "chosen": whole}]))
    result = whet("data", "explore", path, "--samples", 1)
    printed = harmless(result)
    assert result.code == 0, result.err
    assert printed.count(seen.partition(" :smile:")[0]) == 3
    assert f"left out: {tmp_path}/{NAME_SEEN}.jsonl:4" in printed
    result = whet("data", "explore", path, "--samples", 1, "--json", "--out", tmp_path / "out")
    harmless(result)
    found = json.loads(result.out)
    assert found["source"] == str(path)
    assert whole in found["samples"][0]["prompt"]
    assert not any(map(does_something, Path(found["page"]).read_text("utf-8")))


@pytest.mark.parametrize("row", [{HOSTILE: 1}, {"prompt": HOSTILE, "chosen": 1, "rejected": HOSTILE}])
def test_rows_that_cannot_be_read_are_quoted(whet: Whet, tmp_path: Path, row: dict[str, object]) -> None:
    path = file_called(tmp_path, ".jsonl", json.dumps(row) + "\n")
    result = whet("data", "explore", path)
    assert result.code == 2
    assert NAME_SEEN in harmless(result)


def test_sample_shows_what_a_model_says(whet: Whet, model: Path) -> None:
    result = whet("sample", model, "a", "--count", 1, "--temperature", 0)
    assert ANSWER_SEEN in harmless(result)
    result = whet("sample", model, "--raw", "\x1b[a", "--count", 1, "--temperature", 0)
    assert "\\x1b[a\n── 1 · " in harmless(result)
    whole = whet("sample", model, "a", "--count", 1, "--temperature", 0, "--json")
    harmless(whole)
    assert json.loads(whole.out)["prompts"][0]["completions"][0]["text"] == CHAIN[1:]


def test_chat_shows_it_token_by_token(whet: Whet, model: Path) -> None:
    result = whet("chat", model, "--max-tokens", 12, stdin="a\n")
    assert result.code == 0, result.err
    assert harmless(result) == f"{ANSWER_SEEN}\n"
    assert r"\x9d" in harmless(whet("chat", model, stdin="\x9d\n"))  # what cannot be spelt is quoted


@pytest.mark.parametrize("command", ["eval", "sample"])
def test_a_task_and_a_server_have_hostile_texts(whet: Whet, here: Path, served: Served, command: str) -> None:
    asked = (command, served.url, "--model", MODEL, "--task", "own.py:Hostile", "--max-tokens", 12)
    more = ("--show", 1, "--examples", 1) if command == "eval" else ("--count", 1, "--temperature", 0)
    result = whet(*asked, *more)
    assert result.code == 0, result.err
    assert ANSWER_SEEN in harmless(result)
    whole = whet(*asked, *more[2:], "--json")
    harmless(whole)
    json.loads(whole.out)
    served.fault = lambda handler, _: handler.error(400, HOSTILE)
    result = whet(*asked, *more)
    assert result.code != 0
    assert r"\x1b]52;c;aGk=\x07\x1b[2J" in harmless(result)
    assert "[link=http://a.b]y[/link][/][/b]" in result.err


def test_tasks_show_their_examples(whet: Whet, here: Path) -> None:
    result = whet("tasks", "own.py:Task")
    assert result.code == 0, result.err
    assert f"own.py:Task: {SEEN}" in harmless(result)
    assert f"options: colour={SEEN}" in result.out
    whole = whet("tasks", "own.py:Task", "--json")
    harmless(whole)
    assert json.loads(whole.out)["about"] == HOSTILE


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("train", "tiny.yaml", "reward.functions=['own.py:reward']"), 1),
        (("train", "tiny.yaml", "task=own.py:DrawRaises"), 1),
        (("train", "tiny.yaml", "task=own.py:InitRaises"), 2),
        (("tasks", "own.py:DrawRaises"), 2),
        (("check-loss", "own.py:loss"), 1),
        (("explain", "tiny.yaml", "task=own.py:DrawRaises"), 1),
    ],
)
def test_what_a_users_code_raises_is_quoted(whet: Whet, here: Path, arguments: tuple[str, ...], code: int) -> None:
    result = whet(*arguments)
    assert result.code == code, result.err
    assert "[red]x[/red]" in harmless(result)
    assert r"\x1b]52;c;aGk=\x07\x1b[2J" in result.out + result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "H"),
        ("train", "tiny.yaml", "H=1"),
        ("train", "tiny.yaml", "task=H"),
        ("train", "runs/H", "--resume"),
        ("explain", "H"),
        ("eval", "H"),
        ("sample", "H", "x"),
        ("chat", "H"),
        ("compare", "--methods", "H", "tiny.yaml"),
        ("compare", "--methods", "grpo", "--seeds", "H", "tiny.yaml"),
        ("report", "H"),
        ("check-loss", "H"),
        ("check-loss", "clip", "H=1"),
        ("tasks", "H"),
        ("recipes", "H"),
        ("models", "inspect", "H"),
        ("models", "pull", "H"),
        ("data", "explore", "H"),
        ("data", "explore", "tiny.yaml", "--format", "H"),
        ("H",),
        ("train", "--H"),
    ],
)
def test_what_was_typed_is_quoted(whet: Whet, here: Path, arguments: tuple[str, ...]) -> None:
    hostile = "\x1b[2J\x9b\u202e\udcff[red][/]"
    result = whet(*(argument.replace("H", hostile) for argument in arguments))
    assert result.code == 2
    assert "[red][/]" in harmless(result)


def test_an_alphabet_with_half_a_character_is_refused(whet: Whet, here: Path) -> None:
    assert r"the alphabet holds '\ud83d', half of a surrogate pair" in refused(
        whet, "train", "tiny.yaml", "task=own.py:HalfAlphabet"
    )


def test_recipes_with_hostile_keys_and_names(whet: Whet, here: Path) -> None:
    path = file_called(here, ".yaml", f"{RECIPE}\nreward: {{length: 3}}\n")
    assert NAME_SEEN in harmless(whet("explain", path))
    strange = file_called(here, ".yaml", f'{RECIPE}\n"\\e[2J[/]\\x9b\\u202e": 1\n')
    assert r"\x1b[2J[/]\x9b\u202e" in harmless(whet("train", strange))
    broken = file_called(here, ".yaml", "steps: '\x1b[2J[/]")
    assert NAME_SEEN in harmless(whet("train", broken))


def test_a_run_in_a_place_with_a_hostile_name(whet: Whet, here: Path) -> None:
    place = file_called(here, "", "").with_name("]y")
    seen = NAME_SEEN.replace("x\\x7f", "y")
    result = whet("train", "tiny.yaml", "--runs", place)
    assert result.code == 0, result.err
    assert seen in harmless(result)
    (run,) = place.iterdir()
    assert seen in harmless(whet("report", run))
    assert seen in harmless(whet("eval", run, "--examples", 1))
    harmless(whet("sample", run, "1>"))
    assert seen in harmless(whet("models", "inspect", run))


def test_a_comparison_in_such_a_place_whose_runs_fail(whet: Whet, here: Path) -> None:
    place = file_called(here, "", "").with_name("]y")
    result = whet("compare", "--methods", "grpo", "--seeds", 1, "tiny.yaml", "reward.functions=['own.py:reward']",
                  "--out", place)  # fmt: skip
    assert result.code == 1
    assert r"     failed: " in harmless(result)
    assert result.err.count(r"\x1b]52;c;aGk=\x07\x1b[2J") == 2  # as it happened, and at the end
    assert f"comparison: {here}/{NAME_SEEN}".replace("x\\x7f", "y") in result.err


def test_models_that_are_here_are_listed_by_any_name(
    whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "\x1b[2J[red]"))
    assert r"\x1b[2J[red]" in harmless(whet("models", "list"))


class Ascii:
    """Standard streams that can show ASCII alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = io.BytesIO()
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, io.TextIOWrapper(self.bytes, encoding="ascii", write_through=True))


@pytest.mark.parametrize("arguments", [("recipes", "grpo-sorting"), ("recipes",), ("explain", "grpo-sorting"),
                                       ("compare", "--help"), ("data", "formats"), ("train", "ü")])  # fmt: skip
def test_a_terminal_that_shows_ascii_alone(
    whet: Whet, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Ascii(monkeypatch)
    code = whet(*arguments).code
    assert code == (2 if "ü" in arguments else 0)
    assert len(streams.bytes.getvalue()) > 20


def test_bugs_logs_and_warnings_are_escaped_too(
    whet: Whet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whet("recipes")
    for hook, arguments in [
        (sys.excepthook, (ValueError, ValueError(HOSTILE), None)),
        (logging.lastResort.handle, (logging.LogRecord("x", 40, "x", 1, "%s", (HOSTILE,), None),)),
    ]:
        hook(*arguments)
        err = capsys.readouterr().err
        assert SEEN in err
        assert not any(map(does_something, err))
    said = warnings.formatwarning(HOSTILE, UserWarning, "x.py", 1, "")
    assert SEEN in said
    assert not any(map(does_something, said))
