"""docs/preferences.md is what the results say today; its tables of several seeds, by hand and by other means."""

import json
import re
import shutil
from pathlib import Path
from statistics import fmean

import pytest

from studies.gather import gather
from studies.page import STUDIES, main, render
from studies.results import read_study
from studies.tables import contest_lines, pooled_rate, rank_lines, reward_model_lines
from tests.studies.fake_pipeline import write_pipeline, write_reward_model
from whet.errors import UserError
from whet.evaluate.win_rates import outcome, tally
from whet.report.comparison.contest_view import contest_view
from whet.report.comparison.entries import table
from whet.runs.experiment_directories import ComparisonDirectory

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "docs" / "preferences.template.md"
PAGE = ROOT / "docs" / "preferences.md"
TEXT = PAGE.read_text("utf-8")


def cells(lines, start):
    """The cells behind the first one of the only row that begins with it."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    (found,) = [row for row in rows if row[0] == start]
    return found[1:]


def test_the_page_is_fresh(tmp_path):
    main([str(TEMPLATE), str(tmp_path / "page.md")])
    fresh = (tmp_path / "page.md").read_text("utf-8")
    assert fresh == TEXT, "docs/preferences.md is stale: renew it with `make docs`"


@pytest.mark.parametrize("study", [folder.parent.name for folder in sorted(STUDIES.glob("*/results"))])
def test_a_page_that_differs_from_a_file_is_stale(study, tmp_path):
    for folder in STUDIES.glob("*/results"):
        shutil.copytree(folder, tmp_path / folder.parent.name / "results", ignore=shutil.ignore_patterns("*.png"))
    template = TEMPLATE.read_text("utf-8")
    assert render(template, tmp_path) == TEXT
    path = next((tmp_path / study / "results").glob("seed-*/runs.json"))
    runs = json.loads(path.read_text())
    for run in runs.values():
        run["seconds_of_steps"] += 1000.0
    path.write_text(json.dumps(runs))
    assert render(template, tmp_path) != TEXT


def test_its_links_exist_and_its_tables_are_tables():
    for target in re.findall(r"\]\(([^)#]+)(?:#\w+)?\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    for block in re.findall(r"(?:^\|.*\|\n)+", TEXT, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block.splitlines()[0]


def test_a_template_must_mark_every_study_that_has_results(tmp_path):
    with pytest.raises(UserError, match="the template marks"):
        render(TEMPLATE.read_text("utf-8").replace("<!-- here: hh -->", ""), STUDIES)
    with pytest.raises(UserError, match="give the template and the page"):
        main([str(TEMPLATE)])


def test_one_seed_has_the_table_of_its_comparison(tmp_path):
    gather([write_pipeline(tmp_path / "one")], tmp_path / "results")
    study = read_study(tmp_path / "results")
    lines = list(contest_lines(study))
    assert lines[0] == table(contest_view(study.contests[0]))
    assert lines[-1] == (
        "Seed 0; 30 held-out prompts; 95 % intervals over prompts; x86_64, 2 threads, torch 2.13.0; "
        "20.5 s of steps and evaluations."  # five runs of 2 + 0.5 seconds, and 8 of collecting
    )


@pytest.fixture
def three(tmp_path):
    """A study of three seeds whose numbers were set by hand."""
    gather([write_pipeline(tmp_path / str(seed), seed=seed) for seed in range(3)], tmp_path / "results")
    for seed, (gold, wins, kl) in enumerate([(3.0, 0.9, 4.0), (3.3, 0.8, 5.5), (2.7, 0.7, 4.0)]):
        directory = ComparisonDirectory(tmp_path / "results" / f"seed-{seed}" / "comparison")
        results = directory.results()
        results["start"] |= {"gold": interval(-1.0, 0.5), "length": interval(40.0, 1.5)}
        for method in results["methods"]:
            values = method["seeds"][0]["summary"]
            shift = 0.0 if method["method"] == "ppo" else -4.0 * (seed > 0)
            values |= {"gold": interval(gold + shift, 0.15), "gold_gain": interval(gold + 1 + shift, 0.25)}
            values |= {"kl": interval(kl, 0.5), "length": interval(42.0 + seed, 1.5), "proxy": interval(2.0, 0.15)}
            values["wins"]["rate"] = interval(wins, 0.1)
        directory.write_results(results)
    return tmp_path / "results"


def interval(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def test_several_seeds_have_means_and_ends(three):
    lines = list(contest_lines(read_study(three)))
    assert cells(lines, "method") == [
        *("gold reward", "gain", "proxy reward", "wins, by the judge", "KL to sft", "tokens", "above sft")
    ]
    ppo = cells(lines, "ppo")
    assert ppo[:3] == ["3.00 (2.70 … 3.30)", "+4.00 (3.70 … 4.30)", "2.00 (2.00 … 2.00)"]
    # Wilson, 24 of 30: centre (0.8 + z²/60)/(1 + z²/30) = 0.766, half z/(1 + z²/30)·√(0.16/30 + z²/3600) = 0.139
    assert ppo[3] == "80 % [63 … 90]"
    assert ppo[4:] == ["4.50 (4.00 … 5.50)", "43.0 (42.0 … 44.0)", "3 of 3 seeds"]
    assert cells(lines, "dpo")[-1] == "1 of 3 seeds"  # −0.7 ± 0.15 and −1.3 ± 0.15 beside −1 ± 0.5
    assert cells(lines, "sft")[:4] == ["−1.00 (−1.00 … −1.00)", "–", cells(lines, "sft")[2], "–"]
    assert [line.split()[1] for line in lines if line.startswith("| ")][2:] == ["sft", "ppo", "dpo"]
    assert lines[-1].startswith("Seeds 0, 1 and 2; 30 held-out prompts; means over seeds, in round brackets")


def test_pooled_wins_are_those_of_all_comparisons_by_prompt(tmp_path):
    """The completions themselves, put together by prompt, have the same rate and the same interval."""
    prompts, outcomes, summaries = [], [], []
    for seed in range(3):
        directory = ComparisonDirectory(write_pipeline(tmp_path / str(seed), seed=seed) / "comparison")
        base = {(row["id"], row["sample"]): row["judge"] for row in directory.samples("start")}
        own = directory.samples("ppo-seed-0")
        found = [outcome(row["judge"] - seed, base[row["id"], row["sample"]]) for row in own]  # a worse one each time
        prompts += [row["id"] for row in own]
        outcomes += found
        summaries.append({"wins": {"rate": {"mean": fmean(found)}}})
    expected = tally(prompts, outcomes)["rate"]
    pooled = pooled_rate(summaries, 30)
    assert len({summary["wins"]["rate"]["mean"] for summary in summaries}) > 1
    assert (pooled.mean, pooled.low, pooled.high) == pytest.approx(
        (expected["mean"], expected["low"], expected["high"])
    )


def test_reward_models_are_shown_with_every_seed(three):
    path = three / "seed-1" / "runs.json"
    runs = json.loads(path.read_text())
    runs["stages/reward"]["analysis"]["accuracy"] = {"mean": 0.5, "low": 0.25, "high": 0.75}
    runs["stages/reward"]["after"]["eval/accuracy"] = 0.125  # of the last weights, which nobody uses
    path.write_text(json.dumps(runs))
    lines = list(rank_lines(read_study(three)))
    first = "75.0 % [30.1 … 95.4]"  # three of four pairs, Wilson
    assert cells(lines, "the reward model") == [first, "50.0 % [25.0 … 75.0]", first, "62.5 %", "2 s"]
    assert cells(lines, "the judge")[:3] == [first] * 3


def test_a_model_that_learned_from_no_pairs_or_came_from_elsewhere_is_left_out(three):
    path = three / "seed-1" / "runs.json"
    runs = json.loads(path.read_text())
    del runs["stages/reward"]["analysis"]["pairs"]
    path.write_text(json.dumps(runs))
    lines = list(rank_lines(read_study(three)))
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:] == ["the judge"]
    path.write_text(json.dumps({name: run for name, run in runs.items() if name != "stages/judge"}))
    assert list(rank_lines(read_study(three))) == []


def test_single_reward_models_have_a_row_for_each_seed(tmp_path):
    gather([write_reward_model(tmp_path / f"2026010{seed}-000000-mine", seed=seed) for seed in (1, 2)], tmp_path / "to")
    lines = list(reward_model_lines(read_study(tmp_path / "to")))
    # Three of four pairs: Wilson's 0.301 … 0.954; the longer side is the chosen one in two, and once they are equal.
    held_out = "75.0 % [30.1 … 95.4] of 4 pairs (longer: 62.5 %)"
    assert [line for line in lines if line.startswith("| mine")] == [
        f"| mine  | {seed}    | {held_out} | 0.0 min                 |" for seed in (1, 2)
    ]


def test_seeds_that_were_compared_differently_are_refused(three):
    directory = ComparisonDirectory(three / "seed-2" / "comparison")
    results = directory.results()
    directory.write_results({**results, "prompts": 31})
    with pytest.raises(UserError, match="prompts is 30 with seed 0 and 31 with seed 2; gather runs of the same recipe"):
        read_study(three)
    directory.write_results({**results, "settings": {**results["settings"], "temperature": 0.5}})
    with pytest.raises(UserError, match="seeds 0 and 2 were compared differently"):
        read_study(three)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no results \(seed-N\); fill it with studies/gather.py"):
        read_study(tmp_path)
    (tmp_path / "seed-0").mkdir()
    with pytest.raises(UserError, match=r"has no runs.json"):
        read_study(tmp_path)
