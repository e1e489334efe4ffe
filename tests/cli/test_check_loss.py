"""`whet check-loss`: the page, the JSON and the exit code, for functions in a user's own files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.refusal import refused
from tests.cli.tiny import Whet

LOSSES = """
import sys
import torch

number = 3

def mine(logprobs, logprobs_old, advantages, *, power=1.0):
    return -advantages * power * (logprobs - logprobs_old).exp()

def averaged(logprobs, advantages, mask):
    return -advantages * logprobs / (advantages[mask].std() + 1.0)

def talkative(logprobs, advantages):
    print("looking at", logprobs.shape)
    return -advantages * logprobs

def raising(rewards):
    raise KeyError("two\\nlines")

def best_of(rewards):
    return rewards - rewards.amax(dim=1, keepdim=True)

def misspelt(logprobs, advantage): ...
def both(logprobs, rewards): ...
def scaling(advantages, mask): ...
def distance(chosen, rejected, *, beta=0.5): return (chosen - rejected - beta).square()
def no_labels(scores): ...
def positional(logprobs, advantages, low=0.2): ...
class Loss: ...
"""


@pytest.fixture
def losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "losses.py"
    path.write_text(LOSSES)
    return path


def test_a_good_surrogate_has_a_page_and_exit_code_0(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", f"{losses}:mine", "power=2")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{losses}:mine: surrogate of logprobs, logprobs_old, advantages [power=2]"
    assert lines[-1] == "11 passed, 0 failed, 0 notes"
    assert all(line.startswith("  passed  ") for line in lines[1:-1])


def test_a_broken_surrogate_ends_in_exit_code_1_and_a_sentence(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", "losses.py:averaged")
    assert result.code == 1
    (line,) = [line for line in result.out.splitlines() if line.startswith("  failed")]
    assert line.split()[1] == "micro-batches"
    assert "computing 1 row at a time changes [" in line
    assert "rows are mixed, by a mean or a deviation over the batch" in line


def test_an_advantage_is_known_by_its_terms(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", "losses.py:best_of", "--json")
    found = json.loads(result.out)
    assert result.code == 0
    assert (found["kind"], found["terms"], found["options"], found["failed"]) == ("advantage", ["rewards"], {}, False)
    said = {finding["check"]: (finding["outcome"], finding["sentence"]) for finding in found["findings"]}
    assert said["group of one"] == ("note", "groups of one work and get 0, so nothing would be learned")
    assert said["other groups"][0] == "passed"


def test_a_function_that_raises_is_a_finding_of_one_line(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", "losses.py:raising", "--json")
    assert (result.code, result.err) == (1, "")
    found = json.loads(result.out)
    assert found["failed"] is True
    assert found["findings"][0] == {
        "check": "shape",
        "outcome": "failed",
        "sentence": "raises KeyError: 'two\\nlines' on ordinary float64 input",
    }


def test_what_the_function_prints_is_not_in_the_report(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", "losses.py:talkative", "--json")
    assert json.loads(result.out)["failed"] is False
    assert "looking at torch.Size([12, 9])" in result.err


def test_packaged_cells_go_by_their_name(whet: Whet) -> None:
    result = whet("check-loss", "stopped_ratio", "high=20e-1")
    assert result.code == 0
    assert "stops the gradient" in result.out
    assert "[low=1.0, high=2.0]" in result.out


def test_losses_of_preferences_and_of_reward_models_are_checked_too(whet: Whet, losses: Path) -> None:
    result = whet("check-loss", "losses.py:distance", "beta=2")
    assert result.code == 0, result.out
    assert result.out.startswith("losses.py:distance: preference loss (pairs) of chosen, rejected [beta=2]")
    result = whet("check-loss", "process", "--json")
    assert (result.code, json.loads(result.out)["terms"]) == (0, ["scores", "classes"])
    assert "reward-model loss (pairs)" in whet("check-loss", "bradley_terry").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("losses.py:no_labels",), "takes scores, by which it is none of these"),
        (("losses.py:mime",), "losses.py has no 'mime'; did you mean 'mine'?"),
        (("losses.py:number",), "is a int, not a function"),
        (("losses.py:Loss",), "is a type, not a function"),
        (("nowhere.py:mine",), "there is no file nowhere.py"),
        (("losses.py:misspelt",), "takes 'advantage', which the loop does not supply; did you mean 'advantages'?"),
        (("losses.py:both",), "is of kind surrogate, which is not supplied with rewards"),
        (("losses.py:scaling",), "takes advantages, mask, by which it is none of these"),
        (("losses.py:positional",), "takes 'low' by position; make it an option"),
        (("losses.py:mine", "pover=2"), "has no option 'pover'; did you mean 'power'? (its options are power)"),
        (("losses.py:mine", "power"), "write key=value"),
        (("losses.py:mine", "power=["), "'power=[' has a value that cannot be read: write e.g. high=0.28"),
        (("clipp",), "no surrogate, advantage, KL estimator or loss is called 'clipp'; did you mean 'clip'?"),
        (("grpo",), "grpo is an algorithm: check its advantage and its surrogate, standardize and clip"),
        (("whiten",), "no surrogate, advantage, KL estimator or loss is called 'whiten'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    whet: Whet, losses: Path, arguments: tuple[str, ...], told: str
) -> None:
    assert told in refused(whet, "check-loss", *arguments)


def test_the_real_command(losses: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", "whet", "check-loss", "losses:averaged")  # as a module of this directory
    done = subprocess.run(command, cwd=losses.parent, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == "10 passed, 1 failed, 0 notes"
