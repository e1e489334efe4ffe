"""What cannot be combined with conversations is refused in a sentence, before anything is sampled."""

from pathlib import Path
from typing import Any

import pytest

from tests.contracts.command import SUPERVISED
from tests.models.chats import chat
from tests.models.test_replies import REWRITING
from tests.turns.scripted import Scripted
from whet.config import OfflineConfig, OnlineConfig
from whet.errors import UserError
from whet.recipe import read_recipe
from whet.tasks.loading import guarded_task, load_task
from whet.train.conversations import conversing_of, require_conversations
from whet.turns.conversing import Conversing, require_single_answers

GUESSING = load_task("guessing", {})


def config_of(*overrides: str, recipe: str = "grpo-guessing") -> OnlineConfig:
    config = read_recipe(recipe, list(overrides)).config
    assert isinstance(config, OnlineConfig)
    return config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["asynchronous.staleness=1"], "asynchronous is set and task guessing is played in turns .* play no environ"),
        (["reward.tokens=plus"], "reward.tokens is set and task guessing .* no answer to compare tokens with"),
        (["rollout.min_tokens=2"], "rollout.min_tokens is set and task guessing"),
        (["cold_start.steps=5"], "cold_start.steps is set and task guessing .* its answers are outcomes"),
    ],
)
def test_settings_of_single_answers(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_conversations(config_of(*overrides), GUESSING)


def test_turns_of_a_task_without_any() -> None:
    config = config_of("rollout.max_turns=3", recipe="grpo-sorting")
    with pytest.raises(UserError, match=r"rollout\.max_turns is set and task sorting has no environment"):
        require_conversations(config, load_task("sorting", {}))
    require_conversations(config_of(recipe="grpo-sorting"), load_task("sorting", {}))
    require_conversations(config_of("rollout.max_turns=3"), GUESSING)


def test_answers_that_are_outcomes_are_not_imitated() -> None:
    with pytest.raises(UserError, match="its answers are outcomes, which nobody writes"):
        require_conversations(OfflineConfig.model_validate(SUPERVISED), GUESSING)
    with pytest.raises(UserError, match="guessing is played in turns with an environment, and rows of answers"):
        require_single_answers(GUESSING, "rows of answers are collected")
    require_single_answers(load_task("sorting", {}), "rows of answers are collected")


@pytest.mark.parametrize("how", ["drops or changes the thinking", "moves the system prompt"])
def test_a_template_that_rewrites_history_is_refused_where_it_is_used(how: str) -> None:
    conversing = Conversing(chat(REWRITING[how]))
    with pytest.raises(UserError, match=f"the chat template {how}.*set model.chat_template"):
        conversing.of(Scripted(chat=True))
    assert conversing.of(Scripted()) is not None  # plain prompts do not go through it
    assert conversing.of(load_task("sorting", {})) is None
    conversing.close()


def test_the_limits_of_a_recipe_are_those_of_its_environments() -> None:
    config = config_of("reward.workers=3", "reward.time_limit_seconds=7", "rollout.max_turns=5")
    conversing = conversing_of(config, chat(), context=40)
    limits: Any = conversing._limits
    assert (limits.workers, limits.time_limit_seconds, limits.memory_limit_gb) == (3, 7.0, 16.0)
    assert (conversing._max_turns, conversing._context) == (5, 40)


def test_a_users_task_keeps_its_environment_behind_its_guard() -> None:
    path = Path(__file__).parent / "scripted.py"
    task = guarded_task(f"{path}:Scripted", {"opening": "=0"})
    assert task.environment().reset(task.held_out(1)[0]) == "=0"  # type: ignore[attr-defined]
