"""The offline loop, which trains on rows that exist: rows → loss → step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.algorithms.preference.preference_table import Preference, RewardObjective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.rows.examples import Material, Note, read_material
from whet.train.rows.preference import PreferenceTrainer
from whet.train.rows.reward_training import REWARD_DATA, RewardTrainer, build_reward_parts
from whet.train.rows.sft import SFTTrainer
from whet.train.rows.trainer import OfflineTrainer
from whet.train.session.session import Progress, Session
from whet.train.setup.build import build_parts

SFT_DATA = ("dialogues", "pairs")  # of a pair, the chosen completion
PREFERENCE_DATA = {"pair": ("pairs",), "label": ("pairs", "labelled")}  # unit of the loss → kinds of rows


def train(config: OfflineConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C."""
    trainer = build_trainer(config, world, progress.note)
    parts, kept = trainer.parts, trainer.kept
    with Session(config, run, world, parts, progress, measure=trainer.measure, kept=kept) as session:
        for step in session.steps(lambda: trainer.conclude(run, progress.note)):
            with session.timed("rows"):
                rows = trainer.rows(step)

            with session.timed("update"):
                metrics, tokens = trainer.fit(rows)

            session.end_step(step, metrics, tokens=tokens)


def build_trainer(config: OfflineConfig, world: World, note: Note) -> OfflineTrainer[Any]:
    """The trainer of the objective, with its model and its rows."""
    row, what = objective_row(config.objective), f"objective {config.objective.name!r}"

    def read(kinds: Sequence[str], context: int) -> Material:
        assert config.data is not None
        return read_material(config.data, kinds, what, context=context, note=note)

    if isinstance(row, RewardObjective):
        scored = build_reward_parts(config, row.kind, world)
        return RewardTrainer(config, row.loss, scored, world, read(REWARD_DATA[row.kind], scored.policy.context), note)
    parts = build_parts(config, world)
    context = parts.policy.context
    if isinstance(row, Preference):
        return PreferenceTrainer(config, row, parts, world, read(PREFERENCE_DATA[row.unit], context), note)
    return SFTTrainer(config, parts, world, None if config.data is None else read(SFT_DATA, context), note)
