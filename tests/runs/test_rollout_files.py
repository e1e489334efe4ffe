"""Recorded rollouts are listed, searched and read one by one; damage costs what it hits, and is told."""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_kill import in_child
from tests.runs.trainer import kill_before_line
from whet.errors import RunFailed, UserError
from whet.runs import rollout_index
from whet.runs.rollout_files import RolloutFiles
from whet.runs.rollout_index import Summary, write_rollouts

Rows = Sequence[dict[str, Any]]
Write = Callable[[Path, int, Rows], Path]


def row(name: str, text: str, **more: Any) -> dict[str, Any]:
    """A row as a run writes it: two tokens of prompt, three of completion."""
    plain = {
        "id": name,
        "prompt": f"Sort {name}",
        "text": text,
        "tokens": [1, 2, 3, 4, 5],
        "mask": [False, False, True, True, True],
        "logprobs": [0.0, 0.0, -0.5, -0.25, -1.0],
        "finish": "stop",
        "reward": 1.0,
        "parts": {"correct": 1.0},
        "trained": True,
        "advantage": 0.5,
    }
    return {name: more[name] for name in ("group",) if name in more} | plain | more  # the group comes first


def file_of(run: Path, step: int) -> Path:
    (run / "rollouts").mkdir(parents=True, exist_ok=True)
    return run / "rollouts" / f"step-{step:06d}.jsonl.gz"


def write(run: Path, step: int, rows: Rows) -> Path:
    """As runs were written without an index: one gzip stream of JSON lines."""
    file = file_of(run, step)
    file.write_bytes(gzip.compress(b"".join(json.dumps(one).encode() + b"\n" for one in rows)))
    return file


def write_indexed(run: Path, step: int, rows: Rows) -> Path:
    """As runs write them."""
    write_rollouts(file_of(run, step), step, rows)
    return file_of(run, step)


@pytest.fixture(params=[write, write_indexed])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Both ways to write; every row of an indexed file is a block."""
    monkeypatch.setattr(rollout_index, "BLOCK", 1)
    written: Write = request.param
    return written


ROWS = {
    3: [row("a", "one"), row("a", "two", reward=0.0, parts={"correct": 0.0}, advantage=-0.5), row("b", "Straße")],
    5: [row("a", 'quoted ", "tokens": [9', advantages=[0.25, -0.75, 0.5]), row("c", "cut", finish="length")],
}


@pytest.fixture
def files(tmp_path: Path, either: Write) -> RolloutFiles:
    for step, rows in ROWS.items():
        either(tmp_path, step, rows)
    return RolloutFiles(tmp_path)


def places(found: Any) -> list[tuple[int, int, int]]:
    return [(one.step, one.group, one.number) for one in found]


def test_every_rollout_is_listed_with_what_one_sorts_by(files: RolloutFiles) -> None:
    assert files.steps() == [3, 5]
    assert places(files.summaries()) == [(3, 0, 0), (3, 0, 1), (3, 1, 0), (5, 0, 0), (5, 1, 0)]
    assert files.summaries(3)[1] == Summary(
        step=3,
        group=0,
        number=1,
        prompt_id="a",
        reward=0.0,
        parts={"correct": 0.0},
        correct=False,
        length=3,
        finish="stop",
        max_advantage=0.5,
        kept=True,
    )
    assert [one.max_advantage for one in files.summaries(5)] == [0.75, 0.5]
    assert places(files.history("a")) == [(3, 0, 0), (3, 0, 1), (5, 0, 0)]
    assert files.problems() == []


def test_a_rollout_that_was_not_trained_on_has_no_advantage_and_one_without_reward_none(tmp_path: Path) -> None:
    write(tmp_path, 1, [row("a", "x", trained=False, advantage=0.0, reward=None, parts={})])
    (one,) = RolloutFiles(tmp_path).summaries()
    assert (one.kept, one.max_advantage, one.reward, one.parts, one.correct) == (False, None, None, {}, None)


def test_one_row_is_read_whole(files: RolloutFiles) -> None:
    for one in files.summaries():
        assert files.row(one.step, one.group, one.number) in ROWS[one.step]
    assert files.row(5, 1, 0) == ROWS[5][1]
    assert [*files.rows(5)] == ROWS[5]
    with pytest.raises(UserError, match="no rollout 2 of group 0 at step 3"):
        files.row(3, 0, 2)
    with pytest.raises(UserError, match="no rollouts of step 4; it has those of steps: 3, 5"):
        files.row(4, 0, 0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("TWO", [(3, 0, 1)]),
        ("STRASSE", [(3, 1, 0)]),  # as texts are compared, not as they are spelled
        ("sort a", [(3, 0, 0), (3, 0, 1), (5, 0, 0)]),
        ('", "tokens": [9', [(5, 0, 0)]),  # a text that looks like the rest of the row
        ("0.75", []),  # numbers are not searched
        ("aone", []),  # nor what begins in the prompt and ends in the completion
    ],
)
def test_prompts_and_completions_are_searched(files: RolloutFiles, text: str, found: list[Any]) -> None:
    assert places(files.search(text)) == found
    assert places(files.search(text, limit=1)) == found[:1]
    assert places(files.search(text, step=5)) == [place for place in found if place[0] == 5]


def test_a_run_that_goes_on_is_seen(files: RolloutFiles, either: Write) -> None:
    before = files.summaries()
    either(files.directory, 7, [row("d", "new")])
    either(files.directory, 5, [row("e", "step 5 was trained again")])
    assert files.summaries() == [*before[:3], *files.summaries(5), *files.summaries(7)]
    assert [one.prompt_id for one in files.summaries()[3:]] == ["e", "d"]


def test_a_run_without_rollouts(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path)
    assert (files.steps(), files.summaries(), [*files.search("a")], files.history("a")) == ([], [], [], [])
    with pytest.raises(UserError, match="it has those of steps: none"):
        files.summaries(1)


HOSTILE_LINES = [
    b'{"id": "caf\xe9", "prompt": "", "text": "not UTF-8", "tokens": []}',
    b"[" * 100_000,
    b'["a list"]',
    b'{"id": "torn", "prompt": "',
    b'{"id": "torn later", "prompt": "p", "text": "t", "tokens": [1, 2',
    b'{"reward": ' + b"9" * 5000 + b"}",
    b"\x00\x1b[2J",
    b"",
]


@pytest.mark.parametrize("hostile", HOSTILE_LINES)
def test_a_line_that_is_no_row_costs_itself_and_is_told(tmp_path: Path, hostile: bytes) -> None:
    good = [row("a", "before"), row("b", "after")]
    lines = [json.dumps(good[0]).encode(), hostile, json.dumps(good[1]).encode()]
    file_of(tmp_path, 1).write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    files = RolloutFiles(tmp_path)
    assert [one.prompt_id for one in files.summaries()] == ["a", "b"]
    assert len(files.problems()) == 1
    assert "step-000001.jsonl.gz" in files.problems()[0]
    assert [*files.rows(1)] == good
    assert len([*files.search("")]) == 2
    assert len(files.problems()) == 1  # told once


@pytest.mark.parametrize(
    "odd",
    [
        {"id": 7, "prompt": None, "text": ["x"], "mask": "yes", "parts": [1], "finish": 3, "reward": "high"},
        {"text": "\ud800\x1b[2J\u202e</script>\x00", "parts": {"a": float("nan"), "b": True}, "advantages": {}},
        {"reward": 10**400, "parts": None, "advantage": [], "mask": [1, None]},
        {"text": "x" * 2_000_000},
        {},
    ],
)
def test_whatever_a_row_holds_it_is_listed(tmp_path: Path, either: Write, odd: dict[str, Any]) -> None:
    either(tmp_path, 1, [row("a", "x") | odd, odd])
    files = RolloutFiles(tmp_path)
    assert len(files.summaries()) == 2
    assert files.problems() == []
    assert len([*files.search("")]) == 2


def test_a_file_that_is_cut_or_damaged_is_read_up_to_there(tmp_path: Path) -> None:
    rows = [row(str(number), "".join(chr(97 + number * step % 26) for step in range(500))) for number in range(400)]
    whole = write(tmp_path, 1, rows).read_bytes()
    write(tmp_path, 2, [row("b", "intact")])
    middle = len(whole) // 2
    for broken in (whole[:middle], whole[:middle] + bytes(100) + whole[middle + 100 :]):
        (tmp_path / "rollouts" / "step-000001.jsonl.gz").write_bytes(broken)
        files = RolloutFiles(tmp_path)
        found = [one.prompt_id for one in files.summaries()]
        assert found[:100] == [*map(str, range(100))]
        assert found[-1] == "b"
        assert any("step-000001.jsonl.gz" in problem for problem in files.problems())
    for nothing in (b"", b"not gzip at all", whole[:5]):
        (tmp_path / "rollouts" / "step-000001.jsonl.gz").write_bytes(nothing)
        files = RolloutFiles(tmp_path)
        assert [one.prompt_id for one in files.summaries()] == ["b"]
    with pytest.raises(UserError, match="no rollout 0 of group 0"):
        files.row(1, 0, 0)
    assert len(files.problems()) == 1


def test_a_row_that_cannot_be_parsed_is_said_to_whoever_asks_for_it(tmp_path: Path) -> None:
    line = b'{"id": "a", "prompt": "p", "text": "t", "tokens": [1, 2\n'
    file_of(tmp_path, 1).write_bytes(gzip.compress(line))
    with pytest.raises(RunFailed, match=r"step-000001\.jsonl\.gz: rollout 0 of group 0 is not valid JSON"):
        RolloutFiles(tmp_path).row(1, 0, 0)


def test_a_directory_or_pipe_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "rollouts" / "step-000001.jsonl.gz").mkdir(parents=True)
    files = RolloutFiles(tmp_path)
    assert files.summaries() == []
    assert "it is not a file" in files.problems()[0]


NAMED = [row("a", "x", group=0), row("a", "y", group=0), row("a", "z", group=1), row("b", "w", group=4)]


def test_a_prompt_that_was_drawn_twice_in_a_row_has_two_groups(tmp_path: Path, either: Write) -> None:
    """Rows name their group; older ones do not, and rows of one prompt were taken for one."""
    either(tmp_path, 1, NAMED)
    assert places(RolloutFiles(tmp_path).summaries()) == [(1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 4, 0)]


def test_rows_are_those_of_a_plain_gzip_file(tmp_path: Path) -> None:
    rows = [row("a", "x" * 10_000, group=number // 8) for number in range(100)]
    with gzip.open(write_indexed(tmp_path, 1, rows), "rt") as unpacked:
        assert [json.loads(line) for line in unpacked] == rows
    blocks = rollout_index.read_index(file_of(tmp_path, 1), 1).blocks  # type: ignore[union-attr]
    assert sum(block.rows for block in blocks) == 100
    assert len(blocks) > 2


def test_a_damaged_block_costs_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: one row costs one block, because all others may be damaged."""
    monkeypatch.setattr(rollout_index, "BLOCK", 1)
    file = write_indexed(tmp_path, 1, NAMED)
    index = rollout_index.read_index(file, 1)
    assert index is not None
    kept, whole = index.blocks[2], file.read_bytes()
    rest = bytearray(len(whole))
    rest[kept.offset : kept.offset + kept.size] = whole[kept.offset : kept.offset + kept.size]
    file.write_bytes(rest)
    files = RolloutFiles(tmp_path)
    assert len(files.summaries()) == 4
    assert files.row(1, 1, 0) == NAMED[2]
    assert files.problems() == []  # nobody asked for the others
    assert [*files.rows(1)] == [NAMED[2]]
    assert places(files.search("sort")) == [(1, 1, 0)]
    assert [problem.split(" cannot")[0] for problem in files.problems()] == [
        f"{file}, block {number} of 4" for number in (1, 2, 4)
    ]
    with pytest.raises(RunFailed, match="rollout 0 of group 4 cannot be read"):
        files.row(1, 4, 0)


def resealed(content: Any) -> bytes:
    return gzip.compress(json.dumps(content).encode())


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole, _: whole[:-9],
        lambda whole, _: whole + b"more",
        lambda *_: b"",
        lambda *_: gzip.compress(b"\xff"),
        lambda *_: gzip.compress(b"[" * 100_000),
        lambda *_: resealed([]),
        lambda *_: resealed({"blocks": [], "rollouts": []}),
        lambda _, content: resealed(content | {"rollouts": content["rollouts"][1:]}),
        lambda _, content: resealed(content | {"blocks": [[0, "all", 4]]}),
        lambda _, content: resealed(content | {"blocks": [[0, 10**9, 4]]}),
        lambda _, content: resealed(content | {"rollouts": [one | {"reward": "1"} for one in content["rollouts"]]}),
        lambda _, content: resealed(
            content | {"rollouts": [one | {"parts": {"a": []}} for one in content["rollouts"]]}
        ),
        lambda _, content: resealed(content | {"rollouts": [one | {"number": -1} for one in content["rollouts"]]}),
    ],
)
def test_an_index_that_is_no_index_is_told_and_the_rows_are_read_through(tmp_path: Path, damage: Any) -> None:
    file = write_indexed(tmp_path, 1, NAMED)
    expected = RolloutFiles(tmp_path).summaries()
    index = file.with_name("step-000001.index.json.gz")
    whole = index.read_bytes()
    index.write_bytes(damage(whole, json.loads(gzip.decompress(whole))))
    files = RolloutFiles(tmp_path)
    assert files.summaries() == expected
    assert [*files.rows(1)] == NAMED
    assert files.row(1, 0, 1) == NAMED[1]
    assert [problem.split(" is not used")[0] for problem in files.problems()] == [str(index)]


def test_the_index_of_other_rows_is_not_used(tmp_path: Path) -> None:
    file = write_indexed(tmp_path, 1, NAMED)
    file.write_bytes(gzip.compress(json.dumps(NAMED[3]).encode() + b"\n"))
    files = RolloutFiles(tmp_path)
    assert [one.prompt_id for one in files.summaries()] == ["b"]
    assert "it describes another file" in files.problems()[0]


def test_a_kill_at_any_moment_of_writing_leaves_the_rows_of_before_or_after(tmp_path: Path) -> None:
    """Never a mixture, and writing again gives the same bytes as if nothing had happened."""
    before, after = NAMED[:1], NAMED[2:]
    write_indexed(tmp_path / "whole", 1, after)
    line, alive, left = 1, False, set()
    while not alive:
        run = tmp_path / f"killed-{line}"
        file = write_indexed(run, 1, before)

        def killed(line: int = line, file: Path = file) -> None:
            kill_before_line(line)
            write_rollouts(file, 1, after)

        alive = not in_child(killed)
        files = RolloutFiles(run)
        rows, is_indexed = [*files.rows(1)], rollout_index.read_index(file, 1) is not None
        assert rows in (before, after)
        assert [one.prompt_id for one in files.summaries()] == [one["id"] for one in rows]
        assert files.problems() == []
        left.add((rows == after, is_indexed))
        write_rollouts(file, 1, after)
        for name in ("step-000001.jsonl.gz", "step-000001.index.json.gz"):
            assert (run / "rollouts" / name).read_bytes() == (tmp_path / "whole" / "rollouts" / name).read_bytes()
        line += 7
    assert left == {(False, True), (False, False), (True, False), (True, True)}
