"""`whet chat` in a real process on a real terminal: what is typed, Ctrl-C and Ctrl-D."""

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

from tests.cli.tiny import bigram_model

PROGRAM = "import typer; from whet.cli.commands.chat import chat; typer.run(chat)"
SECONDS = 60.0


def _read_until(terminal: int, pattern: str) -> str:
    """What the terminal shows until the pattern is in it."""
    shown, end = "", time.monotonic() + SECONDS
    while not re.search(pattern, shown):
        assert time.monotonic() < end, f"no {pattern!r} in {shown[-500:]!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown


def test_an_answer_is_shown_as_it_is_sampled_and_ctrl_c_returns_to_the_prompt(tmp_path: Path) -> None:
    endless = bigram_model(tmp_path / "model", {"a": {"b": 1.0}, "b": {"a": 1.0}}, alphabet="ab", context=10**6)
    arguments = [sys.executable, "-c", PROGRAM, str(endless), "--max-tokens", str(10**6)]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, arguments)
    try:
        _read_until(terminal, "> $")
        os.write(terminal, b"x\n")
        assert "character 'x'" in _read_until(terminal, r"alphabet[^>]*> $")  # a mistake does not end it
        os.write(terminal, b"a\n")
        _read_until(terminal, "(ba){20}")  # a million tokens are far from sampled
        os.write(terminal, b"\x03")
        _read_until(terminal, r"\(stopped\)[^>]*> $")
        os.write(terminal, b"\x04")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        child = 0
    finally:
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)
        os.close(terminal)
