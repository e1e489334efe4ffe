"""The offline loop, which trains on rows that exist: rows → loss → step."""

from dataclasses import replace

from whet.algorithms.preference.preference_table import Preference, RewardObjective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.rows.denoising import DenoisingTrainer
from whet.train.rows.examples import Note
from whet.train.rows.language_model import LanguageModelTrainer
from whet.train.rows.preference import PreferenceTrainer
from whet.train.rows.reward_training import RewardTrainer
from whet.train.rows.sft import SFTTrainer
from whet.train.rows.trainer import Trainer
from whet.train.session.callbacks import Progress
from whet.train.session.session import Session


def train(config: OfflineConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C."""
    trainer = build_trainer(config, world, progress.note)
    parts, kept = replace(trainer.parts, lengths=trainer.lengths), trainer.kept
    with Session(config, run, world, parts, progress, measure=trainer.measure, kept=kept) as session:
        for step in session.steps(lambda: trainer.conclude(run, progress.note)):
            with session.timed("rows"):
                rows = trainer.rows(step)

            with session.timed("update"):
                metrics, tokens = trainer.fit(rows)

            session.end_step(step, metrics, tokens=tokens)


def build_trainer(config: OfflineConfig, world: World, note: Note) -> Trainer:
    """The trainer of the objective, with its model and its rows."""
    row = objective_row(config.objective)
    if isinstance(row, RewardObjective):
        return RewardTrainer(config, row, world, note)
    if isinstance(row, Preference):
        return PreferenceTrainer(config, row, world, note)
    if row.masking is not None:
        return DenoisingTrainer(config, world, note)
    if row.reads == "text":
        return LanguageModelTrainer(config, world, note)
    return SFTTrainer(config, world, note)
