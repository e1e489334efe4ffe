"""Where errors of a user's code arose, and the log of what it prints."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from whet import user_code
from whet.user_code import happened, keeping_output, located, printing_to_log, whole_traceback

SOURCE = """
import json

def reads(text):
    return json.loads(text)

def chained(text):
    try:
        return {}["x"]
    except KeyError as error:
        raise ValueError("no x") from error
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(SOURCE)
    module = ModuleType("rewards")
    exec(compile(SOURCE, tmp_path / "rewards.py", "exec"), vars(module))
    return module


def test_the_last_line_of_the_user_is_named_not_that_of_a_library(rewards: ModuleType) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        rewards.reads("{")
    trace = caught.value.__traceback__
    assert trace is not None
    error = caught.value.with_traceback(trace.tb_next)  # without the frame of this test
    place = "rewards.py:5 in reads: JSONDecodeError: Expecting property name"
    assert located(error).startswith(place)
    assert happened(error).startswith(f"failed at {place}")
    assert whole_traceback(error).splitlines()[-1].startswith("json.decoder.JSONDecodeError: Expecting")
    assert "decoder.py" in whole_traceback(error)


def test_causes_are_in_the_traceback(rewards: ModuleType) -> None:
    with pytest.raises(ValueError, match="no x") as caught:
        rewards.chained("")
    text = whole_traceback(caught.value)
    assert [line for line in text.splitlines() if line.startswith(("KeyError", "ValueError"))] == [
        "KeyError: 'x'",
        "ValueError: no x",
    ]
    assert 'return {}["x"]' in text


def test_an_error_without_a_frame_of_the_user() -> None:
    assert happened(TypeError("it gave\n a float")) == "raised TypeError: it gave a float"


def test_prints_go_to_the_log_and_only_inside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with keeping_output(tmp_path / "user_output.log") as log:
        print("before")
        assert not log.path.exists()
        with printing_to_log():
            print("\N{SNOWMAN}\udc80")
            sys.stderr.write("an error\n")
            sys.stdout.buffer.write(b"\xff\n")
        print("after")
    with printing_to_log():
        print("outside of a run")
    assert (tmp_path / "user_output.log").read_bytes() == "\N{SNOWMAN}\\udc80\nan error\n".encode() + b"\xff\n"
    assert capfd.readouterr().out == "before\nafter\noutside of a run\n"


def test_the_log_is_bounded_and_keeps_the_newest_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_code, "LOG_BYTES", 10)
    with keeping_output(tmp_path / "log") as log:
        for number in range(8):
            log.write(f"{number}__\n".encode())
    assert (tmp_path / "log.1").read_text() == "4__\n5__\n"
    assert (tmp_path / "log").read_text() == "6__\n7__\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
