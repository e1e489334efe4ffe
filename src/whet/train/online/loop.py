"""The online (policy-gradient) loop: prompts → rollouts → scores → advantages → loss → step.

task.draw      engine.generate      grader.grade     advantage         surrogate × weighting     update
examples ────▶ completions     ───▶ rollouts   ───▶  batch        ───▶ loss                 ───▶ step
     ▲                                                                                            │
     └──────────────────────── engine.sync(policy, version) ◀──────────────────────────────────────┘

`rollouts` is the first two of them: in turn with the updates, or ahead of them, by workers.
"""

from contextlib import closing

from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, build_learner, build_offloading, cold_start, task_state
from whet.train.online.rollout_metrics import describe, warn_of_equal_rewards
from whet.train.online.rollouts import build_rollouts
from whet.train.online.sampling import SampledGroups, rollout_rows, told
from whet.train.online.token_record import TokenRecord
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
    rollouts, task = build_rollouts(parts, learner, grader, controllers, run, progress), parts.task
    kept = {"memory": controllers, **learner.kept, "failures": failures.kept, "task": task_state(task), **rollouts.kept}
    scorers = held_out_scorers(grader, config, task, parts.evaluation, present, failures.evaluating)
    with (
        closing(grader),
        closing(rollouts),
        Session(config, run, world, parts, progress, kept=kept, scorers=scorers) as session,
    ):
        for step in session.steps():
            settings = controllers.step_settings(config, tokens=session.tokens, stops=parts.tokenizer.stops)
            groups = SampledGroups(config.rollout, learner.algorithm, world, failures.kept, step)
            while groups.is_short:
                with session.timed("rollout"):
                    scoring, samples = rollouts.next(step, settings.sampling, session.timed)
                with session.timed("score"), present("reward"):
                    groups.add(scoring.groups(samples))
            record, batch, metrics = TokenRecord(learner, parts.tokenizer, step), None, {"updates": 0.0}
            if groups.total:
                with present("critic"):
                    with session.timed("annotate"), present("reference"):
                        batch, outcome, metrics = annotate(learner, groups, settings, record)
                        controllers.learn(outcome, config)
                    with session.timed("update"), present("optimizer"):
                        metrics |= update(learner, batch, step=step, record=record)

            learner.settle(step, present)
            rows = rollout_rows(groups, batch, world)
            described, tokens = describe(rows, config.reward)
            warn_of_equal_rewards(described, step, progress)
            controllers.deviation = described.get("reward/std", controllers.deviation)
            metrics = {**described, **groups.metrics(), **rollouts.metrics(), **metrics, **told(task, groups)}
            session.end_step(step, metrics, tokens=tokens, groups=rows, written=record.gathered(groups).beside)
