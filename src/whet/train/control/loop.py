"""The loop of control: steps in environments → advantages → loss → update.

collector.collect     annotate          update
environments ───────▶ advantages ─────▶ optimizer steps
     ▲                                      │
     └─────────────── policy ◀──────────────┘
"""

from contextlib import closing

from whet.config.control import ControlConfig
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.control.annotate import annotate
from whet.train.control.evaluation import Evaluation
from whet.train.control.parts import build_control, few_threads, save_film
from whet.train.control.update import update
from whet.train.session.callbacks import Progress
from whet.train.session.session import Session


def train(config: ControlConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C. All randomness is seeded by numbers that checkpoints keep."""
    built = build_control(config, world)
    policy, collector, scale, group = built.policy, built.collector, built.scale, config.rollout.group
    kept = {"episodes": collector, "rewards": scale}
    with (
        few_threads(config),
        closing(collector),
        closing(Evaluation(config, policy)) as evaluation,
        Session(config, run, world, built.parts, progress, measure=evaluation, kept=kept) as session,
    ):
        for step in session.steps(conclude=lambda: save_film(config, run, built.parts, progress)):
            with session.timed("rollout"):
                rollout = collector.collect(step)
            with session.timed("annotate"):
                batch, metrics = annotate(built.algorithm, policy, rollout, group, scale)
            with session.timed("update"):
                metrics |= update(config, built.algorithm, policy, built.parts.optimizer, batch, step=step)
            built.observe(rollout)
            session.end_step(step, {**collector.metrics(), **metrics}, tokens=rollout.count)
