"""docs/learn: what its Python prints, where its links lead, and that every command in it works."""

import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.tiny import Whet
from whet.learn import folder as learner
from whet.learn.catalogue import EXERCISES, find

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = Path(__file__).with_name("solutions")
INDEX = ROOT / "docs" / "learn" / "README.md"
CHAPTERS = sorted(path for path in INDEX.parent.glob("*.md") if path != INDEX)
EACH = pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
SECTIONS = ["Idea", "Formula", "In whet", "See it", "Exercise", "Questions", "Readings"]
TOLD = re.compile(r"[Ss]ave this as `([\w.]+)`:\s*$")  # of a file of the reader's own, in the prose before it
MODULES = {"whet": "whet", "torchrun": "torch.distributed.run"}


class Block(NamedTuple):
    before: str  # the prose since the block before
    kind: str
    text: str


def blocks(page: Path) -> list[Block]:
    found, end, text = [], 0, page.read_text("utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.append(Block(text[end : match.start()], match[1], match[2]))
        end = match.end()
    return found


def save_files(page: Path) -> None:
    """The files that a chapter has its reader save, in the working directory."""
    for block in blocks(page):
        if told := TOLD.search(block.before):
            Path(told[1]).write_text(block.text, "utf-8")


def commands(page: Path, *, long: bool) -> Iterator[tuple[str, int]]:
    """Each with its exit code: 0, or what the comment beside it says."""
    for block in blocks(page):
        if block.kind == "sh" and ("<!-- minutes:" in block.before) == long:
            for line in block.text.splitlines():
                command, _, comment = line.partition(" #")
                told = re.search(r"exit code (\d)", comment)
                yield command.strip(), int(told[1]) if told else 0


@EACH
def test_its_python_prints_what_it_says(page: Path) -> None:
    space: dict[str, object] = {}
    found = blocks(page)
    for block, following in pairwise(found):
        if block.kind == "python":
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(block.text, space)
            told = ("text", "") if TOLD.search(block.before) else (following.kind, following.text)
            assert told == ("text", printed.getvalue())


@EACH
def test_it_has_every_part(page: Path) -> None:
    text = page.read_text("utf-8")
    headings = [heading.partition(",")[0].rstrip("s") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert [("Exercise" if heading == "Experiment" else heading) for heading in headings] == [
        section.rstrip("s") for section in SECTIONS
    ]
    work = text[text.index("\n## E") : text.index("\n## Questions")]
    assert ("whet learn check" in work) == ("\n## Exercise" in work)
    assert "```sh\nwhet " in work or "```sh\ntorchrun " in work
    assert text.count("<details><summary>") == text.count("</details>") >= 3
    assert "—" not in text


@EACH
def test_its_links_into_the_library_name_what_is_there(page: Path) -> None:
    names = re.findall(r"\[`(whet\.[\w.]+)`\]\(([^)]+)\)", page.read_text("utf-8"))
    assert names
    for name, link in names:
        module, _, thing = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, thing), name
        assert (page.parent / link).resolve() == Path(str(found.__file__)).resolve(), name


def test_the_index_lists_the_chapters_that_are_there() -> None:
    text = INDEX.read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 31))
    linked = {}
    for number, title, exercises in rows:
        link = re.fullmatch(r"\[(.+)\]\((.+)\)", title)
        assert link, title
        assert (INDEX.parent / link[2]).read_text("utf-8").startswith(f"# {number}. {link[1]}\n")
        linked[link[2]] = exercises
    assert set(linked) == {page.name for page in CHAPTERS}
    for name, exercises in linked.items():
        own = [exercise.name for exercise in EXERCISES if exercise.chapter == name]
        assert bool(own) == ("experiment" not in exercises), name
    for exercise in EXERCISES:
        assert f"`{exercise.name}`" in linked[exercise.chapter] or exercise.phase in ("bug hunt", "broken runs")
        assert f"whet learn start {exercise.name}\n" in (INDEX.parent / exercise.chapter).read_text("utf-8")


def test_an_example_of_a_remark_is_one_that_is_made() -> None:
    (told,) = re.findall(r"then: (.+)\.\n", INDEX.read_text("utf-8"))
    remarks = [mistake.remark for check in find("ppo-loss").checks for mistake in check.mistakes]  # type: ignore[attr-defined]
    assert told in remarks


@pytest.mark.parametrize("page", [INDEX, *CHAPTERS], ids=lambda page: page.stem)
def test_its_commands_work(page: Path, whet: Whet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page; before a check, the file is filled in with the reference solution."""
    monkeypatch.chdir(tmp_path)
    save_files(page)
    for line, code in commands(page, long=False):
        program, *words = shlex.split(line)
        assert program == "whet", line
        if words[:2] == ["learn", "check"]:
            exercise = find(words[2])
            learner.file_of(Path("learn"), exercise).write_bytes((SOLUTIONS / exercise.stub.name).read_bytes())
        result = whet(*words)
        assert result.code == code, f"{line}: {result.out} {result.err}"


@pytest.mark.slow
@EACH
def test_its_longer_commands_work(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_files(page)
    environment = {**os.environ, "WHET_HOME": str(tmp_path / "home")}
    for line, code in commands(page, long=True):
        program, *words = shlex.split(line)
        words = [sys.executable, "-m", MODULES[program], *words]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{line}: {done.stderr[-2000:]}"
