"""A few supervised steps before the first rollout: a policy that is never right has nothing to learn from."""

from __future__ import annotations

from whet.algorithms.table import OBJECTIVES
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.rollout import draw
from whet.train.rows.sft import fit, supervised_row
from whet.train.session.session import Progress
from whet.train.setup.build import Parts
from whet.train.setup.optimizer import make_optimizer

STREAM = 0  # stands between seed and step in the names of the draws, which the rollouts' names do not have


def cold_start(parts: Parts, config: OnlineConfig, world: World, progress: Progress) -> None:
    """Trains the policy on the task's own answers, the same at every start and resume of the run."""
    settings = config.cold_start
    if not settings.steps:
        return
    optimizer = make_optimizer(parts.policy, config.optimizer.model_copy(update={"lr": settings.lr}))
    losses = []
    for step in range(1, settings.steps + 1):
        examples = world.shard(draw(parts.task, settings.batch_size, seed=(config.seed, STREAM, step)))
        rows = [supervised_row(parts.tokenizer, example, parts.policy.context) for example in examples]
        statistics, _ = fit(parts.policy, optimizer, rows, OBJECTIVES["sft"], config, world)
        losses.append(statistics["loss"])
    progress.note(f"cold start: {settings.steps} supervised steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
