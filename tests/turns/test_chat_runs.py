"""Runs of a chat model in turns: its template's tokens stand between its own, and sampler and trainer agree."""

from itertools import groupby
from pathlib import Path

from tests.contracts.command import online
from tests.contracts.here import train_here
from tests.small import small_chat_model
from tests.turns import scripted
from whet.models.model_tokenizer import model_tokenizer
from whet.models.text.chat_settings import with_chat


def test_observations_are_the_templates(tmp_path: Path) -> None:
    written = online(small_chat_model(tmp_path / "model"), steps=2, algorithm="grpo")
    written["model"] = {"path": written["model"], "chat_template": "plain"}
    written["task"] = {"name": f"{Path(scripted.__file__)}:Scripted", "chat": True}
    stop = [chr(code) for code in range(33, 127)]  # nearly every token ends its turn
    written["rollout"] = {"prompts": 4, "group": 4, "max_tokens": 12, "stop": stop}
    written["eval"] = {"every_steps": 2, "examples": 4, "max_tokens": 12}
    run = train_here(written, tmp_path / "run")
    rows = run.rollouts(2)
    assert max(metrics["mismatch/max"] for metrics in run.metrics()[1:]) < 1e-5
    assert any(len(row["turns"]) == 3 for row in rows)
    tokenizer, _ = with_chat(model_tokenizer(tmp_path / "model"), template="plain", system_prompt="")
    for row in rows:
        spans = [
            list(some) for _, some in groupby(zip(row["tokens"], row["mask"], strict=True), key=lambda pair: pair[1])
        ]
        observed = [tokenizer.decode([token for token, _ in span]) for span in spans if not span[0][1]][1:]
        assert observed == [
            f"\n\nUser:\n{turn['observation']}\n\nAssistant:\n" for turn in row["turns"] if turn["observed"]
        ]


def test_a_calculator_beside_arithmetic(tmp_path: Path) -> None:
    """A random model calls nothing, so its first whole turn is its answer: the run is one of single answers."""
    written = online(small_chat_model(tmp_path / "model", context=1024), steps=2, algorithm="grpo")
    written["model"] = {"path": written["model"], "chat_template": "plain"}
    written["task"] = {"name": "tools", "task": "arithmetic", "options": {"level": 1, "chat": True}}
    written["rollout"] = {"prompts": 2, "group": 4, "max_tokens": 4}
    written["eval"] = {"every_steps": 2, "examples": 2, "max_tokens": 4}
    run = train_here(written, tmp_path / "run")
    assert {metrics["turns/max"] for metrics in run.metrics()[1:]} == {1.0}
    assert all(len(answer["turns"]) == 1 for answer in run.answers(2))
