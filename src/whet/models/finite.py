"""Diagnosis of non-finite outputs: names the damaged weight, or says that the arithmetic overflowed.

Runs only after a log-prob or a score was NaN or infinite, because it reads every weight.
"""

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from whet.errors import RunFailed


class HasParameters(Protocol):
    """A model with named weights."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...


def not_finite(what: str, model: HasParameters) -> RunFailed:
    """The error to raise: `what` was seen and where, then the cause."""
    return RunFailed(f"{what}: {_cause(model)}")


def check_head(model: HasParameters, head: Tensor | None, name: str) -> None:
    """Refuses a head with infinite weights: their tokens would silently never be sampled."""
    if head is None or bool(head.detach().sum().isfinite()):
        return
    if not bool(head.detach().isfinite().all()):
        raise not_finite(f"{name}: the model's logits are not finite", model)


def _cause(model: HasParameters) -> str:
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
