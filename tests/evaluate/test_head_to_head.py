"""Scored completions to a table, on numbers small enough to check by hand."""

import math
from dataclasses import asdict

import pytest

from whet.evaluate.head_to_head import Entrant, ScoredCompletion, contest_results, summarise
from whet.evaluate.pairwise_judge import JudgeVerdicts
from whet.evaluate.statistics import mean_interval


def scored(
    id,
    sample=0,
    *,
    gold=0.0,
    score=None,
    proxy=0.0,
    judge=0.0,
    logprob=-3.0,
    start=-3.0,
    k3=0.0,
    tokens=4,
    finish="stop",
):
    return ScoredCompletion(
        id=id,
        prompt=f"{id}?",
        sample=sample,
        text=f"{gold}",
        tokens=tokens,
        finish=finish,
        correct=bool(gold and gold > 0),
        gold=gold,
        score=score,
        proxy=proxy,
        judge=judge,
        logprob=logprob,
        logprob_start=start,
        k3=k3,
    )


START = [scored("a", gold=0.0, judge=1.0), scored("b", gold=2.0, judge=1.0), scored("c", gold=1.0, judge=1.0)]
BETTER = [
    scored("a", gold=1.0, judge=2.0, logprob=-1.0, start=-3.0, k3=0.3, tokens=2),
    scored("b", gold=3.0, judge=1.0, logprob=-2.0, start=-3.0, k3=0.6, tokens=4),
    scored("c", gold=3.0, judge=0.0, logprob=-4.0, start=-4.0, k3=0.0, tokens=6, finish="length"),
]


def results(rows, start=START, **options):
    usual = {"samples": 1, "tie_margin": 0.0, "best_of": (), "verdicts": {}, "failures": {}}
    return contest_results(start, rows, **{**usual, **options})


def test_the_numbers_of_a_method():
    summary = summarise(BETTER, START, tie_margin=0.0)
    assert summary["gold"] == asdict(mean_interval([1.0, 3.0, 3.0]))
    assert summary["gold_gain"] == asdict(mean_interval([1.0, 1.0, 2.0]))
    assert (summary["wins"]["wins"], summary["wins"]["ties"], summary["wins"]["losses"]) == (1, 1, 1)
    assert summary["wins"]["rate"]["mean"] == 0.5
    assert summary["kl"] == asdict(mean_interval([2.0, 1.0, 0.0]))  # log π − log π_start of each completion
    assert summary["kl_token"] == pytest.approx((2 * 0.3 + 4 * 0.6 + 6 * 0.0) / 12)  # every token counts once
    assert summary["length"]["mean"] == 4.0
    assert summary["cut_off"] == pytest.approx(1 / 3)
    assert summary["correct"]["mean"] == 1.0
    assert summary["correct"]["low"] < 1.0  # three right answers are no certainty


def test_the_margin_makes_ties():
    assert summarise(BETTER, START, tie_margin=1.0)["wins"]["ties"] == 3


def test_the_start_model_against_itself_is_a_tie_at_no_distance():
    summary = summarise(START, START, tie_margin=0.0)
    assert summary["wins"]["ties"] == 3
    assert summary["gold_gain"]["mean"] == summary["kl"]["mean"] == summary["kl_token"] == 0.0


def test_only_the_same_samples_are_compared():
    more = [*START, *(scored(row.id, 1, gold=50.0, judge=99.0) for row in START)]
    assert summarise(BETTER, more, tie_margin=0.0) == summarise(BETTER, START, tie_margin=0.0)
    with pytest.raises(ValueError, match="lacks a sample to compare with"):
        summarise([*BETTER, scored("d")], START, tie_margin=0.0)


def test_what_nobody_measured_is_absent():
    start = [scored(id, gold=None, proxy=None, judge=None) for id in "ab"]
    summary = summarise(start, start, tie_margin=0.0)
    assert (summary["gold"], summary["gold_gain"], summary["proxy"], summary["wins"]) == (None, None, None, None)
    found = results({Entrant(method="m", seed=0): start}, start)
    assert (found["truth"], found["best_of_n"]) == (None, [])


def test_seeds_are_pooled_by_prompt_and_the_best_method_comes_first():
    worse = [scored(row.id, gold=-1.0, judge=0.0) for row in START]
    rows = {
        Entrant(method="worse", seed=0): worse,
        Entrant(method="mixed", seed=0): worse,
        Entrant(method="mixed", seed=1): BETTER,
        Entrant(method="best", seed=0): BETTER,
        Entrant(method="best", seed=0, step=10): worse,
    }
    found = results(rows, failures={("best", 1): "it broke", ("lost", 0): "so did this"})
    assert [m["method"] for m in found["methods"]] == ["best", "mixed", "worse", "lost"]
    assert [m["colour"] for m in found["methods"]] == [2, 1, 0, 3]  # by the order in which they were given
    best, mixed, _, lost = found["methods"]
    assert mixed["summary"]["gold"]["mean"] == pytest.approx((0 + 1 + 1) / 3)  # (−1+1)/2, (−1+3)/2, (−1+3)/2
    assert best["summary"]["gold"]["mean"] == pytest.approx(7 / 3)  # the checkpoint on the way is not in it
    assert [(seed["seed"], seed["failure"]) for seed in best["seeds"]] == [(0, None), (1, "it broke")]
    assert best["seeds"][0]["samples"] == "best-seed-0"
    assert lost["summary"] is None
    way = [(p["method"], p["step"], p["truth"]["mean"]) for p in found["checkpoints"]]
    assert ("best", 10, -1.0) in way
    assert len(way) == 5
    path = {(p["method"], p["step"]): p["truth"]["mean"] for p in found["pooled_checkpoints"]}
    assert path["mixed", None] == pytest.approx(2 / 3)


def test_best_of_n_uses_all_samples_of_the_start_model():
    start = [
        scored(id, sample, proxy=float(sample), gold=-float(sample), judge=0.0) for id in "ab" for sample in range(4)
    ]
    rows = {Entrant(method="m", seed=0): [scored("a"), scored("b")]}
    found = results(rows, start, best_of=(1, 2, 4, 8))
    assert [point["n"] for point in found["best_of_n"]] == [1, 2, 4]  # there are four samples, so there is no 8
    assert [point["truth"]["mean"] for point in found["best_of_n"]] == pytest.approx(
        [-1.5, -(3 * 3 + 2 * 2 + 1) / 6, -3]
    )
    assert found["best_of_n"][1]["kl"] == pytest.approx(math.log(2) - 0.5)
    assert found["spread"]["proxy"] == {"mean": 1.5, "deviation": pytest.approx(math.sqrt(1.25))}
    assert found["start"]["gold"]["mean"] == 0.0  # beside the methods, only the samples that they have too


def test_best_of_n_shows_over_optimisation():
    """The proxy likes the last sample best, which is worthless: the true value turns down."""
    gold = [0.0, 1.0, 2.0, -9.0]
    start = [scored(id, sample, proxy=sample + 1.0, gold=gold[sample]) for id in "abcde" for sample in range(4)]
    one, two, four = results({Entrant(method="m", seed=0): start[::4]}, start, best_of=(1, 2, 4))["best_of_n"]
    assert one["truth"]["mean"] == pytest.approx(-1.5)
    assert two["truth"]["mean"] == pytest.approx((1 + 2 + 2 - 9 - 9 - 9) / 6)  # the better by the proxy of six pairs
    assert one["proxy"]["mean"] < two["proxy"]["mean"] < four["proxy"]["mean"] == 4.0
    assert four["truth"]["mean"] == -9.0
    assert (one["kl"], four["kl"]) == (0.0, pytest.approx(math.log(4) - 3 / 4))


def test_without_gold_the_judge_is_the_truth():
    start = [scored(id, gold=None, judge=1.0) for id in "ab"]
    own = [scored(id, gold=None, judge=3.0) for id in "ab"]
    found = results({Entrant(method="m", seed=0): own}, start)
    assert found["truth"] == "judge"
    assert found["pooled_checkpoints"][0]["truth"]["mean"] == 3.0


def test_the_score_of_the_task_is_a_truth_under_its_own_name():
    start = [scored(id, gold=None, score=float(id == "a"), judge=1.0, proxy=0.0) for id in "abc"]
    own = [scored(id, gold=None, score=1.0, judge=0.0, proxy=0.0) for id in "abc"]
    found = results({Entrant(method="m", seed=0): own}, start, best_of=(1,))
    assert found["truth"] == "score"
    summary = found["methods"][0]["summary"]
    assert (summary["gold"], summary["gold_gain"]) == (None, None)
    assert summary["score"]["mean"] == 1.0
    assert summary["score_gain"]["mean"] == pytest.approx(2 / 3)
    assert found["start"]["score"]["mean"] == found["best_of_n"][0]["truth"]["mean"] == pytest.approx(1 / 3)
    assert found["pooled_checkpoints"][0]["truth"]["mean"] == 1.0


def test_verdicts_of_a_pairwise_judge_are_counted_by_prompt():
    verdicts = JudgeVerdicts(outcomes=(1.0, 1.0, 0.5), contradictions=1, unreadable=0)
    found = results({Entrant(method="m", seed=0): BETTER}, verdicts={"m": verdicts})
    said = found["methods"][0]["pairwise"]
    assert said["rate"]["mean"] == pytest.approx(2.5 / 3)
    assert (said["wins"], said["ties"], said["losses"], said["contradictions"]) == (2, 1, 0, 1)
