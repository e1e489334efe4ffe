"""rollout.min_tokens and rollout.repetition_penalty in a run: exact log-probs, and refusals where there are none."""

import json

import pytest

from tests.cli.tiny import Whet
from whet.errors import UserError
from whet.recipe import read_recipe

SMALL = ("steps=1", "track=[]", "rollout.prompts=4", "eval.examples=4", "update.minibatches=2")


def test_sampler_and_trainer_agree(whet: Whet, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_RUNS", str(tmp_path))
    outcome = whet("train", "grpo-sorting", *SMALL, "rollout.min_tokens=3", "rollout.repetition_penalty=1.4")
    assert outcome.code == 0, outcome.err
    (run,) = tmp_path.iterdir()
    metrics = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert metrics["mismatch/max"] < 1e-5
    assert metrics["length/mean"] >= 4  # three tokens and the end, or the limit of six


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["rollout.min_tokens=9"], "min_tokens 9 is more than max_tokens 6"),
        (["rollout.min_tokens=2", "rollout.stop=[x]"], "cannot hold back stop strings"),
        (["rollout.min_tokens=2", "engine.name=vllm"], "rollout.min_tokens or .* with engine.name vllm"),
        (["rollout.repetition_penalty=1.1", "engine.name=vllm"], "use engine.name native"),
    ],
)
def test_what_cannot_be_exact_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_recipe("grpo-sorting", overrides)
