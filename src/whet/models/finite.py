"""What to say when a model's numbers are not finite: which weight is damaged, or that the arithmetic overflowed.

Looked for only after a log-prob or a score was seen to be NaN or infinite: reading every weight takes a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from whet.errors import RunFailed


class Named(Protocol):
    """What has weights with names."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...


def not_finite(what: str, model: Named) -> RunFailed:
    """The end of whatever needs the model, in one sentence that begins with what was seen, and where."""
    return RunFailed(f"{what}: {_cause(model)}")


def check_head(model: Named, head: Tensor | None, name: str) -> None:
    """Refuses a head with infinite numbers: the tokens that they forbid would only never be sampled."""
    if head is None or bool(head.detach().sum().isfinite()):
        return
    if not bool(head.detach().isfinite().all()):
        raise not_finite(f"{name}: the model's logits are not finite", model)


def doubt(head: Tensor | None) -> Tensor | float:
    """What to add to log-probs: −0, which changes none, or NaN where a number of the head is not finite.

    An infinite one may make a logit −∞, which looks like a token that the model forbids. A sum sees it without waiting
    for the device.
    """
    return -0.0 if head is None else -(head.detach().sum(dtype=torch.float32) * 0).abs()


def check_logprobs(logprobs: Sequence[float], policy: Named, *, prompt: int) -> None:
    """Refuses what was drawn from logits that are no distribution: NaN, or an infinity above all others."""
    if not all(map(math.isfinite, logprobs)):
        token = next(index for index, value in enumerate(logprobs) if not math.isfinite(value))
        raise not_finite(
            f"the model's logits are not finite at token {token + 1} of its completion of prompt {prompt + 1}", policy
        )


def _cause(model: Named) -> str:
    for name, weight in model.named_parameters():
        wrong = ~weight.detach().isfinite()
        count = int(wrong.sum())
        if count:
            value = float(weight.detach()[wrong][0])
            return (
                f"{count} of the {weight.numel()} numbers of its weight {name} are not finite (the first is {value}), "
                "so the checkpoint is damaged or training has diverged; use an intact one"
            )
    return "all of its weights are finite, so the arithmetic overflows; compute in fp32, or use another checkpoint"
