"""Denoising: windows of a corpus, some tokens of which are hidden and predicted from all the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.masking import Masked
from whet.batching import global_weights, micro_batches, tokens_that_fit
from whet.models.layers.decoder_config import autocast
from whet.models.masked_logprobs import mask_id, masked_logprobs
from whet.streams import name_number, stream_key, uniform
from whet.train.optimizers.optimizer import descend, finite
from whet.train.rows.text_trainer import TextTrainer, Window

STREAM = name_number("masking")  # of the draws of masks


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrupted:
    """Rows of text, (B, T), as the model is shown them and as they are."""

    shown: Tensor  # ids
    targets: Tensor  # ids
    chosen: Tensor  # bool: predicted
    weights: Tensor  # of each token's loss; 0 where it is not predicted
    counted: Tensor  # bool: the tokens that the loss is a mean over
    lengths: Tensor  # (B,)


class DenoisingTrainer(TextTrainer):
    """Masked diffusion or masked language modelling on windows of a text. Masks are drawn by (seed, step, row)."""

    def fit(self, rows: Sequence[Window]) -> tuple[dict[str, float], int]:
        text = self.corrupted(rows)
        sums: list[Tensor] = []
        descent = descend(
            self._losses(text, sums), [self.parts.optimizer], self.world, max_grad_norm=self.config.update.max_grad_norm
        )
        assert descent is not None
        counts = torch.stack([text.counted.sum(), text.chosen.sum()]).double().cpu()
        found = self.world.sum(torch.cat([counts, sum(sums, torch.zeros(1, dtype=torch.float64))]))
        tokens, chosen, logprobs = found.tolist()
        metrics = {"loss": descent.loss, "grad_norm": descent.grad_norms[0]}
        metrics["masked_loss"] = -logprobs / max(1.0, chosen)
        return metrics, int(tokens)

    def corrupted(self, rows: Sequence[Window]) -> Corrupted:
        """The windows with their masks."""
        assert self.objective.masking is not None
        targets = self.tokens(rows, self.context)
        draws = masking_draws(rows, self.context, seed=self.config.seed, batch_size=self.config.batch_size)
        masked: Masked = call(self.objective.masking, draws)
        mask = mask_id(self.parts.policy)
        random_ids = (draws["id_draws"] * mask).long()
        shown = torch.where(masked.replaced, random_ids, targets).masked_fill(masked.hidden, mask)
        tables = [shown, targets, masked.chosen, masked.weights.float(), masked.counted]
        (shown, targets, chosen, weights, counted), lengths = self.split(rows, tables, shortest=1)
        return Corrupted(shown=shown, targets=targets, chosen=chosen, weights=weights, counted=counted, lengths=lengths)

    def _losses(self, text: Corrupted, sums: list[Tensor]) -> Iterator[Tensor]:
        """The loss of each micro-batch; they add up to the loss of the step over all ranks."""
        policy, world = self.parts.policy, self.world
        shares = global_weights(self.objective.weighting, text.counted, world, max_tokens=self.context) * text.weights
        most = self.config.update.micro_batch_tokens or tokens_that_fit(policy)
        for rows in world.sharding.evened(micro_batches(text.lengths, most), policy):
            width = int(text.lengths[rows].max())
            shown, targets, chosen = (table[rows, :width] for table in (text.shown, text.targets, text.chosen))
            with autocast(world.device):
                logprobs = masked_logprobs(policy, shown, text.lengths[rows], targets, chosen)
            sums.append(logprobs.detach().sum(dtype=torch.float64).cpu()[None])
            loss = (call(self.objective.loss, {"logprobs": logprobs}) * shares[rows, :width]).sum()
            yield finite(loss, tokens=shown, logprobs=logprobs)


def masking_draws(rows: Sequence[Window], length: int, *, seed: int, batch_size: int) -> dict[str, Tensor]:
    """The uniform numbers of a step's masks, each named by its seed, step and row, and the terms of a masking."""
    step = rows[0].step if rows else 0
    keys = torch.tensor([stream_key((STREAM, seed, row.step, row.row)) for row in rows], dtype=torch.int64)[:, None]
    columns = torch.arange(length)
    common = torch.tensor([stream_key((STREAM, seed, step))], dtype=torch.int64)
    return {
        "step_draw": uniform(common, torch.zeros(1, dtype=torch.int64))[0],
        "row_draws": uniform(keys, torch.tensor([3 * length]))[:, 0],
        "row_places": torch.tensor([row.row / batch_size for row in rows], dtype=torch.float64),
        "token_draws": uniform(keys, columns),
        "kind_draws": uniform(keys, columns + length),
        "id_draws": uniform(keys, columns + 2 * length),
    }
