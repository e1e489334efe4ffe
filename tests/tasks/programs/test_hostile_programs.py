"""Every program of the table runs for real, and gets the reward that it must get."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.tasks.programs import hostile
from whet.tasks.programs.code_task import Code
from whet.tasks.sandbox.isolation import MECHANISMS, Limits
from whet.tasks.sandbox.sandbox import Sandbox

PROGRAMS = {**hostile.SCORING_ZERO, **hostile.HONEST}
LIMITS = {"cpu_seconds": 1, "wall_seconds": 4.0, "memory_mb": 256, "held_out_share": 0}
# Without isolation these do succeed, so it is the sandbox that refuses them. The others are not for trying out.
HARMLESS = (
    *("fork", "subprocess", "os.system", "os.posix_spawn", "a signal to the parent", "memory files", "the data set"),
    *("a socket", "a connection", "a datagram", "a pair for datagrams", "/etc/passwd", "/etc/passwd by io", "/proc"),
    *("its own memory map", "the root directory", "the home directory", "the parent of scratch"),
    *("a file of the data set", "the data set, by a link", "a file that sends signals"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set, which is also what programs try to read."""
    path = tmp_path_factory.mktemp("programs") / "rows.jsonl"
    row = {"prompt": "The sum of a list.", "tests": hostile.TESTS, "solution": hostile.GOOD}
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def rewards(data: Path) -> Iterator[dict[str, float]]:
    """The rewards of all programs, run side by side. A server listens: only the sandbox prevents connections."""
    scored = scores(Code(path=str(data), workers=12, **LIMITS), hostile.SCORING_ZERO, data)
    yield scored | scores(Code(path=str(data), held_out_share=0, workers=4), hostile.HONEST, data)
    assert not Path("/tmp/whet-hostile").exists()
    assert sorted(data.parent.iterdir()) == [data]


def scores(task: Code, programs: Mapping[str, str], data: Path) -> dict[str, float]:
    (example,) = task.sides[0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        known = f"DATA, PORT, HOME = {str(data)!r}, {server.getsockname()[1]}, {str(Path.home())!r}\n"
        texts = [f"```python\n{known}{program}\n```" for program in programs.values()]
        given = task.score_many([example] * len(texts), texts)
    return {name: score.reward for name, score in zip(programs, given, strict=True)}


def test_the_table_is_long_enough() -> None:
    assert len(hostile.SCORING_ZERO) >= 100
    assert len(set(PROGRAMS.values())) == len(PROGRAMS)


@pytest.mark.parametrize("name", hostile.SCORING_ZERO)
def test_a_hostile_program_scores_nothing(rewards: dict[str, float], name: str) -> None:
    assert rewards[name] == 0.0


@pytest.mark.parametrize("name", hostile.HONEST)
def test_an_honest_program_scores_one(rewards: dict[str, float], name: str) -> None:
    assert rewards[name] == 1.0


def test_it_is_the_sandbox_that_refuses(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(cpu_seconds=10, wall_seconds=60.0)
    open_to_all = Sandbox(limits, isolation="none", without=MECHANISMS)
    monkeypatch.setattr("whet.tasks.programs.code_task._sandbox", lambda *_: open_to_all)
    programs = {name: hostile.SCORING_ZERO[name] for name in HARMLESS}
    assert scores(Code(path=str(data), held_out_share=0, workers=4), programs, data) == dict.fromkeys(programs, 1.0)
    open_to_all.close()
