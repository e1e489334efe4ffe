"""No target and no test of one can be lost by a new name, and no survivor is excused that is not there."""

import json
from pathlib import Path

import pytest

from tests.mutants.page import lines, main, render
from tests.mutants.report import RESULTS, accepted, unmatched
from tests.mutants.sites import mutants
from tests.mutants.targets import EMPTY, ROOT, SOURCE, TESTS, WHOLE_ROOMS, source

TEMPLATE = ROOT / "docs" / "testing.template.md"
PAGE = ROOT / "docs" / "testing.md"
ROW = {"at": 1, "in": "f", "operator": "arithmetic", "line": "a + b", "as": "a - b"}


def test_every_file_of_a_room_is_a_target():
    for room in WHOLE_ROOMS:
        there = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / room).rglob("*.py")}
        assert there == {file for file in {*TESTS, *EMPTY} if file.startswith(f"{room}/")}
    assert all(mutants(file, source(file)) == [] for file in EMPTY)


@pytest.mark.parametrize("file", TESTS)
def test_a_target_and_its_tests_exist(file):
    assert mutants(file, source(file))
    assert all((ROOT / test).exists() for test in TESTS[file])


def test_what_is_accepted_is_a_mutant_and_has_a_reason():
    known = accepted()
    assert unmatched(known) == [], "take these out of tests/mutants/accepted.yaml"
    assert all(len(reason.split()) > 3 for reason in known.values())


def test_an_entry_of_a_line_that_is_gone_is_found():
    gone = ("algorithms/policy_loss.py", "k1", "return logprobs - logprobs_of_old", "return logprobs + logprobs_of_old")
    there = ("algorithms/policy_loss.py", "k1", "return logprobs - logprobs_ref", "return logprobs + logprobs_ref")
    assert unmatched({gone: "why not", there: "why not"}) == [gone]
    assert unmatched({("no/such.py", *there[1:]): "why not"}) == [("no/such.py", *there[1:])]


def test_the_page_is_fresh(tmp_path: Path):
    main([str(TEMPLATE), str(tmp_path / "page.md")])
    fresh = (tmp_path / "page.md").read_text("utf-8")
    assert fresh == PAGE.read_text("utf-8"), "docs/testing.md is stale: renew it with `make docs`"
    assert set(json.loads(RESULTS.read_text("utf-8"))["files"]) == set(TESTS)


def test_both_rates_are_on_the_page():
    counts = {"killed": 5, "timeout": 2, "crashed": 1, "survived": 1, "not covered": 1}
    survivors = [ROW, {**ROW, "as": "a * b"}]
    results = {"python": "3", "torch": "2", "files": {"x.py": {**counts, "survivors": survivors}}}
    text = "\n".join(lines(results, {("x.py", "f", "a + b", "a - b"): "b is 0 here."}))
    assert "Of 10 bugs the tests notice 8: **80.0%**, or **88.9%** without the 1 that" in text
    assert "| `x.py` | 10 | 80.0% | 88.9% | 2, 1 |" in text
    assert "`a - b`: b is 0 here." in text.split("### Survivors with a reason")[1]
    assert "`a * b`" in text.split("### Survivors with a reason")[0]


def test_a_template_marks_one_place():
    with pytest.raises(SystemExit, match="must have one line"):
        render("no mark", {}, {})
