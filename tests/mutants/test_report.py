"""What a run fails by, and what one of its processes tells the next."""

from tests.mutants.findings import Findings, Known
from tests.mutants.outcome import Outcome
from tests.mutants.report import complaints
from tests.mutants.sites import Mutant

MUTANT = Mutant(
    file="x.py", number=3, line=7, owner="f", operator="arithmetic", before="a + b", after="a - b", lines=(7, 8)
)
ROW = {"at": 7, "in": "f", "operator": "arithmetic", "line": "a + b", "as": "a - b"}
KNOWN = {("x.py", "f", "a + b", "a - b"): "b is 0 here."}


def counts(killed, *survivors):
    return {
        "killed": killed,
        "timeout": 0,
        "crashed": 0,
        "survived": len(survivors),
        "not covered": 0,
        "survivors": list(survivors),
    }


def test_a_survivor_without_a_reason_is_told():
    files = {"x.py": counts(99, ROW)}
    assert complaints(files, files, KNOWN) == []
    (told,) = complaints(files, files, {})
    assert told == "src/whet/x.py:7 no test notices, and no reason is listed: a + b → a - b"
    assert complaints({}, files, {}) == []  # it was not run


def test_too_many_survivors_are_told_whatever_the_reasons():
    some = {"x.py": counts(0, ROW)}
    assert complaints(some, {**some, "y.py": counts(19)}, KNOWN) == []  # 95 % of all
    (told,) = complaints(some, {**some, "y.py": counts(18)}, KNOWN)
    assert told == "only 18 of 19 bugs are noticed, 94.7%: at least 95% must be"


def test_what_is_handed_over_arrives():
    known = Known(name="t.py::t", seconds=0.5, passed=True, lines={"x.py": [1, 2]})
    outcome = Outcome(mutant=MUTANT, verdict="killed", killer="t.py::t", seconds=0.1)
    found = Findings(outcomes=[outcome], left=[MUTANT], known={known.name: known}, modules=["torch"])
    assert Findings.from_json(found.to_json()) == found
