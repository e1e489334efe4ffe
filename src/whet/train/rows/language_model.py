"""Language modelling: windows of a corpus, every token of which is predicted from those before it."""

from collections.abc import Sequence

import torch

from whet.records import Sequences
from whet.train.rows.sft import fit_sequences
from whet.train.rows.text_trainer import TextTrainer, Window


class LanguageModelTrainer(TextTrainer):
    """Cross-entropy on windows of a text."""

    def fit(self, rows: Sequence[Window]) -> tuple[dict[str, float], int]:
        sequences, parts = self.sequences(rows), self.parts
        return fit_sequences(parts.policy, parts.optimizer, sequences, self.objective, self.config, self.world)

    def sequences(self, rows: Sequence[Window]) -> Sequences:
        """A window has a token more than the context: the first is given. One token alone predicts nothing."""
        (tokens,), lengths = self.split(rows, [self.tokens(rows, self.context + 1)], shortest=2)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        return Sequences(tokens=tokens, mask=(columns > 0) & (columns < lengths[:, None]), lengths=lengths)
