"""How well a bidirectional model predicts masked tokens of held-out text, and the bound on its likelihood.

For a text x of L tokens the model bounds −log p(x) by the mean over k = 1 … L, and over all sets M of k tokens, of
(L / k) · Σ_{i in M} −log π(x_i | the tokens outside of M): the loss of masked diffusion integrated over time, for any
schedule (Ou et al. 2024; Sahoo et al. 2024). It is estimated without bias by drawing k and M.

The draws are those of a window's number, the same in every run and at every step, so that two evaluations differ by
their models alone. The k of a window are spread evenly over 1 … L, and shifted from window to window.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from whet.distributed.world import World
from whet.evaluate.calibration import share_of_sums
from whet.evaluate.held_out_text import CPU_TOKENS, CUDA_TOKENS, HeldOutText
from whet.evaluate.statistics import flat_metrics, mean_interval
from whet.models.layers.decoder_config import autocast
from whet.models.masked_logprobs import mask_id, masked_likelihoods
from whet.models.protocol import CausalLM
from whet.streams import stream_key, uniform

DRAWS = 4  # sets of masked tokens of each window for the bound
RATIO = 0.15  # of the tokens, masked for the masked loss: that of Devlin et al. 2018
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, are spread evenly however many there are


@torch.no_grad()
def masked_metrics(model: CausalLM, text: HeldOutText, world: World, *, has_bound: bool) -> dict[str, float]:
    """`eval/masked_loss` and `eval/masked_accuracy` of tokens at a fixed ratio; with `has_bound` also `eval/bound`.

    The bound is in nats a token, `eval/bound_bits_per_character` and `eval/bound_bits_per_byte` in bits. All tokens of
    a window are predicted, the first one too. Intervals are over windows: they cover the draws of masks and of text.
    """
    length = text.windows.shape[1]
    share = max(1, round(RATIO * length))
    rows = [row for some in _batches(text.windows, world) for row in _read(model, *some, share, world, has_bound)]
    told = world.interleave(rows)
    found: dict[str, float] = {
        "eval/masked_loss": -sum(row[0] for row in told) / (share * len(told)),
        **flat_metrics({"masked_accuracy": share_of_sums([(row[1], share) for row in told])}),
        "eval/windows": float(len(told)),
    }
    if has_bound:
        bound = mean_interval([row[2] / length for row in told])
        bits = bound.mean / math.log(2)
        found |= {
            **flat_metrics({"bound": bound}),
            "eval/bound_bits_per_character": bits * text.tokens_per_character,
            "eval/bound_bits_per_byte": bits * text.tokens_per_byte,
        }
    return found


def masked_counts(numbers: Tensor, length: int) -> Tensor:
    """(n, DRAWS): how many tokens of windows with these numbers are masked, from 1 to `length`."""
    shift = ((numbers.double() + 1) * GOLDEN) % 1
    spread = (torch.arange(DRAWS) + shift[:, None]) / DRAWS
    return (1 + (spread * length).long()).clamp(max=length)


def drawn_masks(numbers: Tensor, counts: Tensor, length: int, *, draw: int) -> Tensor:
    """(n, length): so many tokens of each window, by the draw and the window's number alone."""
    keys = torch.tensor([stream_key((draw, number)) for number in numbers.tolist()])
    ranks = uniform(keys[:, None], torch.arange(length)).argsort(dim=1).argsort(dim=1)
    return ranks < counts[:, None]


def _batches(windows: Tensor, world: World) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's windows and their numbers."""
    size = max(1, (CUDA_TOKENS if world.device.type == "cuda" else CPU_TOKENS) // windows.shape[1])
    numbers = torch.arange(world.rank, len(windows), world.size)
    for some in torch.split(numbers, size):
        yield windows[some], some


def _read(
    model: CausalLM, windows: Tensor, numbers: Tensor, share: int, world: World, has_bound: bool
) -> list[list[float]]:
    """For each window the log-probs and hits at the fixed ratio and, else 0, its estimate of the bound in nats."""
    length = windows.shape[1]
    fixed = torch.full_like(numbers, share)
    logprobs, hits = _likelihoods(model, windows, drawn_masks(numbers, fixed, length, draw=DRAWS), world)
    bounds = torch.zeros_like(logprobs)
    for draw, counts in enumerate(masked_counts(numbers, length).T if has_bound else ()):
        masked, _ = _likelihoods(model, windows, drawn_masks(numbers, counts, length, draw=draw), world)
        bounds -= masked * length / counts / DRAWS
    return torch.stack([logprobs, hits, bounds], dim=1).tolist()


def _likelihoods(model: CausalLM, windows: Tensor, masked: Tensor, world: World) -> tuple[Tensor, Tensor]:
    targets, chosen = windows.to(world.device), masked.to(world.device)
    shown = targets.masked_fill(chosen, mask_id(model))
    lengths = torch.full((len(targets),), targets.shape[1], device=world.device)
    with autocast(world.device):
        logprobs, hits = masked_likelihoods(model, shown, lengths, targets, chosen)
    return logprobs.cpu(), hits.cpu()
