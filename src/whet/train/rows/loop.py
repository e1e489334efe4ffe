"""The loop that learns from rows that already exist: rows → loss → step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from whet.algorithms.preference.preference_table import Preference, RewardObjective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.rows.examples import Material, Note, read_material
from whet.train.rows.preference import Preferring
from whet.train.rows.reward_training import REWARD_DATA, Rewarding, build_reward_parts
from whet.train.rows.sft import Imitation
from whet.train.session.session import Progress, Session
from whet.train.session.trained import Kept, Trained
from whet.train.setup.build import build_parts

IMITATION_DATA = ("dialogues", "pairs")  # of a pair, what was preferred
PREFERENCE_DATA = {"pair": ("pairs",), "label": ("pairs", "labelled")}  # unit of the loss → kinds of rows


class Lesson(Protocol):
    """What is learned, and from which rows. Rows are named by (seed, step), so resuming needs no state of theirs."""

    @property
    def kept(self) -> Mapping[str, Kept]:
        """What has a state besides the weights."""
        ...

    def rows(self, step: int) -> Sequence[Any]:
        """This rank's part of a step."""
        ...

    def fit(self, rows: Sequence[Any]) -> tuple[dict[str, float], int]:
        """One optimizer step; what to log, and how many tokens were learned, over all ranks."""
        ...

    def measure(self) -> dict[str, float]:
        """What the held-out rows show."""
        ...


def train(config: OfflineConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Trains until the last step or Ctrl-C."""
    parts, lesson = build_lesson(config, world, progress.note)

    def conclude() -> None:
        if isinstance(lesson, Rewarding):
            lesson.analyse(run, progress.note)  # also of a run that was interrupted: its best model can be used

    with Session(config, run, world, parts, progress, measure=lesson.measure, kept=lesson.kept) as session:
        for step in session.steps(conclude):
            with session.timed("rows"):
                rows = lesson.rows(step)

            with session.timed("update"):
                statistics, tokens = lesson.fit(rows)

            session.end_step(step, statistics, tokens=tokens)


def build_lesson(config: OfflineConfig, world: World, note: Note) -> tuple[Trained, Lesson]:
    """What the objective trains, and how."""
    row, what = objective_row(config.objective), f"objective {config.objective.name!r}"

    def read(kinds: Sequence[str], context: int) -> Material:
        assert config.data is not None
        return read_material(config.data, kinds, what, context=context, note=note)

    if isinstance(row, RewardObjective):
        judge = build_reward_parts(config, row.kind, world)
        material = read(REWARD_DATA[row.kind], judge.policy.context)
        return judge, Rewarding(config, row.loss, judge, material, world, note)
    parts = build_parts(config, world)
    if isinstance(row, Preference):
        return parts, Preferring(config, row, parts, read(PREFERENCE_DATA[row.unit], parts.policy.context), world, note)
    rows = None if config.data is None else read(IMITATION_DATA, parts.policy.context)
    return parts, Imitation(config, parts, rows, world, note)
