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
from whet.train.online.annotate import annotate
from whet.train.online.cold_start import cold_start
from whet.train.online.controllers import Memory
from whet.train.online.describe import describe, rollout_rows
from whet.train.online.learner import build_learner
from whet.train.online.placement import build_guests
from whet.train.online.sampling import Harvest
from whet.train.online.update import update
from whet.train.session.session import Progress, Session
from whet.train.setup.build import build_parts
from whet.train.setup.grader import build_grader, held_out_judge


def train(config: OnlineConfig, run: Run, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. Everything random is named by a number that a checkpoint keeps."""
    parts = build_parts(config, world)
    cold_start(parts, config, world, progress)
    learner = build_learner(parts, config, world)
    memory = Memory(kl_coefficient=config.algorithm.kl.coefficient)
    grader = build_grader(config.task, config.reward, world.device)
    guests = build_guests(learner, grader)
    task, engine, rollout, algorithm = parts.task, parts.engine, config.rollout, learner.algorithm
    kept = {"memory": memory, "reference": learner.reference, "critic": learner.critic}
    opinion = held_out_judge(grader, guests)
    with closing(grader), Session(config, run, world, parts, progress, kept=kept, judge=opinion) as session:
        for step in session.steps():
            dials = memory.dials(config, tokens=session.tokens)
            harvest = Harvest(rollout, algorithm, world)
            while harvest.is_short:
                with session.timed("rollout"):
                    engine.sync(learner.policy, version=step - 1)
                    name = (config.seed, memory.next_draw())
                    everyones = draw(task, rollout.prompts, seed=name)
                    prompts = world.shard(pose(everyones, parts.tokenizer, stream=name))
                    samples = sample(engine, prompts, dials.sampling, rollout.group, greedy=algorithm.needs_greedy)

                with session.timed("score"), guests.present("reward"):
                    harvest.add(judge(grader, world.shard(everyones), samples, version=step - 1))

            batch, metrics = None, {"updates": 0.0}
            if harvest.total:
                with guests.present("critic"):
                    with session.timed("annotate"), guests.present("reference"):
                        batch, seen, metrics = annotate(learner, harvest, dials)
                        memory.learn(seen, config)

                    with session.timed("update"), guests.present("optimizer"):
                        metrics |= update(learner, batch, step=step)

            learner.settle(step, guests)
            rows = rollout_rows(harvest, batch, world)
            described, tokens = describe(rows)
            memory.deviation = described["reward/std"]
            session.end_step(step, {**described, **harvest.metrics(), **metrics}, tokens=tokens, groups=rows)
