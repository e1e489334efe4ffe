"""Table, numbers and curves of a comparison, from run directories whose results are known by heart."""

import json
import math

import pytest

from tests.report.fake_sweep import MACHINE, comparison, write_run
from whet.errors import RunFailed
from whet.report.comparison.comparison_curves import band, curves_figure, mean_over_seeds
from whet.report.comparison.comparison_page import write_page
from whet.report.comparison.entries import curves_of, table
from whet.report.comparison.sweep_results import sweep_results, sweep_view
from whet.runs.directory import RunDirectory
from whet.runs.series import Series

CURVES = {
    "slow": [[0.0, 0.2, 0.4], [0.0, 0.3, 0.5], [0.0, 0.1, 0.3]],
    "fast": [[0.0, 0.8, 0.9], [0.0, 0.7, 0.8], [0.0, 0.5, 0.7]],
}


def setup(*methods, seeds=(0, 1, 2), target=0.8):
    overrides = {method: (f"algorithm={method}", "steps=20") for method in methods}
    return {"recipe": "toy", "command": "whet compare …", "overrides": overrides, "seeds": seeds, "target": target}


def write(directory, given, failures):
    """The files of a sweep; returns its table."""
    directory.write_results(sweep_results(directory, failures, **given))
    return table(write_page(directory))


@pytest.fixture
def directory(tmp_path):
    return comparison(tmp_path / "c", CURVES)


def test_numbers_by_hand(directory):
    fast, slow = sweep_results(directory, {}, **setup("slow", "fast"))["methods"]
    assert (fast["method"], slow["method"]) == ("fast", "slow")  # the best first
    assert fast["value"]["mean"] == pytest.approx(0.8)
    assert fast["value"]["low"] == pytest.approx(0.8 - 4.302653 * 0.1 / math.sqrt(3), rel=1e-6)
    assert fast["value"]["high"] == 1.0  # 1.048 is no share
    assert fast["seconds"] == pytest.approx(10.0)  # 20 steps of half a second; the time of evaluations is not in it
    assert fast["seeds"][0]["examples"] == 200  # greedy answers only, not the samples behind pass@k
    assert fast["steps_to_target"] == {"median": 20, "first": 10, "last": 20, "reached": 2, "of": 3}
    never = {"median": None, "first": None, "last": None, "reached": 0, "of": 3}
    assert slow["steps_to_target"] == never


@pytest.mark.parametrize(
    ("target", "fast", "slow"),
    [(0.3, 10, 20), (0.5, 10, None), (0.6, 10, None)],  # 0.5: one seed of three, so the middle one never got there
)
def test_the_median_counts_seeds_that_never_arrive(directory, target, fast, slow):
    methods = sweep_results(directory, {}, **setup("slow", "fast", target=target))["methods"]
    assert [method["steps_to_target"]["median"] for method in methods] == [fast, slow]


def test_the_files(directory):
    written = write(directory, setup("slow", "fast"), {})
    text = directory.table_path.read_text()
    assert written in text
    assert "```sh\nwhet compare …\n```" in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines()]
    assert rows[0][:4] == ["method", "held-out accuracy", "95 % interval", "each seed"]
    assert rows[2][:4] == ["fast", "80.0 %", "55.2 … 100.0 %", "90.0, 80.0, 70.0"]
    assert rows[2][4:] == ["best mean", "20 (10 to 20), 2 of 3 seeds", "10"]
    assert rows[3][5] == "never, 0 of 3 seeds"
    assert len({len(line) for line in written.splitlines()}) == 1  # columns align
    saved = json.loads(directory.results_path.read_text())
    assert saved["overrides"]["fast"] == ["algorithm=fast", "steps=20"]
    assert saved["machines"] == [MACHINE]
    assert saved["versions"] == [{"whet": "0.1.0"}]
    assert saved["notes"] == []
    first = saved["methods"][0]
    assert first["seeds"][1] == {
        "seed": 1,
        "run": "fast/seed-1",
        "value": 0.8,
        "error": None,
        "examples": 200,
        "reached_target_at": 20,
        "seconds": pytest.approx(10.0),
        "failure": None,
    }
    assert saved["curves"]["fast"]["1"]["eval/accuracy"] == {"steps": [0, 10, 20], "values": [0.0, 0.7, 0.8]}
    assert saved["verdict"] in text
    assert [method["colour"] for method in saved["methods"]] == [1, 0]  # by the order in which they were named
    assert saved["methods"][1]["behind_best"]["mean"] == pytest.approx(0.4)
    assert directory.picture_path("curves").read_bytes().startswith(b"\x89PNG")
    page = directory.page_path.read_text()
    assert saved["verdict"] in page
    for cell in rows[2]:
        assert f">{cell}<" in page  # the page shows the same table
    assert "whet compare …" in page


def test_rewards_are_means_and_no_shares(tmp_path):
    """Prompts alone: no accuracy exists, the reward ranks, and there is no target unless it is given."""
    curves = {"low": [[-4.0, -3.0], [-4.0, -2.0]], "high": [[-4.0, 11.0], [-4.0, 14.0]]}
    directory = comparison(tmp_path / "c", curves, metric="eval/reward")
    written = write(directory, setup("low", "high", seeds=(0, 1), target=None), {})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines()]
    assert rows[0] == ["method", "held-out reward", "95 % interval", "each seed", "behind the best", "seconds"]
    half = 12.706205 * 1.5  # t(1) times the standard error of 11 and 14
    assert rows[2] == [
        "high",
        "12",
        f"{12.5 - half:.0f} … {12.5 + half:.0f}".replace("-", "−"),
        "11, 14",
        "best mean",
        "5",
    ]
    saved = json.loads(directory.results_path.read_text())
    assert (saved["metric"], saved["target"]) == ("eval/reward", None)
    high, low = saved["methods"]
    assert (high["value"]["low"], high["value"]["high"]) == pytest.approx((12.5 - half, 12.5 + half), rel=1e-6)
    assert [seed["value"] for seed in low["seeds"]] == [-3.0, -2.0]
    assert high["seeds"][0]["error"] == pytest.approx(0.1, rel=1e-5)
    assert high["steps_to_target"]["reached"] == 0
    gap = math.hypot(12.706205 * 1.0, 1.959964 * 0.1 * math.sqrt(2))  # differences 14 and 16
    assert (low["behind_best"]["low"], low["behind_best"]["worse"]) == (pytest.approx(15 - gap, rel=1e-6), True)
    text = directory.table_path.read_text() + directory.page_path.read_text()
    assert "high has the highest mean held-out reward, 12.5; significantly worse than the best is low" in text
    for word in ("accuracy", "in points", "cut to 0", "steps to", "12.5 %"):
        assert word not in text
    reached = sweep_results(directory, {}, **setup("high", seeds=(0, 1), target=12))["methods"][0]["steps_to_target"]
    assert reached == {"median": None, "first": 10, "last": 10, "reached": 1, "of": 2}


def test_of_losses_the_lowest_is_best(tmp_path):
    curves = {"high": [[3.0, 2.0], [3.0, 2.1]], "low": [[3.0, 1.0], [3.0, 1.1]]}
    directory = comparison(tmp_path / "c", curves, metric="eval/loss")
    written = write(directory, setup("high", "low", seeds=(0, 1), target=1.05), {})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines()]
    assert [row[0] for row in rows[2:]] == ["low", "high"]
    assert rows[0][5] == "steps to 1.05"
    assert rows[2][5] == "10, 1 of 2 seeds"
    assert rows[3][4].endswith("worse")
    saved = json.loads(directory.results_path.read_text())
    assert saved["methods"][1]["behind_best"]["mean"] == pytest.approx(1.0)
    text = directory.table_path.read_text()
    assert "low has the lowest mean held-out loss" in text
    assert "loss of this method minus the first's, paired by seed" in text
    assert "do not include the error of finitely many" in text


def test_accuracies_count_the_examples_with_an_answer(directory, monkeypatch):
    """Half of the rows have no reference answer: the error of the accuracy is that of the other half."""
    real = RunDirectory.answers
    half = [{"id": str(i), "correct": None, "sample": 0} for i in range(200)]
    monkeypatch.setattr(RunDirectory, "answers", lambda run, step: [*real(run, step), *half])
    assert sweep_results(directory, {}, **setup("fast"))["methods"][0]["seeds"][0]["examples"] == 200


def test_runs_without_a_common_metric_are_refused(tmp_path):
    directory = comparison(tmp_path / "c", {"a": [[0.1, 0.2]]})
    write_run(directory.run_path("b", 0), [1.0, 2.0], metric="eval/reward")
    with pytest.raises(RunFailed, match="no held-out metric was measured in all of these runs"):
        sweep_results(directory, {}, **setup("a", "b", seeds=(0,)))


def test_failed_and_missing_runs_are_shown(tmp_path):
    directory = comparison(tmp_path / "c", {"a": [[0.0, 0.5], []], "b": [[0.0, 0.4], [0.0, 0.6]]})
    write_run(directory.run_path("a", 2), [0.0, 0.9, 0.9], finished=False)
    sentence = "step 12: the loss is not finite"
    written = write(directory, setup("a", "b", "c"), {("a", 2): sentence})
    text = directory.table_path.read_text()
    assert f"- a, seed 2 did not finish: {sentence}" in text
    assert "- c, seed 0 did not finish: not finished" in text
    rows = {line.split("|")[1].strip(): line for line in written.splitlines()}
    assert "| 50.0, failed, failed " in rows["a"]  # the run that failed at 90 % does not count
    assert "none: one seed" in rows["a"]
    assert "failed, failed, failed" in rows["c"]
    assert list(rows)[2:] == ["a", "b", "c"]  # the mean of what finished, methods without any last
    saved = json.loads(directory.results_path.read_text())
    by_name = {entry["method"]: entry for entry in saved["methods"]}
    assert by_name["a"]["value"] == {"mean": 0.5, "low": None, "high": None}
    assert by_name["a"]["seeds"][2]["failure"] == sentence
    assert by_name["c"]["value"] is None


def test_other_machines_and_numbers_of_examples_are_noted(tmp_path):
    directory = comparison(tmp_path / "c", {"a": [[0.0, 0.5]]})
    write_run(directory.run_path("b", 0), [0.0, 0.5], machine={"device": "H200"}, examples=100)
    write(directory, setup("a", "b", seeds=(0,)), {})
    notes = json.loads(directory.results_path.read_text())["notes"]
    assert notes == [
        "the runs were made on different machines: their seconds do not compare",
        "the runs were evaluated on different numbers of held-out examples",
    ]


def test_the_band_is_what_it_says(directory):
    curves = curves_of(sweep_results(directory, {}, **setup("fast")), "fast")["eval/accuracy"]
    mean = mean_over_seeds(curves, 100)
    assert (mean.steps, mean.values) == ((0, 10, 20), pytest.approx((0, 200 / 3, 80)))
    words, low, high = band(curves, 100)
    assert low[2] == pytest.approx(55.159, abs=1e-3)
    assert high == pytest.approx((0, 100, 100))  # cut where a share ends
    assert words == "band: 95 % interval, 3 seeds"
    words, low, high = band([curves[0], curves[2]], 100)
    assert (low, high) == (pytest.approx((0, 50, 70)), pytest.approx((0, 80, 90)))
    assert words == "band: lowest to highest, 2 seeds"
    assert band(curves[:1], 100) == ("1 seed, no band", (), ())


def test_a_mean_is_taken_at_the_steps_that_all_seeds_have():
    both = [Series((0, 10, 20), (0.0, 0.2, 0.4)), Series((0, 20, 30), (0.2, 0.8, 1.0))]
    assert mean_over_seeds(both) == Series((0, 20), (0.1, pytest.approx(0.6)))


@pytest.mark.parametrize("count", [1, 5, 16])
def test_every_method_gets_a_place_in_the_figure(tmp_path, count):
    names = [f"method_{i}" for i in range(count)]
    directory = comparison(tmp_path / "c", {name: [[0.0, 1.0]] for name in names}, examples=10)
    width, height = _size(curves_figure(sweep_view(sweep_results(directory, {}, **setup(*names, seeds=(0,))))))
    assert width == 1740
    legend = {1: 1, 5: 1, 16: 2}[count]  # rows
    # Accuracy and reward beside each other, below them four methods in a row.
    assert height == pytest.approx(150 * (1.55 + 0.23 * (legend - 1) + 2.35 + 2.2 * math.ceil(count / 4)), abs=1)


def test_nothing_finished_still_draws(tmp_path):
    directory = comparison(tmp_path / "c", {"a": [[]]})
    write(directory, setup("a", seeds=(0,)), {})
    assert "No run finished" in directory.table_path.read_text()
    assert "No run finished" in directory.page_path.read_text()
    assert not directory.picture_path("curves").exists()


def _size(picture):
    """Width and height of a PNG, from its header."""
    assert picture.startswith(b"\x89PNG")
    return int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")
