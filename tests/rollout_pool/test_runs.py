"""Whole runs with workers in threads: equal to synchronous ones without staleness, and to themselves with it."""

import json
import os
import re
import shutil
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.contracts.command import TASK
from tests.rollout_pool.here import AHEAD, Heard, content, in_threads, recipe, same, train, unreliable, until
from whet.cli.progress import SilentProgress
from whet.errors import RunFailed, UserError
from whet.recipe import Recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.online import asynchronous
from whet.train.rollout_pool import hand_off as hand_off_room
from whet.train.rollout_pool.hand_off import HandOff
from whet.train.rollout_pool.ticket_pool import RolloutPool, WorkerLost
from whet.train.start import resume_run

VARIED: dict[str, dict[str, Any]] = {
    "plain": {},
    "dynamic sampling and a curriculum": {
        "algorithm": {"preset": "dapo"},
        "curriculum": {"to_level": 3, "promote_at": 0.05, "window": 8},
        "rollout": {"prompts": 4, "group": 3, "max_tokens": 6, "max_resamples": 3},
    },
    "greedy baselines, a temperature that adapts, stop strings": {
        "algorithm": {"preset": "remax"},
        "update": {},
        "rollout": {
            "prompts": 4,
            "group": 3,
            "max_tokens": 6,
            "adaptive_temperature": {"low": 0.8, "high": 1.2},
            "stop": [">"],
        },
    },
    "adapters": {"lora": True},
}


@pytest.mark.parametrize("case", VARIED)
def test_without_staleness_a_run_is_the_synchronous_one(
    case: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    changes = dict(VARIED[case])
    own = {"model": {"path": str(model), "lora": {"rank": 2}}} if changes.pop("lora", False) else {}
    now = train({**recipe(model, **changes), **own}, tmp_path / "now")
    ahead = train({**recipe(model, {"staleness": 0, "workers": 2}, **changes), **own}, tmp_path / "ahead")
    same(now, ahead)


@pytest.mark.parametrize(
    ("case", "parts"), [("plain", 2), ("greedy baselines, a temperature that adapts, stop strings", 3)]
)
def test_without_staleness_a_run_in_parts_is_the_synchronous_one(
    case: str, parts: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are whole batches of the engine: here of two prompts, and of one where the group is of three."""
    in_threads(monkeypatch)
    changes = {**VARIED[case], "engine": {"max_sequences": 12 if case == "plain" else 3}}
    now = train(recipe(model, **changes), tmp_path / "now")
    asynchronous = {"staleness": 0, "workers": 3, "parts": parts}
    same(now, train(recipe(model, asynchronous, **changes), tmp_path / "ahead"))


@pytest.mark.parametrize("parts", [2, 5])
def test_parts_change_no_token(parts: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the rounding of log-probs in other batches, and of what is learned from them."""
    in_threads(monkeypatch)
    runs = [
        train({**recipe(model, {"staleness": 2, **ahead}, **AHEAD), "steps": 4}, tmp_path / name)
        for name, ahead in {"whole": {}, "parts": {"parts": parts, "workers": 4}}.items()
    ]
    whole, divided = (list(RunDirectory.open(run, is_writer=False).rollouts(2)) for run in runs)
    assert len(whole) == 30
    assert [row["tokens"] for row in divided] == [row["tokens"] for row in whole]
    for row, other in zip(divided, whole, strict=True):
        assert row["logprobs"] == pytest.approx(other["logprobs"], abs=1.2e-5)  # on disk they have six digits


def test_neither_workers_nor_their_loss_change_a_run_in_parts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[tuple[int, int]] = set()
    in_threads(monkeypatch, lambda worker, order: used.add((worker.number, order.part.number)))
    ahead = {"staleness": 1, "parts": 3}
    one = train(recipe(model, {**ahead, "workers": 1}, **AHEAD), tmp_path / "one")
    assert used == {(0, 0), (0, 1), (0, 2)}
    losses = unreliable(3, 0.3)

    def noted(worker: Any, order: Any) -> None:
        used.add((worker.number, order.part.number))
        losses(worker, order)

    in_threads(monkeypatch, noted)
    heard = Heard()
    many = train(recipe(model, {**ahead, "workers": 9}, **AHEAD), tmp_path / "many", heard)
    assert len(losses.lost) >= 2  # type: ignore[attr-defined]
    assert len({worker for worker, _ in used}) > 2  # more than S + 1
    same(one, many)
    assert any(re.search(r"; part \d of 3 of draw \d+ is sampled by another one", note) for note in heard.notes)
    assert any("not 9, because with asynchronous.parts=3 and asynchronous.staleness=1 no" in n for n in heard.notes)


@pytest.fixture(scope="module")
def stale(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a staleness of two, whose workers were never lost."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_threads(monkeypatch)
        return train(recipe(model, {"staleness": 2, "workers": 1}, **AHEAD), tmp_path_factory.mktemp("stale") / "run")


def test_rollouts_are_as_stale_as_the_metrics_say(stale: Path) -> None:
    run = RunDirectory.open(stale, is_writer=False)
    rows = {row["step"]: row for row in run.metrics()}
    ages = [[step - 1 - row["version"] for row in run.rollouts(step)] for step in (2, 4, 6)]
    assert [set(some) for some in ages] == [{1}, {2}, {2}]
    assert [rows[step]["staleness/mean"] for step in range(1, 8)] == [0, 1, 2, 2, 2, 2, 2]
    assert all(rows[step]["staleness/max"] == rows[step]["staleness/mean"] for step in range(1, 8))
    # Two steps of training lie between sampler and trainer, and no limit is put on that.
    assert rows[1]["mismatch/max"] < 1e-4 < rows[7]["mismatch/max"]
    assert rows[7]["importance_correction/largest"] > 1
    timings = [json.loads(line) for line in (stale / "timings.jsonl").read_text().splitlines()]
    assert all(0 <= row["seconds/waiting"] <= row["seconds/rollout"] for row in timings if row["step"] > 0)
    assert not (stale / "hand_off").exists()


def test_the_draws_of_one_step_differ_in_age(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic sampling consumes what was sampled ahead and then what is sampled now: the oldest is not the mean."""
    in_threads(monkeypatch)
    rollout = {"prompts": 4, "group": 6, "max_tokens": 6, "max_resamples": 1}
    changes = recipe(model, {"staleness": 2}, algorithm={"preset": "dapo"}, rollout=rollout)
    run = RunDirectory.open(train(changes, tmp_path / "run"), is_writer=False)
    found = [(row["staleness/mean"], row["staleness/max"]) for row in run.metrics() if row["step"] > 1]
    assert set(found) == {(0.5, 1.0)}  # two draws a step: one of the step before, one of its own weights


@pytest.mark.parametrize("workers", [1, 3])
def test_lost_workers_change_no_byte(
    workers: int, stale: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = unreliable(workers, 0.4)
    in_threads(monkeypatch, losses)
    heard = Heard()
    again = train(recipe(model, {"staleness": 2, "workers": workers}, **AHEAD), tmp_path / "again", heard)
    assert len(losses.lost) >= 2  # type: ignore[attr-defined]
    same(stale, again)
    told = [note for note in heard.notes if "was killed by SIGKILL; draw" in note]
    assert told
    assert told[0].startswith("rollout worker ")


def test_the_weights_of_a_lost_draw_are_still_there(
    stale: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is lost when newer weights have been handed over, and the next one has none yet."""
    seen: list[int] = []

    def late(_: Any, order: Any) -> None:
        seen.append(order.part.draw)
        if seen.count(3) == 1 and order.part.draw == 3:
            until(lambda: Path(order.weights).with_name("weights-000001.safetensors").exists())
            raise WorkerLost("was killed by SIGKILL")

    in_threads(monkeypatch, late)
    again = train(recipe(model, {"staleness": 2}, **AHEAD), tmp_path / "again")
    assert seen.count(3) == 2
    same(stale, again)


@pytest.mark.parametrize("after", [2, 4, 6, 7])
def test_a_run_goes_on_from_every_checkpoint(
    after: int, stale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    copy = Path(shutil.copytree(stale, tmp_path / "copy"))
    (copy / "final_results.json").unlink()
    for path in copy.glob("checkpoints/step-*"):
        if int(path.name[5:]) > after:
            shutil.rmtree(path)
    (copy / "hand_off" / "start").mkdir(parents=True)  # of a killed process
    resume_run(copy, ["asynchronous.workers=2"], lambda *_: SilentProgress())
    same(stale, copy)
    assert not (copy / "hand_off").exists()


def test_a_synchronous_run_is_not_resumed_with_workers(model: Path, tmp_path: Path) -> None:
    """The section would bring its staleness."""
    now = train({**recipe(model), "steps": 1}, tmp_path / "now")
    with pytest.raises(UserError, match=r"asynchronous.workers=2: a resumed run keeps its config except .*replicas;"):
        resume_run(now, ["asynchronous.workers=2"], lambda *_: SilentProgress())


def test_a_checkpoint_holds_what_is_outstanding(stale: Path) -> None:
    state = json.loads((stale / "checkpoints/step-000004/state.json").read_text())
    draws = state["kept"]["rollouts"]["draws"]
    assert [(one["draw"], one["version"]) for one in draws] == [(5, 2), (6, 3)]
    tensors = load_file(stale / "checkpoints/step-000004/rollouts.safetensors")
    for draw in (5, 6):
        assert len(tensors[f"{draw}.lengths"]) == 5 * 6
        assert int(tensors[f"{draw}.lengths"].sum()) == len(tensors[f"{draw}.tokens"])


def test_a_longer_run_begins_like_a_shorter_one(
    stale: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sampled ahead of the last step is used where the run is extended."""
    in_threads(monkeypatch)
    changes = recipe(model, {"staleness": 2}, **AHEAD, optimizer={"lr": 1e-3})
    changes["eval"]["every_steps"] = 2
    long = train(changes, tmp_path / "long")
    short = train({**changes, "steps": 4}, tmp_path / "short")
    resume_run(short, ["steps=7"], lambda *_: SilentProgress())
    assert (short / "metrics.jsonl").read_bytes() == (long / "metrics.jsonl").read_bytes()
    weights = [load_file(run / "checkpoints/step-000007/model/model.safetensors") for run in (long, short)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_signal_while_rollouts_are_waited_for_loses_nothing(
    stale: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C abandons step 5; what was outstanding when it began is finished and saved."""

    def interrupted(_: Any, order: Any) -> None:
        if order.part.draw == 7 and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    sent: list[bool] = []
    in_threads(monkeypatch, interrupted)
    path = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(recipe(model, {"staleness": 2, "workers": 2}, **AHEAD), path)
    assert sent
    resume_run(path, [], lambda *_: SilentProgress())
    mine, theirs = content(stale), content(path)
    assert [name for name in mine if mine[name] != theirs[name]] == []


def test_the_ratio_to_the_sampler_is_a_correction_of_its_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a correction the old log-probs are the sampler's, so a stale ratio is not one before the first update."""
    in_threads(monkeypatch)
    algorithm = {"preset": "grpo", "clip": {"low": 0.02, "high": 0.02}}
    changes = {"algorithm": algorithm, "update": {"epochs": 1}, "optimizer": {"lr": 3e-3}}
    written = recipe(model, {"staleness": 2}, **changes)
    run = RunDirectory.open(train(written, tmp_path / "run"), is_writer=False)
    rows = [row for row in run.metrics() if row["step"] > 0]
    assert rows[0]["approx_kl"] < 1e-9  # one update, and no staleness yet
    assert rows[0]["clip_fraction"] == 0
    assert statistics.fmean(row["approx_kl"] for row in rows[2:]) > 1e-4
    assert statistics.fmean(row["clip_fraction"] for row in rows[2:]) > 0.01
    idle = [unused(written, **changed) for changed in ({}, {"asynchronous": {"staleness": 0}})]
    assert idle == [{"update.mismatch_limit"}, {"algorithm.clip.low", "algorithm.clip.high"}]


def unused(written: dict[str, Any], **changed: Any) -> set[str]:
    """The keys of a recipe that have no effect."""
    whole = {**written, "update": {"epochs": 1, "mismatch_limit": 0.2}, **changed}
    named = Recipe(name="ahead", config=validate(whole, where="test"), written=whole)
    return {key for key in keys_without_effect(named) if key.startswith(("update", "algorithm.clip"))}


@pytest.mark.parametrize("planted", ["stale", "damaged"])
def test_a_hand_off_that_went_wrong_ends_the_run(
    planted: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    real = hand_off_room.hand_off

    def wrong(policy: Any, version: int, directory: Path, sharding: Any) -> HandOff:
        handed = real(policy, version, directory, sharding)
        if version == 2:
            if planted == "stale":
                shutil.copyfile(directory / "weights-000001.safetensors", handed.file)
            else:
                content = bytearray(handed.file.read_bytes())
                content[-5] ^= 4
                handed.file.write_bytes(content)
        return handed

    monkeypatch.setattr(hand_off_room, "hand_off", wrong)
    said = (
        "is not what the trainer wrote for version 2" if planted == "stale" else "holds other weights than the trainer"
    )
    with pytest.raises(RunFailed, match=said):
        train(recipe(model, {"staleness": 1}, **AHEAD), tmp_path / "run")


def test_workers_join_and_leave_while_a_run_goes_on(
    stale: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, wanted = tmp_path / "run", {2: "30\n", 3: "9" * 5000, 5: "1"}

    class Elastic(Heard):
        def step(self, step: int, *given: Any) -> None:
            if step in wanted:
                (path / "hand_off" / "workers").write_text(wanted[step])

    in_threads(monkeypatch)
    heard = Elastic()
    train(recipe(model, {"staleness": 2}, **AHEAD), path, heard)
    told = [note for note in heard.notes if "instead of" in note or "ignored" in note]
    assert told[0].startswith("rollout workers: 3 instead of 1; not 30, because")
    assert "/hand_off/workers is '999" in told[1]
    assert told[1].endswith("not a number of workers: ignored")
    assert told[2] == "rollout workers: 1 instead of 3"
    same(stale, path)


def test_no_more_workers_are_started_than_can_have_a_draw(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two draws are under way with a staleness of one, so a third worker would hold a model and sample nothing."""
    used: set[int] = set()
    pools: list[RolloutPool] = []

    class Watched(RolloutPool):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            pools.append(self)

    monkeypatch.setattr(asynchronous, "RolloutPool", Watched)
    in_threads(monkeypatch, lambda worker, _: used.add(worker.number))
    heard = Heard()
    train(recipe(model, {"staleness": 1, "workers": 10**6}, **AHEAD), tmp_path / "run", heard)
    assert used <= {0, 1}
    assert len(pools[0]._answers) <= 3  # of eight draws: those that were consumed do not fill the memory
    (told,) = [note for note in heard.notes if "sampled ahead by" in note]
    assert "by 2 workers (processes)" in told
    assert "; not 1000000, because a worker samples a whole draw" in told
    assert told.endswith("with asynchronous.staleness=1 no more than 2 are under way")


def test_a_disk_without_room_for_the_weights_is_told_before_they_are_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    monkeypatch.setattr(asynchronous, "size_of", lambda tensors: 2**60)
    with pytest.raises(RunFailed, match=r"needs 5\.76e\+06 TB in .*hand_off, which has .* free: .*weights_directory"):
        train(recipe(model, {"staleness": 2}, **AHEAD), tmp_path / "run")


def test_weights_may_be_handed_over_elsewhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    in_threads(monkeypatch, lambda _, order: seen.add(order.weights))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "of another run").write_text("")
    ahead = {"staleness": 1, "weights_directory": str(shared)}
    train({**recipe(model, ahead, **AHEAD), "steps": 2, "task": TASK}, tmp_path / "one")
    (place,) = {str(Path(weights).parent) for weights in seen}
    assert place.startswith(str(shared / "whet-one-"))
    assert seen == {f"{place}/weights-00000{version}.safetensors" for version in (0, 1)}
    assert asynchronous.shared_name(Path("a/seed-0")) != asynchronous.shared_name(Path("b/seed-0"))
    assert [path.name for path in shared.iterdir()] == ["of another run"]


def test_what_a_pool_needs_is_missed_before_anything_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for settings, told in (
        ({"pool": "ray"}, "asynchronous.pool=ray"),
        (
            {"weights_directory": "/proc/nowhere"},
            "asynchronous.weights_directory: nothing can be written to /proc/nowhere",
        ),
    ):
        with pytest.raises(UserError, match=told):
            train(recipe(model, {"staleness": 1, **settings}, **AHEAD), tmp_path / "run")
        assert not (tmp_path / "run").exists()
