"""How well a bidirectional model predicts masked tokens of held-out text, and the bound on its likelihood.

For a text x of L tokens the model bounds −log p(x) by the mean over k = 1 … L, and over all sets M of k tokens, of
(L / k) · Σ_{i in M} −log π(x_i | the tokens outside of M): the loss of masked diffusion integrated over time, for any
schedule (Ou et al. 2024; Sahoo et al. 2024). It is estimated without bias by drawing k and M.

The draws are those of a window's number, the same in every run and at every step, so that two evaluations differ by
their models alone. The k of a window are spread evenly over 1 … L, and shifted from window to window.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from whet.distributed.world import World
from whet.evaluate.calibration import mean_of_sums, share_of_sums
from whet.evaluate.held_out_text import HeldOutText, Rows
from whet.evaluate.statistics import flat_metrics
from whet.models.layers.decoder_config import autocast
from whet.models.masked_logprobs import mask_id, masked_likelihoods
from whet.models.protocol import CausalLM
from whet.streams import stream_key, uniform

DRAWS = 4  # sets of masked tokens of each window for the bound
RATIO = 0.15  # of the tokens, masked for the masked loss: that of Devlin et al. 2018
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, are spread evenly however many there are


class MaskedRow(NamedTuple):
    """What is read of a row: a window, or a part of one."""

    logprobs: float  # sum over the tokens masked at the fixed ratio
    hits: float  # how many of these were the likeliest
    masked: float  # how many there are
    bound: float  # estimate in nats; 0 if there is none
    length: float


@torch.no_grad()
def masked_metrics(model: CausalLM, text: HeldOutText, world: World, *, has_bound: bool) -> dict[str, float]:
    """`eval/masked_loss` and `eval/masked_accuracy` of tokens at a fixed ratio; with `has_bound` also `eval/bound`.

    The bound is in nats a token, `eval/bound_bits_per_character` and `eval/bound_bits_per_byte` in bits. All tokens of
    a window are predicted, the first one too. Intervals are over windows (over the parts of separate documents in
    them): they cover the draws of masks and of text.
    """
    batches = world.sharding.evened(text.batches(world), *[model] * (1 + DRAWS * has_bound))
    told = world.interleave([row for some in batches for row in _read(model, some, world, has_bound)])
    rows = [MaskedRow(*row) for row in told]
    found: dict[str, float] = {
        "eval/masked_loss": -sum(row.logprobs for row in rows) / sum(row.masked for row in rows),
        **flat_metrics({"masked_accuracy": share_of_sums([(row.hits, int(row.masked)) for row in rows])}),
        "eval/windows": float(len(rows)),
    }
    if has_bound:
        bound = mean_of_sums([(row.bound, int(row.length)) for row in rows])
        bits = bound.mean / math.log(2)
        found |= {
            **flat_metrics({"bound": bound}),
            "eval/bound_bits_per_character": bits * text.tokens_per_character,
            "eval/bound_bits_per_byte": bits * text.tokens_per_byte,
        }
    return found


def masked_counts(numbers: Tensor, lengths: Tensor) -> Tensor:
    """(n, DRAWS): how many tokens of rows with these numbers are masked, from 1 to a row's length."""
    shift = ((numbers.double() + 1) * GOLDEN) % 1
    spread = (torch.arange(DRAWS) + shift[:, None]) / DRAWS
    return torch.minimum(1 + (spread * lengths[:, None]).long(), lengths[:, None])


def drawn_masks(numbers: Tensor, counts: Tensor, lengths: Tensor, *, draw: int) -> Tensor:
    """(n, longest): so many tokens of each row, by the draw and the row's number alone."""
    keys = torch.tensor([stream_key((draw, number)) for number in numbers.tolist()])
    columns = torch.arange(int(lengths.max()))
    drawn = uniform(keys[:, None], columns).masked_fill(
        columns >= lengths[:, None], 1.0
    )  # those after the end are last
    return drawn.argsort(dim=1, stable=True).argsort(dim=1) < counts[:, None]


def _read(model: CausalLM, rows: Rows, world: World, has_bound: bool) -> list[list[float]]:
    """The numbers of a `MaskedRow` for each row."""
    numbers, lengths = rows.numbers, rows.lengths
    shares = (RATIO * lengths.double()).round().long().clamp(min=1)
    logprobs, hits = _likelihoods(model, rows, drawn_masks(numbers, shares, lengths, draw=DRAWS), world)
    bounds = torch.zeros_like(logprobs)
    for draw, counts in enumerate(masked_counts(numbers, lengths).T if has_bound else ()):
        masked, _ = _likelihoods(model, rows, drawn_masks(numbers, counts, lengths, draw=draw), world)
        bounds -= masked * lengths / counts / DRAWS
    return torch.stack([logprobs, hits, shares.double(), bounds, lengths.double()], dim=1).tolist()


def _likelihoods(model: CausalLM, rows: Rows, masked: Tensor, world: World) -> tuple[Tensor, Tensor]:
    targets, lengths, chosen = (table.to(world.device) for table in (rows.tokens, rows.lengths, masked))
    shown = targets.masked_fill(chosen, mask_id(model))
    with autocast(world.device):
        logprobs, hits = masked_likelihoods(model, shown, lengths, targets, chosen)
    return logprobs.cpu(), hits.cpu()
