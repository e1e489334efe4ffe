"""Likelihood of held-out text: loss, bits per character and byte, and next-token accuracy."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whet.distributed.world import World
from whet.evaluate.calibration import share_of_sums
from whet.evaluate.statistics import flat_metrics
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import token_likelihoods
from whet.models.protocol import CausalLM

CPU_TOKENS, CUDA_TOKENS = 16_384, 262_144  # of a forward pass


class Rows(NamedTuple):
    """Rows of one forward pass: windows, or parts of them."""

    tokens: Tensor  # (B, T) ids, zeros after the end of a row
    lengths: Tensor  # (B,)
    numbers: Tensor  # (B,) among the rows of all ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutText:
    """Windows of held-out text, and how much text their tokens are.

    With `parts` each of these is a row of its own, with positions from 0: a token attends to its own document alone.
    """

    windows: Tensor  # (n, context + 1) int64: each window's first token is given; (n, context): none is
    tokens_per_character: float
    tokens_per_byte: float
    parts: Tensor | None = None  # (m, 3) int64: window, first and past-the-last column; None: every window is whole

    def batches(self, world: World) -> Iterator[Rows]:
        """This rank's rows, as many at a time as a forward pass takes."""
        spans = self._spans()
        width = int((spans[:, 2] - spans[:, 1]).max())
        most = CUDA_TOKENS if world.device.type == "cuda" else CPU_TOKENS
        for numbers in torch.split(torch.arange(len(spans))[world.rank :: world.size], max(1, most // width)):
            own = spans[numbers]
            cut = [self.windows[window, first:last] for window, first, last in own.tolist()]
            if cut:
                yield Rows(pad_sequence(cut, batch_first=True), own[:, 2] - own[:, 1], numbers)

    def _spans(self) -> Tensor:
        if self.parts is not None:
            return self.parts
        windows, length = self.windows.shape
        whole = torch.tensor([0, length]).expand(windows, 2)
        return torch.cat([torch.arange(windows)[:, None], whole], dim=1)


@torch.no_grad()
def text_metrics(policy: CausalLM, text: HeldOutText, world: World) -> dict[str, float]:
    """`eval/loss` in nats a token, `eval/bits_per_character`, `eval/bits_per_byte` and `eval/token_accuracy`.

    Windows are consecutive and a model sees no text before its window, so the first tokens of each are harder. The
    accuracy's interval counts windows, because tokens of one are correlated. The first token of a row is not predicted;
    bits per character and byte count it like the others.
    """
    batches = world.sharding.evened(text.batches(world), policy)
    told = world.interleave([row for some in batches for row in _read(policy, some, world)])
    loss = -sum(logprob for logprob, _, _ in told) / sum(targets for _, _, targets in told)
    bits = loss / math.log(2)
    return {
        "eval/loss": loss,
        "eval/bits_per_character": bits * text.tokens_per_character,
        "eval/bits_per_byte": bits * text.tokens_per_byte,
        **flat_metrics({"token_accuracy": share_of_sums([(hits, int(targets)) for _, hits, targets in told])}),
        "eval/windows": float(len(told)),
    }


def _read(policy: CausalLM, rows: Rows, world: World) -> list[list[float]]:
    """For each row the summed log-prob of its targets, how many were the likeliest, and how many there are."""
    tokens, lengths = rows.tokens.to(world.device), rows.lengths.to(world.device)
    columns = torch.arange(tokens.shape[1], device=world.device)
    mask = (columns > 0) & (columns < lengths[:, None])
    with autocast(world.device):
        logprobs, hits = token_likelihoods(policy, tokens, lengths, mask)
    return torch.stack([logprobs, hits, lengths.double() - 1], dim=1).tolist()
