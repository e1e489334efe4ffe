"""The page, the table and the pictures of a contest, also where little was measured and where texts are hostile."""

import json
import re

import pytest

from tests.report.fake_contest import LLM, METHODS, fake_contest
from whet.report.comparison.comparison_curves import curves_figure
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.contest_figures import contest_figures, distance, overoptimisation_figure, truth_label
from whet.report.comparison.contest_view import contest_view
from whet.report.comparison.entries import bracketed, ends, fixed, mean_text, style, table
from whet.runs.experiment_directories import START


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    directory = fake_contest(tmp_path_factory.mktemp("contest"), failed=[("kto", 2)])
    return directory, directory.results()


def interval(mean, low, high):
    return {"mean": mean, "low": low, "high": high}


def test_numbers_have_the_digits_that_their_interval_leaves():
    assert mean_text(interval(3.14159, 3.0, 3.3)) == "3.14"  # half is 0.15
    assert mean_text(interval(-0.5, -2.0, 1.0)) == "−0.5"
    assert mean_text(interval(2.0, 1.0, 3.0), sign=True) == "+2.0"
    assert bracketed(interval(0.61, 0.5, 0.72), scale=100) == "[50 … 72]"
    assert fixed(123.456, interval(123, 100, 146)) == "123"
    assert (mean_text(interval(3.14159, None, None)), bracketed(interval(1.0, None, None))) == ("3.14", "")
    assert mean_text(None) == "–"
    assert ends(interval(1.0, None, None)) == (1.0, 1.0, 1.0)


def test_the_verdict_says_what_the_intervals_allow(contest):
    first, judge, llm, fooled = contest_view(contest[1]).verdict
    assert first == "grpo, ppo and dpo have a higher gold reward than sft; kto has a lower one."
    assert judge == "By the judge: grpo, ppo and dpo are preferred to sft; kto cannot be told apart from sft."
    assert llm.startswith(f"By {LLM}: ")
    assert fooled.startswith("kto pleases the reward model that it was trained against, but not the gold reward")


def test_one_method_is_spoken_of_in_the_singular(tmp_path):
    results = fake_contest(tmp_path, methods={"ppo": METHODS["ppo"]}, seeds=1, pairwise=False).results()
    assert contest_view(results).verdict == [
        "ppo has a higher gold reward than sft.",
        "By the judge: ppo is preferred to sft.",
    ]


def header(results):
    return contest_view(results).columns


def cells(results, name):
    """Column → cell of the start model or of a method."""
    view = contest_view(results)
    return dict(zip(view.columns, next(e.cells for e in view.entries if e.name == name), strict=True))


def drawn(directory):
    return [
        name for name in ("overview", "frontier", "overoptimisation", "curves") if directory.picture_path(name).exists()
    ]


def test_the_table(contest):
    results = contest[1]
    assert header(results) == [
        *("method", "gold reward", "gain", "proxy reward", "wins, by the judge", f"wins, by {LLM}"),
        *("KL to sft", "tokens"),
    ]
    grpo = results["methods"][0]
    own = cells(results, "grpo")
    wins = grpo["summary"]["wins"]
    assert own["wins, by the judge"].small[1] == f"{wins['wins']} won, {wins['ties']} tied, {wins['losses']} lost"
    assert wins["wins"] + wins["ties"] + wins["losses"] == 3 * 120
    assert own["gold reward"].small[1] == "seeds " + ", ".join(
        mean_text(seed["summary"]["gold"]) for seed in grpo["seeds"]
    )
    assert [cell.main for cell in cells(results, "sft").values()][2::2] == ["–", "–", "–"]
    lines = table(contest_view(results)).splitlines()
    assert len({len(line) for line in lines}) == 1  # columns align
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["sft", "grpo", "ppo", "dpo", "kto"]


def test_the_files(contest):
    directory, results = contest
    view = write_page(directory)
    assert drawn(directory) == ["overview", "frontier", "overoptimisation", "curves"]
    for name, picture in contest_figures(results).items():
        assert directory.picture_path(name).read_bytes() == picture
        assert picture.startswith(b"\x89PNG")
    text = directory.table_path.read_text()
    assert " ".join(view.verdict) in text
    assert "kto, seed 2 did not finish: step 12: the loss is not finite" in text
    assert "![Over-optimisation](overoptimisation.png)" in text
    page = directory.page_path.read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # nothing comes from outside
    for method in results["methods"]:  # a method has one colour in the table and beside its completions
        shade = style(method["colour"])["color"]
        assert page.count(f"background: {shade}") == 1 + 24
        assert len(re.findall(rf"<b>{method['method']}</b>", page)) == 1 + 24


def test_completions_are_shown_as_text_and_nothing_more(tmp_path):
    directory = fake_contest(tmp_path, methods={"ppo": METHODS["ppo"]}, seeds=1, prompts=4, pairwise=False)
    rows = directory.samples("ppo-seed-0")
    rows[0]["text"] = "</div><script>alert(1)</script>\x00"
    directory.write_samples("ppo-seed-0", rows)
    write_page(directory)
    page = directory.page_path.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd" in page
    assert "script-src" not in page.split("</head>")[0]  # no script at all may run
    assert "default-src 'none'" in page


def test_side_by_side_marks_what_the_judge_says(tmp_path):
    directory = fake_contest(tmp_path, methods={"ppo": METHODS["ppo"]}, seeds=1, prompts=3, pairwise=False)
    start = {row["id"]: row for row in directory.samples(START) if row["sample"] == 0}
    rows = directory.samples("ppo-seed-0")
    for row, change in zip(rows, (1.0, 0.0, -1.0), strict=True):
        row["judge"] = start[row["id"]]["judge"] + change
    directory.write_samples("ppo-seed-0", rows)
    write_page(directory)
    assert re.findall(r"class=\"badge \w+\">(\w+)<", directory.page_path.read_text()) == ["won", "tied", "lost"]


@pytest.mark.parametrize(
    "options",
    [
        {"has_gold": False},
        {"has_judge": False},
        {"has_proxy": False},
        {"has_gold": False, "has_judge": False},
        {"has_gold": False, "has_judge": False, "has_proxy": False},
        {"prompts": 1, "start_samples": 1},
        {"failed": [("ppo", 0)]},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_was_not_measured_leaves_no_hole(tmp_path, options):
    methods = {name: METHODS[name] for name in ("ppo", "dpo")}
    directory = fake_contest(tmp_path, **{"methods": methods, "seeds": 1, "prompts": 6, "pairwise": False, **options})
    write_page(directory)
    has_truth = options.get("has_gold", True) or options.get("has_judge", True)
    assert ("overoptimisation" in drawn(directory)) == (
        has_truth and options.get("has_proxy", True) and "prompts" not in options
    )
    columns = header(directory.results())
    assert ("gold reward" in columns) == options.get("has_gold", True)
    assert ("judge's reward" in columns) == (not options.get("has_gold", True) and options.get("has_judge", True))
    assert ("proxy reward" in columns) == options.get("has_proxy", True)
    page = directory.page_path.read_text() + directory.table_path.read_text()
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page)
    assert "None" not in re.sub(r"base64,[^\"]*", "", page)


@pytest.fixture(scope="module")
def verifiable(tmp_path_factory):
    """A contest on a task that scores answers and knows no gold reward."""
    directory = fake_contest(tmp_path_factory.mktemp("sums"), seeds=1, has_gold=False, has_score=True)
    write_page(directory)
    return directory, directory.results()


def test_the_score_of_a_task_is_never_called_gold(verifiable):
    directory, results = verifiable
    assert header(results)[:3] == ["method", "score by the task", "gain"]
    assert "judge's reward" not in header(results)
    page = directory.page_path.read_text()
    for text in (re.sub(r"base64,[^\"]*", "", page), directory.table_path.read_text()):
        assert "Score by the task: the reward that reviews itself gives; it knows no gold reward." in text
        assert "Gain: mean score by the task minus that of sft" in text
        assert len(re.findall("gold", text)) == 1  # where it says that there is none
    assert truth_label(results) == "score by the task"
    first, *_, fooled = contest_view(results).verdict
    assert first == "grpo, ppo and dpo have a higher score by the task than sft; kto has a lower one."
    assert fooled.startswith("kto pleases the reward model that it was trained against, but not the score by the task")
    own = cells(results, results["methods"][0]["method"])
    assert own["score by the task"].main == mean_text(results["methods"][0]["summary"]["score"])
    assert own["gain"].main == mean_text(results["methods"][0]["summary"]["score_gain"], sign=True)
    assert re.search(r"<span>score by the task [−\d]", page)  # beside the completions
    assert directory.picture_path("overoptimisation").exists()


def test_many_methods_with_long_names(tmp_path):
    methods = {f"a_rather_long_method_{i}": (i / 3, i / 2, float(i)) for i in range(9)}
    directory = fake_contest(tmp_path, methods=methods, seeds=1, prompts=8, pairwise=False)
    write_page(directory)
    styles = [tuple(map(str, style(m["colour"]).values())) for m in directory.results()["methods"]]
    assert len(set(styles)) == 9  # colours come again with other dashes


def test_figures_that_have_nothing_to_show(contest):
    results = json.loads(json.dumps(contest[1]))
    assert curves_figure(contest_view({**results, "curves": {}})) is None
    assert overoptimisation_figure({**results, "spread": {"proxy": None, "truth": None}}) is None
    assert (distance(4.0), distance(-0.1)) == (2.0, 0.0)
