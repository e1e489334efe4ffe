"""Workers that sample with vLLM: real processes with a vLLM that is made for these tests, and what it may do wrong."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rollout_pool.here import AHEAD, Heard, in_threads, recipe, same, train, unreliable
from tests.rollout_pool.test_processes import gone, workers_of
from tests.small import small_model
from whet.errors import RunFailed, UserError
from whet.recipe import validate
from whet.runs.directory import RunDirectory
from whet.train.rollout_pool.local_worker import with_vllm
from whet.train.rollout_pool.orders import WorkerSetup
from whet.train.setup.chosen_algorithm import build_algorithm, old_source

FAKE = Path(__file__).parent / "fake"
VLLM = {"engine": {"name": "vllm", "max_sequences": 16}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{FAKE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(FAKE))
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)


def ahead(model: Path, **asynchronous: Any) -> dict[str, Any]:
    settings = {"staleness": 2, "workers": 2, "threads": 1, **asynchronous}
    return {**recipe(model, settings, **AHEAD), **VLLM}


class Killer(Heard):
    """Kills a worker after the second step."""

    killed = 0

    def step(self, step: int, *_: Any) -> None:
        if step == 2:
            self.killed = workers_of(os.getpid())[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.usefixtures("fake")
def test_a_run_with_vllm_in_its_workers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads(monkeypatch)
    run = train(ahead(model), tmp_path / "run")
    rows = {row["step"]: row for row in RunDirectory.open(run, is_writer=False).metrics()}
    assert [rows[step]["staleness/mean"] for step in range(1, 8)] == [0, 1, 2, 2, 2, 2, 2]
    assert rows[1]["mismatch/mean"] == pytest.approx(1e-4, rel=0.05)  # what this vLLM rounds; then the policy moves
    assert rows[7]["mismatch/mean"] > 2e-4
    # What is sampled is named by the ticket: this vLLM, unlike a real one, repeats it to the bit.
    losses = unreliable(3, 0.3)
    in_threads(monkeypatch, losses)
    same(run, train(ahead(model, workers=3), tmp_path / "lost"))
    assert len(losses.lost) >= 2  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("hand_off", ["files", "broadcast"])
def test_a_real_worker_with_vllm_is_killed(
    hand_off: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer()
    run = train(ahead(model, hand_off=hand_off), tmp_path / "processes", killer)
    assert any(f"process {killer.killed}) was killed by SIGKILL" in note for note in killer.notes)
    assert workers_of(os.getpid()) == []
    assert gone([killer.killed])
    with monkeypatch.context() as threads:
        in_threads(threads)
        same(run, train(ahead(model, workers=1, hand_off=hand_off), tmp_path / "threads"))


@pytest.mark.usefixtures("fake")
def test_in_flight_updates_with_vllm(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads(monkeypatch)
    run = train(ahead(model, in_flight_updates=True, segment_tokens=2), tmp_path / "run")
    rows = list(RunDirectory.open(run, is_writer=False).rollouts(4))
    assert {version for row in rows for version in row["versions"]} == {1, 2}
    assert len(rows) == 30


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("deaf", r"step \d: vLLM samples with stale weights: 'lm_head.weight' and \d+ more is not"),
        ("stale", r"step \d: vLLM does not sample from the policy: its log-probs of a canary prompt"),
    ],
)
def test_a_vllm_that_keeps_old_weights_ends_the_run(
    fault: str, sentence: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_threads(monkeypatch)
    monkeypatch.setenv("FAKE_VLLM", fault)
    written = ahead(model, workers=1)
    written["optimizer"] = {"lr": 0.5}  # so far that a canary notices
    with pytest.raises(RunFailed, match=sentence):
        train(written, tmp_path / "run")


def test_without_vllm_a_run_is_refused_before_it_begins(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.engines.vllm.vllm_engine.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=r"engine\.name=vllm"):
        train(ahead(model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("fake")
def test_a_family_that_vllm_does_not_serve_is_refused_before_workers_start(tmp_path: Path) -> None:
    policy, tokenizer = small_model("gemma2", width=64)
    (tmp_path / "gemma").mkdir()
    policy.save(tmp_path / "gemma")
    tokenizer.save(tmp_path / "gemma")
    with pytest.raises(UserError, match=r"engine.name=vllm serves gpt2, llama, .* and this model is of another kind"):
        train(ahead(tmp_path / "gemma"), tmp_path / "run")
    assert not (tmp_path / "run" / "hand_off").exists()


def test_the_trainer_evaluates_with_the_native_engine(model: Path) -> None:
    config = validate(ahead(model), where="test")
    assert (config.engine.name, config.trainer_engine.name) == ("vllm", "native")
    assert config.trainer_engine.max_sequences == 16
    alone = validate({**recipe(model), **VLLM}, where="test")
    assert alone.trainer_engine is alone.engine
    spread = validate({**ahead(model), "distributed": "fsdp2"}, where="test")  # of whole weights that rank 0 gathers
    assert spread.trainer_engine.name == "native"


@pytest.mark.parametrize("engine", ["native", "vllm"])
def test_log_probs_of_another_engine_are_not_taken_for_the_trainers(engine: str, model: Path) -> None:
    """Without staleness an exact engine's log-probs are π_old; those of vLLM are not, whatever the trainer's is."""
    written = {**recipe(model, {"staleness": 0}), "engine": {"name": engine}}
    written["update"] = {"minibatches": 2}
    config = validate(written, where="test")
    found = old_source(build_algorithm(config.algorithm), config, is_exact=True)
    assert found == {"native": "sampled", "vllm": "read"}[engine]


def setup(engine: str, device: str) -> WorkerSetup:
    return WorkerSetup(
        model={},
        engine={"name": engine},
        seed=0,
        start="",
        keep_bf16=False,
        trains_in_bf16=False,
        device=device,
        threads=3,
    )


@pytest.mark.parametrize(
    ("engine", "device", "seen", "now", "variables"),
    [
        ("native", "cuda:2", None, "cuda:2", {}),
        ("native", "cpu", None, "cpu", {}),
        ("vllm", "cpu", None, "cpu", {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
        ("vllm", "cuda:2", None, "cuda:0", {"CUDA_VISIBLE_DEVICES": "2"}),
        ("vllm", "cuda", None, "cuda:0", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("vllm", "cuda:1", "4,GPU-7f", "cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-7f"}),
    ],
)
def test_a_vllm_is_on_the_gpu_of_its_worker(
    engine: str, device: str, seen: str | None, now: str, variables: dict[str, str]
) -> None:
    given = {"HOME": "/h"} if seen is None else {"HOME": "/h", "CUDA_VISIBLE_DEVICES": seen}
    own, environment = with_vllm(setup(engine, device), given)
    assert own.device == now
    assert environment == {**given, "OMP_NUM_THREADS": "3", **variables}


def test_a_choice_of_the_users_stays() -> None:
    _, environment = with_vllm(setup("vllm", "cpu"), {"VLLM_CPU_OMP_THREADS_BIND": "0-3"})
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3"
