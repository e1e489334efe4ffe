"""Language modelling: windows of a corpus, every token of which is predicted from those before it."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from whet.algorithms.table import OBJECTIVES
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.records import Sequences
from whet.runs.directory import RunDirectory
from whet.train.rows.examples import Note
from whet.train.rows.sft import fit_sequences
from whet.train.session.session import Checkpointed
from whet.train.setup.build import build_parts
from whet.train.setup.corpora import as_tensor, corpus_of, token_file, window_starts


class LanguageModelTrainer:
    """Cross-entropy on windows of a text, drawn by (seed, step): resuming needs no state."""

    kept: Mapping[str, Checkpointed] = {}

    def __init__(self, config: OfflineConfig, world: World, note: Note) -> None:
        self.config, self.world = config, world
        self.parts = build_parts(config, world)
        self.objective = OBJECTIVES[config.objective.name]
        task = corpus_of(self.parts.task, f"objective {config.objective.name!r}")
        self.corpus = token_file(task, self.parts.tokenizer)
        self.separate = task.documents == "separate"
        self.context = self.parts.policy.context
        note(
            f"corpus: {self.corpus.training_tokens:,} tokens to learn from ({self.corpus.characters['training']:,} "
            f"characters of {task.path}) and {len(self.corpus.held_out):,} held out, the end of the text"
        )

    def rows(self, step: int) -> Sequence[int]:
        """The first tokens of this rank's windows."""
        count, seed = self.config.batch_size, self.config.seed
        starts = window_starts(self.corpus.training_tokens, count, self.context, seed=seed, step=step)
        return self.world.shard(starts.tolist())

    def fit(self, rows: Sequence[int]) -> tuple[dict[str, float], int]:
        """One optimizer step; returns metrics and the number of trained tokens, over all ranks."""
        sequences, parts = self._sequences(np.array(rows)), self.parts
        return fit_sequences(parts.policy, parts.optimizer, sequences, self.objective, self.config, self.world)

    def measure(self) -> dict[str, float]:
        """Nothing besides the likelihood of held-out text, which every run on a corpus measures (`Parts.measure`)."""
        return {}

    def conclude(self, run: RunDirectory, note: Note) -> None:
        """Nothing is left to do after the last step."""

    def _sequences(self, starts: np.ndarray) -> Sequences:
        """A row for each window; where documents are separate, for each part of a document in a window."""
        length = self.context + 1
        windows = as_tensor(self.corpus.windows(starts, length))
        if not self.separate:
            return self._on_device(windows, torch.full((len(windows),), length))
        parts = [
            windows[row, first:last]
            for row, start in enumerate(starts.tolist())
            for first, last in self.corpus.document_parts(start, length)
            if last - first > 1  # one token alone predicts nothing
        ]
        lengths = torch.tensor([len(part) for part in parts])
        return self._on_device(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), lengths)

    def _on_device(self, tokens: Tensor, lengths: Tensor) -> Sequences:
        columns, device = torch.arange(tokens.shape[1]), self.world.device
        mask = (columns > 0) & (columns < lengths[:, None])
        return Sequences(tokens=tokens.to(device), mask=mask.to(device), lengths=lengths.to(device))
