"""docs/doctor.md: written from the committed verdicts, which add up."""

import json
from pathlib import Path

import pytest

from studies.doctor.page import RESULTS, TABLES, Results, render
from studies.doctor.results import rowwise
from studies.doctor.training import FAULTS
from whet.errors import UserError

DOCS = Path(__file__).resolve().parents[2] / "docs"
MARKS = "".join(f"<!-- here: {name} -->\n" for name in TABLES)
REWARD, RATE = (next(one for one in FAULTS if one.name.startswith(name)) for name in ("constant", "lr-by-500"))


def row(case, *, faulty, part="measure", rank=None, alarms=("plateau",), share=0.25, seed=0):
    told = None if share is None else 10
    common = {"alarms": alarms, "causes": ["x"], "rank": rank, "told": told, "share": share, "seed": seed}
    return {"case": case, "part": part, "faulty": faulty, "ended": "", "result": 0.5, **common}


@pytest.fixture
def results(tmp_path):
    """Of four faulty runs three are detected, two by their first cause, one by its second; a healthy one is warned."""
    quiet = {"alarms": (), "share": None}
    runs = [
        row(REWARD.name, faulty=True, part="fit", rank=1),
        row(RATE.name, faulty=True, rank=1, share=0.1),
        row(RATE.name, faulty=True, rank=1, share=0.2, seed=1),
        row(RATE.name, faulty=True, rank=2, share=0.6, seed=2),
        row(RATE.name, faulty=True, seed=3, **quiet),
        row("words-rloo", faulty=False, **quiet),
        row("words-rloo", faulty=False, seed=1),
    ]
    repair = {"case": RATE.name, "part": "measure", "changes": ["optimizer.lr=1"], "healthy": 0.8}
    repairs = [
        {**repair, "seed": 0, "faulty": 0.1, "repaired": 0.8, "lost": 0.125, "restored": 1.0},
        {**repair, "seed": 1, "faulty": 0.1, "repaired": 0.4, "lost": 0.125, "restored": 0.5},
        {**repair, "seed": 2, "faulty": 0.8, "repaired": 0.8, "lost": 1.0, "restored": 1.0},  # did no harm
    ]
    (tmp_path / "whet.json").write_text(rowwise({"runs": runs, "repairs": repairs}), "utf-8")
    (tmp_path / "rivals.json").write_text(rowwise({"other 1.0": runs[:2]}), "utf-8")
    return Results(tmp_path)


def table(results, name):
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in TABLES[name](results)][2:]


def test_its_numbers_are_those_of_the_runs(results):
    ours, other = table(results, "measure")
    assert [ours[0], ours[4], ours[5]] == ["`whet doctor`", "20 %", "1 of 2 warned"]
    assert [cell.split(" (")[0] for cell in ours[1:4]] == ["75 %", "50 %", "75 %"]
    assert [cell.split(" (")[0] for cell in other[1:3]] == ["100 %", "100 %"]
    assert table(results, "counts")[2] == ["only measured", "1", "4", "1", "2"]
    assert table(results, "repaired")[2][:3] == ["only measured", "2", "2"]
    (line,) = (cells for cells in table(results, "faults") if cells[1] == RATE.base)
    assert [line[3], line[5], line[6], line[7]] == ["3 of 4", "3 of 4", "20 %", "1 of 2"]
    assert [line[0] for line in table(results, "false_alarms")] == ["words-rloo, seed 1"]


def test_a_template_must_name_all_tables(results):
    assert "`whet doctor`" in render(MARKS, results)
    with pytest.raises(UserError, match="the template marks"):
        render(MARKS.replace("<!-- here: rules -->\n", ""), results)


def test_json_has_a_line_for_every_row():
    found = {"parts": {"fit": {"a": 1}}, "runs": [{"x": [1, 2]}, {"x": "é"}], "none": []}
    assert json.loads(rowwise(found)) == found
    assert len(rowwise(found).splitlines()) == 6


@pytest.mark.skipif(not (RESULTS / "whet.json").is_file(), reason="the study has no results yet")
def test_the_page_is_that_of_the_committed_results():
    template = (DOCS / "doctor.template.md").read_text("utf-8")
    assert (DOCS / "doctor.md").read_text("utf-8") == render(template, Results(RESULTS))
