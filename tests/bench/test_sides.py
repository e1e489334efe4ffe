"""Every measurement really runs, here in this process, on shapes that take seconds."""

import torch

from bench import passes, peer_transformers, rollouts, steps
from bench.gpu import QUICK, rollout_figure, step_figure
from bench.job import Job, group_of
from bench.shapes import SHAPES
from bench.side import peer


def job(side, model, workload, runs=2, **more):
    words = SHAPES["tiny"].config.vocab_size
    return Job(side=side, model=str(model), device="cpu", workload=workload, runs=runs, words=words, **more)


def test_rollouts_of_mixed_lengths(tiny_model):
    answer = rollouts.measure(job("whet rollout", tiny_model, QUICK["mixed"]))
    expected = sum(new for _, new in QUICK["mixed"].requests())
    assert [run["tokens"] for run in answer["runs"]] == [expected, expected]
    # Each token is a space and five letters, but for id 0, which is <unk>.
    assert all(5 * expected <= run["characters"] <= 6 * expected for run in answer["runs"])
    assert all(0 < run["text_seconds"] < run["seconds"] for run in answer["runs"])


def test_transformers_samples_the_same_workload(tiny_model):
    answer = peer_transformers.measure(job("transformers rollout", tiny_model, QUICK["group"]))
    assert [run["tokens"] for run in answer["runs"]] == [3 * 2 * 12] * 2


def test_a_whole_step_is_its_stages(tiny_model):
    answer = steps.measure(job("whet step", tiny_model, QUICK["step"], runs=3, overrides=("optimizer.lr=0.001",)))
    assert len(answer["runs"]) == 3
    for run in answer["runs"]:
        assert set(run["breakdown"]) == {"rollout", "score", "annotate", "update"}
        assert sum(run["breakdown"].values()) <= run["seconds"]
        assert 0 <= run["mismatch"] < 1e-5
    assert answer["start_to_first_step_seconds"] > answer["runs"][0]["seconds"]


def test_passes_are_taken_apart(tiny_model):
    answer = passes.measure(job("whet passes", tiny_model, QUICK["step"]))
    for run in answer["runs"]:
        assert set(run["breakdown"]) == {"forward", "backward", "optimizer"}
        assert run["seconds"] == sum(run["breakdown"].values())


def test_random_sequences_share_their_groups_prompt():
    sequences = passes.random_sequences(job("whet passes", "", group_of(2, 3, 4, 5)), 100, torch.device("cpu"))
    assert sequences.tokens.shape == (6, 9)
    assert (sequences.tokens[:3, :4] == sequences.tokens[0, :4]).all()
    assert not (sequences.tokens[3, :4] == sequences.tokens[0, :4]).all()
    assert sequences.mask.tolist() == [[False] * 4 + [True] * 5] * 6


def test_figures_by_hand():
    run = {"tokens": 1000, "seconds": 4.0}
    assert rollout_figure(run, 1.0, steps=500) == {
        "tokens_per_second": 250.0,
        "milliseconds_per_step": 8.0,
        "share_of_roofline": 0.25,
    }
    runs = [
        {"seconds": seconds, "breakdown": {"update": update}, "peak_bytes": peak}
        for seconds, update, peak in ((9.0, 5.0, 7), (3.0, 2.0, 5), (5.0, 4.0, 6))
    ]
    figure = step_figure(runs, 790e12 * 1.5)
    assert figure == {
        "first_seconds": 9.0,
        "seconds": 4.0,
        "peak_bytes": 7,
        "stages": {"update": 3.0},
        "training_share": 0.5,
    }


def test_what_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.side.version", lambda package: "not installed")
    assert peer(job("vllm rollout", "", QUICK["mixed"]), tmp_path) == {"missing": "vllm not installed"}
