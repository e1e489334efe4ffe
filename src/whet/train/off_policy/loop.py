"""The off-policy loop: a step in environments, an update from the replay buffer, and again.

experience.advance     buffer.draw      UPDATES[preset]
environments ────────▶ replay buffer ─▶ critics, policy, targets
     ▲                                       │
     └──────────────── policy ◀──────────────┘
"""

from contextlib import closing

from whet.config.control.off_policy import OffPolicyConfig
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.control.evaluation import Evaluation
from whet.train.control.parts import few_threads, save_film
from whet.train.off_policy.interaction import interact
from whet.train.off_policy.off_policy_learner import build_learner
from whet.train.session.callbacks import Progress
from whet.train.session.session import Session


def train(config: OffPolicyConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. All randomness is seeded by numbers that checkpoints keep."""
    learner = build_learner(config, world)
    kept = {"experience": learner.experience, "critics": learner.critics}
    with (
        few_threads(config),
        closing(learner.experience.environments),
        closing(Evaluation(config, learner.policy)) as evaluation,
        Session(config, run, world, learner.parts, progress, measure=evaluation, kept=kept) as session,
    ):
        for step in session.steps(conclude=lambda: save_film(config, run, learner.parts, progress)):
            with session.timed("update"):
                metrics = interact(config, learner, step)
            session.end_step(step, metrics, tokens=config.rollout.environments * config.rollout.length)
