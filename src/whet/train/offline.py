"""The loop that learns from rows that already exist: rows → log-probs → loss → step."""

from __future__ import annotations

from functools import partial

from whet.algorithms.table import OBJECTIVES
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.rollout import draw
from whet.runs.directory import Run
from whet.train.parts import build_parts
from whet.train.session import Progress, Session
from whet.train.supervised import fit, held_out_loss, supervised_row


def train(config: OfflineConfig, run: Run, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. Rows are named by (seed, step), so resuming needs no state."""
    parts = build_parts(config, world)
    objective = OBJECTIVES[config.objective]
    measure = partial(held_out_loss, parts, objective, config, world)

    with Session(config, run, world, parts, progress, measure=measure) as session:
        for step in session.steps():
            with session.timed("rows"):
                examples = world.shard(draw(parts.task, config.rows, seed=(config.seed, step)))
                rows = [supervised_row(parts.tokenizer, example, parts.policy.context) for example in examples]

            with session.timed("update"):
                statistics, tokens = fit(parts.policy, parts.optimizer, rows, objective, config, world)

            session.end_step(step, statistics, tokens=tokens)
