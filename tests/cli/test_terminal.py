"""The way to the terminal: what it escapes, what it keeps, and that there is no other."""

import ast
import io
import json
import re
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.table import Table

from tests.cli.hostile import HOSTILE, SEEN, does_something
from whet.cli import terminal
from whet.cli.arguments import sampling_status
from whet.cli.commands.models import _progress
from whet.cli.experiments import StepLine
from whet.cli.progress import LineProgress, LiveProgress
from whet.cli.terminal import Screen, say, say_json, say_table, say_text
from whet.errors import escaped
from whet.user_code import keeping_output, printing_to_log

SOURCE = Path(terminal.__file__).parents[1]
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]?[KA]|\r")  # what the library draws with
OF_RICH = {"table.Table", "table.Column", "live.Live", "progress_bar.ProgressBar", "progress.Progress",
           "progress.BarColumn", "progress.DownloadColumn", "progress.TimeRemainingColumn"}  # fmt: skip
# Text of our own in a signal handler; an escaped warning of a room that may not know the commands; JSON for a pipe.
ELSEWHERE = {
    "launch/job.py": "sys.stdout.write",
    "runs/interrupt.py": "os.write",
    "runs/directory.py": "sys.stderr.write",
    "models/text/template_worker.py": "sys.stdout.write",
    "tasks/maths/verify_worker.py": "sys.stdout.write",
    "tasks/pattern_worker.py": "sys.stdout.write",
}


PRINTS = {"print", "typer.echo", "typer.secho", "typer.confirm", "typer.prompt"}
PASSIVE = {"sys.stderr.isatty", "sys.stdout.flush", "sys.stderr.flush"}  # prints nothing


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["20260101-120000-grpo-sorting-with-a-long-name", "x" * 90])
def test_names_in_a_table_can_be_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in one piece at 80 columns, where other columns wrap; what is no terminal has no width."""
    words = "held-out accuracy 12.5 % before and 97.5 % after training, and then some more words"
    monkeypatch.setenv("COLUMNS", "80")
    for stream in (Tty(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        say_table([(name, words, "2026-01-01 12:00")], "run", "result", "started")
        assert name in COLOURS.sub("", stream.getvalue())
        assert (words in stream.getvalue()) is not stream.isatty()
    monkeypatch.setattr(sys, "stdout", Tty())
    say_table([("short", words)], "run", "result")
    assert max(map(len, COLOURS.sub("", sys.stdout.getvalue()).splitlines())) <= 80  # type: ignore[attr-defined]


def test_all_that_unicode_calls_active_is_escaped_and_nothing_that_shows_is() -> None:
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        if does_something(character) or character in "\n\t":
            assert escaped(character) == ascii(character)[1:-1]
        elif unicodedata.category(character) not in {"Cf", "Cn"}:
            assert escaped(character) == character
    assert escaped("👩\u200d🚀 می\u200cخواهم e\u0301 ❤\ufe0f") == "👩\u200d🚀 می\u200cخواهم e\u0301 ❤\ufe0f"
    assert escaped("❤\ufe0f\u200d🔥 \u2800") == "❤\ufe0f\u200d🔥 \u2800"
    hidden = "a\u200c\u200d\u200c\u200c b\ufe0f\ufe0e\ufe0f c\U000e0100\U000e01ef\u3164"  # bits, not text
    shown = "a\u200c\\u200d\\u200c\\u200c b\ufe0f\\ufe0e\\ufe0f c\\U000e0100\\U000e01ef\\u3164"
    assert escaped(escaped(hidden)) == escaped(hidden) == shown
    assert escaped(escaped(HOSTILE)) == escaped(HOSTILE) == SEEN


def test_a_line_is_one_line_and_text_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\nwhet: all is well\t\u2028\r")
    say_text("a\n\tb\r\n", end="")
    assert capsys.readouterr().out == "a\\nwhet: all is well\\t\\u2028\\r\na\n\tb\\r\n"
    say(HOSTILE, err=True)
    assert capsys.readouterr().err == f"{SEEN}\n"


def test_json_has_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    value = {HOSTILE: ["a\n\t\r\x7f\x85\u2028\U000e0041ü", HOSTILE]}
    say_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == value
    assert not any(map(does_something, out))


def _terminal(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """A terminal in place of the standard streams; no fixture, because pytest sets the streams when a test begins."""
    stream = Tty()
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def _drawn(tty: Tty) -> str:
    shown = COLOURS.sub("", tty.getvalue())
    assert [ascii(character) for character in shown if does_something(character)] == []
    return shown


def test_tables_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = _terminal(monkeypatch)
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    screen = Screen(highlight=False)
    screen.print(table)
    screen.print(HOSTILE)
    screen.print(HOSTILE, style="bold", highlight=True)
    assert _drawn(tty).count(SEEN) == 6


def test_bars_and_spinners_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = _terminal(monkeypatch)
    with sampling_status(HOSTILE) as on_token:
        for _ in range(64):
            on_token(0, 0, 0)
    with _progress(Screen(stderr=True)) as report:
        report(f"1{HOSTILE}\n", 1, 2)
    with Screen(stderr=True).status(f"2{HOSTILE}") as status:
        status.update(f"3{HOSTILE}\n")
    shown = _drawn(tty)
    assert f"{SEEN}: 64 tokens" in shown
    assert f"1{SEEN}\\n" in shown
    assert f"3{SEEN}\\n" in shown


def test_notes_beside_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = _terminal(monkeypatch)
    live = LiveProgress(2)
    live.note(f"run: {HOSTILE}\n")
    live.step(1, {"reward/mean": 0.5}, {})
    live.close()
    LineProgress(2).note(f"run: {HOSTILE}\n")
    passing = StepLine(Screen(stderr=True), 2)
    passing.step(1, {"reward/mean": 0.5}, {"seconds/step": 1.0})
    passing.close()
    assert _drawn(tty).count(f"run: {SEEN}\\n") == 2


def test_an_evaluation_leaves_a_line_above_the_live_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tty = _terminal(monkeypatch)
    share = {"eval/pair_accuracy": 0.5, "eval/pair_accuracy_low": 0.25, "eval/pair_accuracy_high": 0.75}
    rest = {"eval/loss": 0.625, "eval/truncated": 1.0, "eval/rows": 8.0}
    steps: list[Mapping[str, float]] = [{"loss": 1.0}, {"loss": 0.5, **share, **rest}, {"loss": 0.25}]
    with keeping_output(tmp_path / "log"):
        live = LiveProgress(3)
        for step, metrics in enumerate(steps, start=1):
            with printing_to_log():
                print("chatter")
                live._live.refresh()  # as its own thread does while a reward function runs
            live.step(step, metrics, {})
        live.close()
    assert (
        _drawn(tty).count("step 2/3  held-out pair accuracy 50.0% (25.0% … 75.0%)  loss 0.625  truncated 100.0%\n") == 1
    )
    assert _drawn(tty).count("  held-out pair accuracy 50.0% (") == 1
    assert "chatter" not in _drawn(tty)
    assert (tmp_path / "log").read_text() == "chatter\n" * 3


def test_an_evaluation_is_shown_below_the_live_table_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = _terminal(monkeypatch)
    live = LiveProgress(2, 1)
    with live.evaluating():
        live._live.refresh()
    live.step(1, {"reward/mean": 0.5}, {})
    assert _drawn(tty).count("evaluating …") == 1
    live.close()
    assert _drawn(tty).count("evaluating …") == 1


def _ways_out(path: Path) -> list[str]:
    """Whatever in a file prints by itself."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {"rich", "click"}:
            names = {f"{node.module}.{alias.name}".partition(".")[2] for alias in node.names}
            found += sorted(f"rich.{name}" for name in names - OF_RICH)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in {"rich", "click", "tqdm"}]
        elif isinstance(node, ast.keyword) and node.arg in {"markup", "emoji"}:
            found.append(f"{node.arg}=")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            written = name == "os.write" and ast.unparse(node.args[0]) in {"1", "2"}
            if written or name in PRINTS or re.match(r"sys\.(__)?std(out|err)(__)?\.|traceback\.print", name):
                found.append(name)
    return found


def test_there_is_no_other_way() -> None:
    others = {}
    for path in SOURCE.rglob("*.py"):
        ways = [way for way in _ways_out(path) if way not in PASSIVE]
        if ways and path != Path(terminal.__file__):
            others[str(path.relative_to(SOURCE))] = ", ".join(ways)
    assert others == ELSEWHERE


@pytest.mark.parametrize(
    "line",
    ["print(x)", "typer.echo(x)", "sys.stderr.write(x)", "sys.stdout.buffer.write(x)", "import rich", "os.write(1, x)",
     "from rich.console import Console", "from rich.text import Text", "screen.print(x, markup=True)"],
)  # fmt: skip
def test_another_way_would_be_found(tmp_path: Path, line: str) -> None:
    path = tmp_path / "command.py"
    path.write_text(line)
    assert len(_ways_out(path)) == 1
