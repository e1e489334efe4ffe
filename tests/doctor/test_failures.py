"""What a failed run is said to have failed by: whose code raised, or what was used up; else the error as it is."""

from pathlib import Path

import pytest

from tests.cli.refusal import train_tiny
from whet.doctor.causes import CAUSES
from whet.doctor.examine import examine_run
from whet.doctor.failures import FAILURES, causes_of, last_frame
from whet.doctor.findings import Diagnosis
from whet.doctor.plain_words import lines
from whet.doctor.settings import Settings
from whet.errors import RunFailed
from whet.runs.catalogue import standing
from whet.runs.directory import RunDirectory

OWN_REWARD = {"reward": {"functions": [{"use": "rewards.py:f"}]}}
OWN_LOSS = {"algorithm": {"surrogate": "/home/me/losses.py:mine"}, "reward": {"functions": []}}


def frames(*files: str) -> list[str]:
    places = [line for file in files for line in (f'  File "{file}", line 7, in f', "    x = 1 / 0", "        ~~^~~")]
    return ["Traceback (most recent call last):", *places, "ZeroDivisionError: division by zero"]


LOOP, LIBRARY = "/opt/lib/python3.11/site-packages/whet/train/online/loop.py", "/usr/lib/python3.11/json/decoder.py"
DATA, MODEL = "/src/whet/data/pairs.py", "/src/whet/models/decoder/decoder.py"
ENGINE, TORCH = "/src/whet/engines/http/transport.py", "/env/lib/python3.11/site-packages/torch/nn/functional.py"
CASES = [
    ("reward", {"error": "reward function f failed at r.py:1 in f: KeyError: 'x'"}, OWN_REWARD, "reward-fails"),
    ("reward", {"error": "the reward model gave nan"}, {"reward": {"model": {"path": "m"}}}, "reward-fails"),
    ("reward", {"error": "task sorting: score raised KeyError"}, {"reward": {"functions": []}}, "task-fails"),
    ("reward", {"error": "the environment took longer than 2 s (example 3)"}, OWN_REWARD, "environment-fails"),
    ("task", {"error": "task my.py:T: draw failed at my.py:3 in draw: KeyError: 1"}, OWN_REWARD, "task-fails"),
    ("error", {"error": "the GPU's memory of 80 GiB does not suffice: lower x"}, OWN_REWARD, "out-of-memory"),
    ("error", {"error": "RuntimeError: CUDA out of memory", "traceback": frames(LOOP)}, {}, "out-of-memory"),
    ("error", {"error": "cannot write metrics.jsonl in runs/a: No space left on device"}, {}, "disk-full"),
    ("error", {"error": "ZeroDivisionError", "traceback": frames(LOOP, "/me/losses.py")}, OWN_LOSS, "own-code-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, "/me/rewards.py", LIBRARY)}, OWN_REWARD, "reward-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, "/me/t.py")}, {"task": {"name": "pkg.t:T"}}, "task-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, "/me/e.py")}, {"environment": "e.py:E"}, "environment-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, DATA, LIBRARY)}, {}, "data-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, MODEL, TORCH)}, {}, "model-fails"),
    ("error", {"error": "x", "traceback": frames(LOOP, ENGINE)}, {}, "engine-fails"),
]


@pytest.mark.parametrize(("kind", "failure", "config", "cause"), CASES)
def test_the_error_and_its_last_frames_name_the_cause(kind, failure, config, cause):
    assert causes_of(kind, failure, Settings(config=config)) == (cause,)
    assert cause in CAUSES


def test_every_cause_of_failures_is_tested():
    assert {cause for *_, cause in CASES} == {*FAILURES, "reward-fails"}


def test_an_error_that_says_nothing_has_no_cause():
    for failure in ({}, {"error": "odd"}, {"error": 3, "traceback": "no list"}, {"traceback": [1, None, "File"]}):
        assert causes_of("error", failure, Settings(config=OWN_REWARD)) == ()
    assert causes_of("error", {"error": "x", "traceback": frames(LOOP, LIBRARY)}, Settings(config={})) == ()


def test_a_loss_that_is_not_finite_has_causes_of_its_loop():
    online, sft = Settings(config={}), Settings(config={}, kind="sft")
    assert causes_of("loss", {"error": "the loss is nan"}, online) == ("learning-rate-too-high", "reward-scale")
    assert "reward-scale" not in causes_of("loss", {"error": "the loss is nan"}, sft)


def test_the_last_frame_is_a_users_where_there_is_one():
    assert last_frame({"traceback": frames(LOOP, "/me/losses.py", TORCH)}) == "losses.py:7 in f"
    assert last_frame({"traceback": frames(LOOP, MODEL, TORCH)}) == "decoder.py:7 in f"
    assert last_frame({"error": "x"}) == ""


FILE = """
STEP = [0]

def loss(logprobs, advantages):
    STEP[0] += 1
    if STEP[0] == 2: raise KeyError("second")
    return -advantages * logprobs

def reward(completions, **columns):
    raise KeyError("no reward")
"""


def failed(tmp_path: Path, *keys: str, error: type[Exception]) -> tuple[RunDirectory, Diagnosis]:
    (tmp_path / "own.py").write_text(FILE)
    with pytest.raises(error):
        train_tiny(tmp_path, "steps=3", *keys)
    (path,) = (tmp_path / "runs").iterdir()
    run = RunDirectory.open(path, is_writer=False)
    return run, examine_run(run)


def test_a_loss_of_ones_own_that_raises_is_named_and_not_the_reward(tmp_path: Path) -> None:
    keys = (f"algorithm.surrogate={tmp_path / 'own.py'}:loss", "eval.every_steps=0")
    run, diagnosis = failed(tmp_path, *keys, error=Exception)
    assert (standing(run).status, standing(run).step) == ("failed", 1)
    assert diagnosis.causes[0].name == "own-code-fails"
    finding = next(one for one in diagnosis.findings if one.rule == "failed")
    assert finding.sentence.startswith("the run failed in step 2: ")
    assert "own.py" in finding.sentence + "".join(seen.text for seen in finding.evidence)
    assert diagnosis.level == "critical"


def test_a_reward_that_raises_before_training_is_named(tmp_path: Path) -> None:
    keys = (f"reward.functions=[{tmp_path / 'own.py'}:reward]",)
    run, diagnosis = failed(tmp_path, *keys, error=RunFailed)
    assert (standing(run).status, standing(run).step) == ("failed", 0)
    assert [cause.name for cause in diagnosis.causes] == ["reward-fails"]
    assert any("the run failed in the evaluation before training" in line for line in lines(diagnosis))
