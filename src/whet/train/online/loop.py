"""The online (policy-gradient) loop: prompts → rollouts → scores → advantages → loss → step.

task.draw      engine.generate      grader.grade     advantage         surrogate × weighting     update
examples ────▶ completions     ───▶ rollouts   ───▶  batch        ───▶ loss                 ───▶ step
     ▲                                                                                            │
     └──────────────────────── engine.sync(policy, version) ◀──────────────────────────────────────┘
"""

from contextlib import closing

from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.rollout import Scoring, draw, sample, tokenize_prompts
from whet.runs.directory import RunDirectory
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, build_learner, build_offloading, cold_start, task_state
from whet.train.online.sampling import SampledGroups, describe, rollout_rows, told, warn_of_equal_rewards
from whet.train.online.update import update
from whet.train.session.callbacks import Progress
from whet.train.session.session import Session
from whet.train.session.tolerated import RewardFailures
from whet.train.setup.build import build_parts
from whet.train.setup.reward_grader import build_grader, held_out_scorers


def train(config: OnlineConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. All randomness is seeded by numbers that checkpoints keep."""
    parts = build_parts(config, world)
    cold_start(parts, config, world, progress)
    learner = build_learner(parts, config, world)
    controllers = ControllerState(kl_coefficient=config.algorithm.kl.coefficient)
    failures = RewardFailures(config.reward.allowed_failures, run, world, progress)
    grader = build_grader(config, world.device, parts.task, parts.tokenizer, failures.tolerance, parts.frozen_base)
    present = build_offloading(learner, grader)
    task, engine, rollout, greedy = parts.task, parts.engine, config.rollout, learner.algorithm.needs_greedy
    assert engine is not None
    kept = {"memory": controllers, **learner.kept, "failures": failures.kept, "task": task_state(task)}
    scorers = held_out_scorers(grader, config, task, parts.evaluation, present, failures.evaluating)
    with closing(grader), Session(config, run, world, parts, progress, kept=kept, scorers=scorers) as session:
        for step in session.steps():
            settings = controllers.step_settings(config, tokens=session.tokens, stops=parts.tokenizer.stops)
            groups = SampledGroups(rollout, learner.algorithm, world, failures.kept, step)
            while groups.is_short:
                with session.timed("rollout"):
                    engine.sync(learner.policy, version=step - 1)
                    name = (config.seed, controllers.next_draw())
                    examples = draw(task, rollout.prompts, seed=name)
                    prompts = world.shard(tokenize_prompts(examples, parts.tokenizer, stream=name))
                    scoring = Scoring(grader, world.shard(examples), version=step - 1, steps=config.steps)
                    samples = sample(engine, prompts, settings.sampling, rollout.group, scoring, greedy=greedy)

                with session.timed("score"), present("reward"):
                    groups.add(scoring.groups(samples))

            batch, metrics = None, {"updates": 0.0}
            if groups.total:
                with present("critic"):
                    with session.timed("annotate"), present("reference"):
                        batch, outcome, metrics = annotate(learner, groups, settings)
                        controllers.learn(outcome, config)
                    with session.timed("update"), present("optimizer"):
                        metrics |= update(learner, batch, step=step)

            learner.settle(step, present)
            rows = rollout_rows(groups, batch, world)
            described, tokens = describe(rows)
            warn_of_equal_rewards(described, step, progress)
            controllers.deviation = described.get("reward/std", controllers.deviation)
            metrics = {**described, **groups.metrics(), **metrics, **told(task, groups)}
            session.end_step(step, metrics, tokens=tokens, groups=rows)
