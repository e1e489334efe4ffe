"""The conversations of a run: how its tasks with environments are played, and what they cannot be combined with."""

from whet.config import OnlineConfig
from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.tasks.protocol import Task, has_environment
from whet.tasks.stepping.environment_pool import Limits
from whet.turns.conversing import Conversing


def conversing_of(config: object, tokenizer: Tokenizer, *, context: int | None) -> Conversing:
    """As an online run says: its turns, and the limits of its user's code; otherwise the defaults."""
    if not isinstance(config, OnlineConfig):
        return Conversing(tokenizer, context=context)
    reward = config.reward
    limits = Limits(
        time_limit_seconds=reward.time_limit_seconds,
        memory_limit_gb=reward.memory_limit_gb,
        workers=reward.workers,
        variables=reward.environment,
    )
    return Conversing(tokenizer, context=context, max_turns=config.rollout.max_turns, limits=limits)


def require_conversations(config: object, task: Task) -> None:
    """Refuses settings that conversations cannot have, and `rollout.max_turns` without any."""
    name = task.name
    if not has_environment(task):
        if isinstance(config, OnlineConfig) and config.rollout.max_turns is not None:
            raise UserError(f"rollout.max_turns is set and task {name} has no environment, so one turn: leave it out")
        return
    if not isinstance(config, OnlineConfig):
        if getattr(config, "data", None) is None:
            raise UserError(
                f"task {name} is played in turns with an environment, and its answers are outcomes, which nobody "
                "writes: train on rows of your own (data: FILE), or by rewards (whet train grpo)"
            )
        return
    for key, problem in {
        "asynchronous": config.asynchronous is not None and "the workers of rollouts play no environments",
        "reward.tokens": config.reward.tokens is not None and "there is no answer to compare tokens with",
        "rollout.min_tokens": config.rollout.min_tokens > 0 and "a turn may be as short as it needs to be",
        "cold_start.steps": config.cold_start.steps > 0 and "its answers are outcomes, which nobody writes",
    }.items():
        if problem:
            raise UserError(
                f"{key} is set and task {name} is played in turns with an environment: {problem}; leave {key} out"
            )
