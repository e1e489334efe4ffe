"""In-flight updates: tokens of newer weights behind those of older ones, in whole runs and by hand."""

import os
import shutil
import signal
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.rollout_pool.here import AHEAD, content, in_threads, recipe, same, train, unreliable
from whet.cli.progress import SilentProgress
from whet.errors import RunFailed
from whet.records import Completion, Prompt, Sampling
from whet.runs.directory import RunDirectory
from whet.train.online import asynchronous
from whet.train.rollout_pool import hand_off as hand_off_room
from whet.train.rollout_pool.orders import Order
from whet.train.rollout_pool.schedule import Part
from whet.train.rollout_pool.segments import completed, following, sample_segment, segments_of, usual_segment
from whet.train.start import resume_run

AHEAD_3 = {"staleness": 3, "in_flight_updates": True, "segment_tokens": 2, "workers": 2}
TEMPERATURE = 0.9


@pytest.fixture(scope="module")
def kept(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and all weights that were handed over in it."""
    where = tmp_path_factory.mktemp("in-flight")
    (where / "weights").mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        real = hand_off_room.hand_off

        def keeping(*given: Any) -> Any:
            handed = real(*given)
            shutil.copy(handed.file, where / "weights")
            return handed

        monkeypatch.setattr(hand_off_room, "hand_off", keeping)
        in_threads(monkeypatch)
        return train(recipe(model, AHEAD_3, **AHEAD), where / "run"), where / "weights"


def test_every_token_has_the_log_prob_of_the_weights_that_sampled_it(kept: tuple[Path, Path], model: Path) -> None:
    """Read anew with the weights of each version by transformers, one sequence at a time."""
    run, weights = kept
    policies: dict[int, Any] = {}
    lags: Counter[int] = Counter()
    for step in (4, 6):
        for row in RunDirectory.open(run, is_writer=False).rollouts(step):
            first = row["mask"].index(True)
            assert row["version"] == max(0, step - 1 - 3)
            assert row["versions"] == [row["version"] + place // 2 for place in range(len(row["tokens"]) - first)]
            lags.update(step - 1 - version for version in row["versions"])
            for version in set(row["versions"]):
                if version not in policies:
                    policies[version] = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
                    handed = load_file(weights / f"weights-{version:06d}.safetensors")
                    assert not policies[version].load_state_dict(handed, strict=False).unexpected_keys
                tokens = torch.tensor([row["tokens"]])
                with torch.no_grad():
                    logits = policies[version](tokens).logits[0].double() / TEMPERATURE
                found = logits[first - 1 : -1].log_softmax(-1).gather(-1, tokens[0, first:, None])[:, 0].tolist()
                for place, (one, used) in enumerate(zip(found, row["versions"], strict=True)):
                    if used == version:
                        assert list(compress(row["logprobs"], row["mask"]))[place] == pytest.approx(one, abs=1e-5)
    assert set(lags) == {1, 2, 3}
    assert len(policies) == 5


def test_the_metrics_count_tokens(kept: tuple[Path, Path]) -> None:
    run = RunDirectory.open(kept[0], is_writer=False)
    metrics = {row["step"]: row for row in run.metrics()}
    for step in (2, 4, 6):
        ages = [step - 1 - version for row in run.rollouts(step) for version in row["versions"]]
        row = metrics[step]
        assert row["staleness/mean"] == pytest.approx(sum(ages) / len(ages))
        assert row["staleness/max"] == max(ages)
        assert [row[f"staleness/share/{age}"] for age in range(4)] == [ages.count(age) / len(ages) for age in range(4)]
    assert metrics[6]["staleness/share/0"] == 0  # the trainer never waits for weights of its own step
    assert metrics[1]["mismatch/max"] < 1e-4 < metrics[7]["mismatch/max"]


@pytest.mark.parametrize("workers", [1, 4])
def test_neither_timing_nor_losses_change_a_byte(
    workers: int, kept: tuple[Path, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = unreliable(workers, 0.3)
    in_threads(monkeypatch, losses)
    again = train(recipe(model, {**AHEAD_3, "workers": workers}, **AHEAD), tmp_path / "again")
    assert len(losses.lost) >= 2  # type: ignore[attr-defined]
    same(kept[0], again)


@pytest.mark.parametrize("after", [2, 4, 6])
def test_a_run_goes_on_in_the_middle_of_completions(
    after: int, kept: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    copy = Path(shutil.copytree(kept[0], tmp_path / "copy"))
    (copy / "final_results.json").unlink()
    for path in copy.glob("checkpoints/step-*"):
        if int(path.name[5:]) > after:
            shutil.rmtree(path)
    resume_run(copy, ["asynchronous.workers=1"], lambda *_: SilentProgress())
    same(kept[0], copy)


def test_a_checkpoint_holds_the_segments_whose_weights_there_were(kept: tuple[Path, Path]) -> None:
    tensors = load_file(kept[0] / "checkpoints/step-000004/rollouts.safetensors")
    found = {name.rpartition(".")[0]: int(tensors[name]) for name in tensors if name.endswith("version")}
    # After step 4, whose weights, version 4, nobody has: draw 5 is of version 1, draw 6 of 2, draw 7 of 3.
    assert found == {
        **{f"5.0.{segment}": 1 + segment for segment in range(3)},
        **{f"6.0.{segment}": 2 + segment for segment in range(2)},
        "7.0.0": 3,
    }


def test_a_signal_while_rollouts_are_waited_for_loses_nothing(
    kept: tuple[Path, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bool] = []

    def interrupted(_: Any, order: Any) -> None:
        if (order.part.draw, order.segment) == (6, 1) and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    in_threads(monkeypatch, interrupted)
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(recipe(model, AHEAD_3, **AHEAD), path)
    assert sent
    resume_run(path, [], lambda *_: SilentProgress())
    mine, theirs = content(kept[0]), content(path)
    assert [name for name in mine if mine[name] != theirs[name]] == []


def in_parts(model: Path, algorithm: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run in two parts, which is the same with one worker and with five that are lost now and then."""
    rollout = {"prompts": 4, "group": 6, "max_tokens": 6, "max_resamples": 1}
    changes = {**recipe(model, algorithm=algorithm, rollout=rollout, update={}), "steps": 4}
    runs = []
    for workers, losses in ((1, unreliable(0, 0.0)), (5, unreliable(7, 0.3))):
        in_threads(monkeypatch, losses)
        ahead = {**AHEAD_3, "staleness": 2, "parts": 2, "workers": workers}
        runs.append(train({**changes, "asynchronous": ahead}, tmp_path / str(workers)))
    same(*runs)
    return RunDirectory.open(runs[0], is_writer=False)


def test_draws_that_are_needed_early_take_the_weights_of_their_step(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dynamic sampling consumes tickets before all their weights exist."""
    run = in_parts(model, {"preset": "dapo"}, tmp_path, monkeypatch)
    rows = [row for step in (2, 4) for row in run.rollouts(step)]
    assert {row["versions"][-1] - row["versions"][0] for row in rows if len(row["versions"]) == 6} == {0, 1}
    metrics = [row for row in run.metrics() if row["step"]]
    assert {row["staleness/max"] for row in metrics} <= {0.0, 1.0, 2.0}
    assert max(row["groups/drawn"] for row in metrics) > 4


def test_greedy_completions_go_on_greedily(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = in_parts(model, {"preset": "remax", "importance_correction": "token_truncate"}, tmp_path, monkeypatch)
    assert [row["staleness/share/2"] > 0 for row in run.metrics() if row["step"]] == [False, False, True, True]


def test_tokens_of_other_weights_than_asked_for_end_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asynchronous.completed

    def older(segments: Any, *given: Any) -> Any:
        return real([{**segment, "version": segment["version"] - 1} for segment in segments], *given)

    monkeypatch.setattr(asynchronous, "completed", older)
    in_threads(monkeypatch)
    with pytest.raises(RunFailed, match=r"draw 4 has tokens of weights that are 4 steps old, and .*staleness is 3"):
        train(recipe(model, AHEAD_3, **AHEAD), tmp_path / "run")


PROMPTS = (Prompt(tokens=(1, 2), stream=(5,)), Prompt(tokens=(3,), stream=(6,)))
ORDER = Order(
    part=Part(1),
    version=7,
    prompts=PROMPTS,
    sampling=Sampling(max_tokens=5, min_tokens=3),
    group=1,
    greedy=True,
    segments=3,
    segment_tokens=2,
)


class Asked:
    """An engine that continues every prompt with as many 9s as are allowed, and stops the first completion at 4."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Sampling, int]] = []

    def generate(self, prompts: Any, sampling: Sampling, *, count: int = 1, on_group: Any = None) -> Any:
        self.calls.append((list(prompts), sampling, count))

        def one(prompt: Prompt) -> Completion:
            is_first = prompt.tokens[:2] == (1, 2) and sampling.temperature > 0
            tokens = (4,) if is_first and len(prompt.tokens) > 2 else (9,) * sampling.max_tokens
            finish: Any = "stop" if tokens == (4,) else "length"
            return Completion(tokens=tokens, logprobs=(-0.5,) * len(tokens), text="", finish=finish)

        return [[one(prompt) for _ in range(count)] for prompt in prompts]


class Spelled:
    def decode_many(self, rows: Any) -> list[str]:
        return ["".join(map(str, row)) for row in rows]


def test_segments_by_hand() -> None:
    engine: Any = Asked()
    order: Order | None = ORDER
    segments = []
    while order is not None:
        segments.append(sample_segment(engine, order))
        order = following(order, segments[-1], context=100)
    assert [segment["lengths"].tolist() for segment in segments] == [[2, 2, 2, 2], [1, 2, 2, 2], [0, 1, 1, 1]]
    limits = [(sampling.max_tokens, sampling.min_tokens, sampling.temperature) for _, sampling, _ in engine.calls]
    assert limits == [(2, 3, 1.0), (2, 3, 0.0), (2, 1, 1.0), (2, 1, 0.0), (1, 0, 1.0), (1, 0, 0.0)]
    second, greedy = engine.calls[2][0], engine.calls[3][0]
    assert second[0] == Prompt(tokens=(1, 2, 9, 9), stream=(5, 0, 1))
    assert greedy[1] == Prompt(tokens=(3, 9, 9), stream=(6, 1, 1))
    assert [prompt.stream for prompt in engine.calls[4][0]] == [(6, 0, 2)]
    spelled: Any = Spelled()
    (_, (one, likeliest)), (_, (other, _)) = completed(segments, PROMPTS, 2, spelled)
    assert (one.tokens, one.text, one.finish, one.versions) == ((9, 9, 4), "994", "stop", (7, 7, 8))
    assert (other.tokens, other.finish, other.versions) == ((9,) * 5, "length", (7, 7, 8, 8, 9))
    assert likeliest.logprobs == (-0.5,) * 5


def test_a_completion_that_fills_the_context_is_finished() -> None:
    answer = sample_segment(Asked(), ORDER)  # type: ignore[arg-type]
    more = following(ORDER, answer, context=4)
    assert more is not None
    assert more.begun == (None, None, (9, 9), (9, 9))  # the first prompt has two tokens, the second one
    assert (more.segment, more.version, more.last_version) == (1, 8, 9)
    assert following(ORDER, answer, context=3) is None


def test_how_many_segments() -> None:
    assert [segments_of(512, 128, staleness) for staleness in (2, 4, 8)] == [2, 4, 4]
    assert [usual_segment(10, staleness) for staleness in (2, 3, 12)] == [5, 4, 1]
