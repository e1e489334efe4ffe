"""The command, run in this process: starting Python with torch takes seconds."""

import io
import sys

import pytest

from tests.cli.tiny import Outcome, Whet
from whet.cli.app import main


@pytest.fixture
def whet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Whet:
    """Runs `whet …` in this process; a traceback fails the test because only SystemExit is caught."""

    def run(*arguments: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["whet", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        code = stop.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, captured.out, captured.err)

    return run
