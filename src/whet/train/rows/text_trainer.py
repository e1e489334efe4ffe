"""What trainers on a text share: the windows of a step, drawn by (seed, step), and their split into documents."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from whet.algorithms.table import Objective
from whet.config import OfflineConfig
from whet.config.objective import objective_row
from whet.distributed.world import World
from whet.runs.directory import RunDirectory
from whet.train.rows.examples import Note
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import build_parts
from whet.train.setup.corpora import as_tensor, corpus_of, token_file, window_starts


class Window(NamedTuple):
    """A window of the training text."""

    step: int
    row: int  # in the batch of all ranks
    start: int  # its first token


class TextTrainer(ABC):
    """Trains on windows of a text; resuming needs no state."""

    kept: Mapping[str, Checkpointed] = {}

    def __init__(self, config: OfflineConfig, world: World, note: Note) -> None:
        self.config, self.world = config, world
        self.parts = build_parts(config, world)
        row = objective_row(config.objective)
        assert isinstance(row, Objective)
        self.objective = row
        task = corpus_of(self.parts.task, f"objective {config.objective.name!r}")
        self.corpus = token_file(task, self.parts.tokenizer)
        self.separate = task.documents == "separate"
        self.context = self.parts.policy.context
        note(
            f"corpus: {self.corpus.training_tokens:,} tokens to learn from ({self.corpus.characters['training']:,} "
            f"characters of {task.path}) and {len(self.corpus.held_out):,} held out, the end of the text"
        )

    def rows(self, step: int) -> Sequence[Window]:
        """This rank's windows of a step."""
        count, seed = self.config.batch_size, self.config.seed
        starts = window_starts(self.corpus.training_tokens, count, self.context, seed=seed, step=step)
        return self.world.shard([Window(step, row, start) for row, start in enumerate(starts.tolist())])

    def lengths(self) -> Sequence[tuple[int, int]]:
        """A window is as long as the context."""
        return [(1, self.context)]

    @abstractmethod
    def fit(self, rows: Sequence[Window]) -> tuple[dict[str, float], int]:
        """One optimizer step; returns metrics and the number of trained tokens, over all ranks."""

    def measure(self) -> dict[str, float]:
        """Nothing besides what every run on a corpus measures of held-out text (`Parts.measure`)."""
        return {}

    def conclude(self, run: RunDirectory, note: Note) -> None:  # noqa: B027
        """Nothing is left to do after the last step."""

    def tokens(self, rows: Sequence[Window], length: int) -> Tensor:
        """(n, length) ids of the windows."""
        return as_tensor(self.corpus.windows(np.array([row.start for row in rows], dtype=np.int64), length))

    def split(self, rows: Sequence[Window], tables: Sequence[Tensor], *, shortest: int) -> tuple[list[Tensor], Tensor]:
        """(n, length) tables and (n,) lengths of the windows, on the device of the run.

        Where documents are separate, a row of the tables is a part of a document in a window, of `shortest` tokens at
        least, with zeros after its end.
        """
        length, device = tables[0].shape[1], self.world.device
        if not self.separate:
            return [table.to(device) for table in tables], torch.full((len(rows),), length, device=device)
        starts = np.array([row.start for row in rows], dtype=np.int64)
        parts = self.corpus.parts(starts, length, shortest=shortest).tolist()
        lengths = torch.tensor([last - first for _, first, last in parts], device=device)
        cut = [[table[index, first:last] for index, first, last in parts] for table in tables]
        return [torch.nn.utils.rnn.pad_sequence(some, batch_first=True).to(device) for some in cut], lengths
