"""The loop that learns from rollouts: prompts → rollouts → scores → advantages → loss → step.

task.draw      engine.generate      grader.grade     advantage         surrogate × weighting     update
examples ────▶ completions     ───▶ rollouts   ───▶  batch        ───▶ loss                 ───▶ step
     ▲                                                                                            │
     └──────────────────────── engine.sync(policy, version) ◀──────────────────────────────────────┘
"""

from __future__ import annotations

from contextlib import closing

from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.rollout import draw, judge, pose, sample
from whet.runs.directory import Run
from whet.tasks.grading import make_grader
from whet.train.describe import describe, rollout_rows
from whet.train.parts import build_algorithm, build_parts, build_reference
from whet.train.session import Progress, Session
from whet.train.update import annotate, update


def train(config: OnlineConfig, run: Run, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. Everything random is named by (seed, step), so resuming needs no state."""
    parts = build_parts(config, world)
    algorithm = build_algorithm(config.algorithm)
    reference = build_reference(parts.policy, algorithm)
    grader = make_grader(config.task.name, config.task.options, *config.reward.plain())
    task, engine, policy, sampling = parts.task, parts.engine, parts.policy, config.rollout.sampling

    with closing(grader), Session(config, run, world, parts, progress) as session:
        for step in session.steps():
            with session.timed("rollout"):
                engine.sync(policy, version=step - 1)
                everyones = draw(task, config.rollout.prompts, seed=(config.seed, step))
                prompts = world.shard(pose(everyones, parts.tokenizer, stream=(config.seed, step)))
                examples = world.shard(everyones)
                samples = sample(engine, prompts, sampling, group=config.rollout.group)

            with session.timed("score"):
                groups = judge(grader, examples, samples, version=step - 1)

            with session.timed("annotate"):
                batch, agreement = annotate(groups, policy, reference, algorithm, config, world)

            with session.timed("update"):
                statistics = update(policy, parts.optimizer, batch, algorithm, config, world, step=step)

            rows = world.interleave(rollout_rows(groups, batch, parts.tokenizer))
            metrics, tokens = describe(rows)
            session.end_step(step, {**metrics, **agreement, **statistics}, tokens=tokens, groups=rows)
