"""Log-probs of sampled tokens are finite in every legitimate case: where they are not, the logits were not either."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whet.models.finite import not_finite
from whet.models.protocol import CausalLM


def doubt(head: Tensor | None) -> Tensor | float:
    """What to add to log-probs: −0, which changes none, or NaN where a number of the head is not finite.

    An infinite one may make a logit −∞, which looks like a token that the model forbids. A sum sees it without waiting
    for the device.
    """
    return -0.0 if head is None else -(head.detach().sum(dtype=torch.float32) * 0).abs()


def check_logprobs(logprobs: Sequence[float], policy: CausalLM, *, prompt: int) -> None:
    """Refuses what was drawn from logits that are no distribution: NaN, or an infinity above all others."""
    if not all(map(math.isfinite, logprobs)):
        token = next(index for index, value in enumerate(logprobs) if not math.isfinite(value))
        raise not_finite(
            f"the model's logits are not finite at token {token + 1} of its completion of prompt {prompt + 1}", policy
        )
