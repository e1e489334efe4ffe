"""Asking a cell, which may be a user's own: what it cannot do ends the run in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.cells import Cell, call, name
from whet.errors import RunFailed
from whet.imports import one_line

MISTAKES = (ValueError, TypeError, IndexError, KeyError, RuntimeError, AttributeError, ZeroDivisionError)


def ask(cell: Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """What the cell makes of the terms that it names, in one of these shapes."""
    try:
        answer: Tensor = call(cell, supply)
        shape = tuple(answer.shape)
    except torch.OutOfMemoryError:
        raise
    except MISTAKES as error:
        raise RunFailed(f"{name(cell)!r} failed: {one_line(error)} (see whet check-loss)") from error
    if shape not in [tuple(allowed) for allowed in shapes]:
        wanted = " or ".join(str(tuple(allowed)) for allowed in shapes)
        raise RunFailed(f"{name(cell)!r} gave a result of shape {shape} instead of {wanted} (see whet check-loss)")
    return answer


def ask_loss(cell: Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """The same of a loss, which must hang together with what is trained."""
    losses = ask(cell, supply, shapes=shapes)
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise RunFailed(f"{name(cell)!r} has no gradient in what the model says, so it trains nothing")
    return losses
