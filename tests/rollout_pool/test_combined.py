"""Parts, segments, adapters, dynamic sampling and both ways of hand-off together: losses, resumes, kills."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import Zygote, write_recipe
from tests.rollout_pool.here import AHEAD, Heard, in_threads, recipe, same, train, unreliable
from tests.rollout_pool.test_processes import is_alive, kill_worker
from whet.cli.progress import SilentProgress
from whet.train.start import resume_run

IN_FLIGHT = {"staleness": 3, "in_flight_updates": True, "segment_tokens": 1, "parts": 3, "workers": 2, "threads": 1}
DAPO = {
    "algorithm": {"preset": "dapo", "importance_correction": "token_truncate"},
    "rollout": {"prompts": 4, "group": 3, "max_tokens": 6, "min_tokens": 2, "max_resamples": 2},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "segments in parts": (IN_FLIGHT, AHEAD),
    "segments in parts, dynamic sampling": (IN_FLIGHT, DAPO),
    "parts, dynamic sampling": ({"staleness": 2, "parts": 4, "threads": 1}, DAPO),
}


def combined(model: Path, case: str, **ahead: Any) -> dict[str, Any]:
    """With adapters, and a checkpoint after every step."""
    asynchronous, changes = CASES[case]
    written = recipe(model, {**asynchronous, **ahead}, **changes)
    written["model"] = {"path": str(model), "lora": {"rank": 2}}
    written["save"] = {"every_steps": 1, "keep": 9}
    return written


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs to which nothing happens."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_threads(monkeypatch)
        where = tmp_path_factory.mktemp("plain")
        return {case: train(combined(model, case), where / case.replace(" ", "-")) for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_losses_joins_and_the_way_of_weights_change_no_byte(
    case: str, plain: dict[str, Path], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = unreliable(2, 0.3)
    in_threads(monkeypatch, losses)
    rng, path = random.Random(5), tmp_path / "run"

    class Elastic(Heard):
        def step(self, step: int, *given: Any) -> None:
            (path / "hand_off" / "workers").write_text(str(rng.randint(1, 9)))

    broadcast = {"hand_off": "broadcast", "hand_off_seconds": 20}
    train(combined(model, case, **broadcast), path, Elastic())
    assert losses.lost  # type: ignore[attr-defined]
    same(plain[case], path)


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_from_every_checkpoint(
    case: str, plain: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    for after in range(1, 7):
        copy = Path(shutil.copytree(plain[case], tmp_path / str(after)))
        (copy / "final_results.json").unlink()
        for path in copy.glob("checkpoints/step-*"):
            if int(path.name[5:]) > after:
                shutil.rmtree(path)
        resume_run(copy, ["asynchronous.workers=7"], lambda *_: SilentProgress())
        same(plain[case], copy)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", ["segments in parts", "segments in parts, dynamic sampling"])
def test_kills_at_random_moments_change_no_byte(
    case: str, seed: int, zygote: Zygote, plain: dict[str, Path], model: Path, tmp_path: Path
) -> None:
    """Workers and trainer are killed, and a run that is resumed takes its weights the other way."""
    rng, run, done = random.Random(seed), tmp_path / "run", tmp_path / "run" / "final_results.json"
    written = combined(model, case, hand_off="broadcast", hand_off_seconds=20, workers=3)
    trainer = zygote.start("train", write_recipe(tmp_path / "ahead.yaml", written), "--out", run)
    workers, trainers = 0, 0
    while not done.exists():
        time.sleep(rng.uniform(0.2, 2.0))
        if rng.random() < 0.6:
            workers += kill_worker(trainer, rng) if workers < 6 else 0
        elif trainers < 4 and run.exists():
            trainers += 1
            trainer.kill()
        if not is_alive(trainer.pid) and not done.exists():
            trainer.wait()
            again = ("--resume", f"asynchronous.hand_off={('files', 'broadcast')[trainers % 2]}")
            begun = (run, *again) if (run / "saved.json").exists() else (tmp_path / "ahead.yaml", "--out", run)
            if begun[0] != run:
                shutil.rmtree(run, ignore_errors=True)
            trainer = zygote.start("train", *begun)
    assert trainer.wait() == 0
    assert trainers
    same(plain[case], run)
