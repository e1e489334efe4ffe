"""Likelihood of held-out text: loss, bits per character and byte, and next-token accuracy."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.distributed.world import World
from whet.evaluate.calibration import share_of_sums
from whet.evaluate.statistics import flat_metrics
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import token_likelihoods
from whet.models.protocol import CausalLM

CPU_TOKENS, CUDA_TOKENS = 16_384, 262_144  # of a forward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutText:
    """Windows of held-out text, and how much text their tokens are."""

    windows: Tensor  # (n, context + 1) int64: each window's first token is given; (n, context): none is
    tokens_per_character: float
    tokens_per_byte: float


@torch.no_grad()
def text_metrics(policy: CausalLM, text: HeldOutText, world: World) -> dict[str, float]:
    """`eval/loss` in nats a token, `eval/bits_per_character`, `eval/bits_per_byte` and `eval/token_accuracy`.

    Windows are consecutive and a model sees no text before its window, so the first tokens of each are harder. The
    accuracy's interval counts windows, because tokens of one are correlated.
    """
    sums = [pair for some in _batches(text.windows, world) for pair in _read(policy, some, world)]
    told = world.interleave(sums)
    targets = text.windows.shape[1] - 1
    loss = -sum(logprob for logprob, _ in told) / (targets * len(told))
    bits = loss / math.log(2)
    return {
        "eval/loss": loss,
        "eval/bits_per_character": bits * text.tokens_per_character,
        "eval/bits_per_byte": bits * text.tokens_per_byte,
        **flat_metrics({"token_accuracy": share_of_sums([(hits, targets) for _, hits in told])}),
        "eval/windows": float(len(told)),
    }


def _batches(windows: Tensor, world: World) -> Iterator[Tensor]:
    most = CUDA_TOKENS if world.device.type == "cuda" else CPU_TOKENS
    mine = windows[world.rank :: world.size]
    return iter(torch.split(mine, max(1, most // windows.shape[1])))


def _read(policy: CausalLM, windows: Tensor, world: World) -> list[list[float]]:
    """For each window the summed log-prob of its tokens, and how many were the likeliest."""
    tokens = windows.to(world.device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, 0] = False
    lengths = torch.full((len(tokens),), tokens.shape[1], device=world.device)
    with autocast(world.device):
        logprobs, hits = token_likelihoods(policy, tokens, lengths, mask)
    return torch.stack([logprobs, hits], dim=1).tolist()
