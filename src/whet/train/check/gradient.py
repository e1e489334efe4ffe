"""Whether the gradient of a loss is that of its value: autograd against central differences.

A loss may stop the gradient on purpose (CISPO's ratio). Then autograd must equal the differences of another function:
the same one with everything that left the graph held constant. `_Constants` does that, which tells a stop from a bug.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whet.algorithms.cells import Cell
from whet.train.check import probes
from whet.train.check.findings import ORDINARY, Broken, Note, answer, evaluate, require_finite, result_mask
from whet.train.check.probes import Supply

STEP = 1e-4  # in float32 smaller steps drown in rounding
CLOSE = 5e-3  # of the size of a derivative; what is wrong in practice is wrong by a factor
KINK = 0.05  # difference of the derivatives on both sides, of their size, that is not curvature
TINY = 1e-9  # absolute, for points where a derivative is 0 (a KL at ratio 1)
Around = Callable[[], AbstractContextManager[object]]  # makes the context of an evaluation
LEAVES_GRAPH = frozenset(
    {
        *(torch.detach, Tensor.detach, Tensor.detach_, Tensor.data.__get__),  # type: ignore[attr-defined]
        *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__float__),
    }
)


def weights_of(cell: Cell, supply: Supply) -> Tensor:
    """Weights as of a step: positive where the loss counts, all different, so that confusing two of them shows."""
    mask = result_mask(cell, supply)
    return mask / mask.sum() * torch.linspace(0.5, 1.5, mask.numel(), dtype=torch.float64).view(mask.shape)


def gradients(cell: Cell, supply: Supply, weights: Tensor, on: str) -> dict[str, Tensor]:
    """d(weighted loss) by autograd in each output of the model; 0 where the loss does not depend on it."""
    leaves = {term: supply[term].clone().requires_grad_() for term in probes.trained_terms(supply)}
    if not leaves:
        return {}
    # In training these are not leaves either; a leaf would refuse changes in place with a message about leaves.
    loss = evaluate(cell, {**supply, **{term: leaf * 1 for term, leaf in leaves.items()}}, on)
    if not loss.requires_grad:
        return {term: torch.zeros_like(leaf) for term, leaf in leaves.items()}
    total = (loss * weights).sum()
    backward = partial(torch.autograd.grad, total, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, answer(backward, [], f"the backward pass of {on}"), strict=True))


def check_finite(cell: Cell, supply: Supply) -> str:
    """Result and gradient are finite at the extremes that a run may meet, in the precision in which it trains."""
    inputs = {ORDINARY: supply, **probes.extremes(supply)}
    for on, given in inputs.items():
        single = probes.cast(given, torch.float32)
        require_finite(evaluate(cell, single, on), on)
        for slope in gradients(cell, single, weights_of(cell, single).float(), on).values():
            require_finite(slope, on, what="has a gradient of")
    return f"finite on {len(inputs)} inputs: {', '.join(inputs)}"


def check_gradient(cell: Cell, supply: Supply) -> str:
    """Autograd equals central differences, of the loss itself or with what left the graph held constant."""
    points = {ORDINARY: supply, probes.FIRST_STEP: probes.first_step(supply)}
    found = [_check_term(cell, given, term, on) for on, given in points.items() for term in probes.trained_terms(given)]
    return next((sentence for sentence in found if isinstance(sentence, Note)), found[0])


def _check_term(cell: Cell, supply: Supply, term: str, on: str) -> str:
    """The derivative in every entry of one output of the model, but for those at a kink."""
    weights = weights_of(cell, supply)
    slope = gradients(cell, supply, weights, on)[term]
    if on == ORDINARY and not bool(slope.any()):
        raise Broken(
            f"no gradient reaches {term}, so nothing would be learned: everything passes a detach, no_grad or item"
        )

    def losses(step: float, place: int, around: Around) -> Tensor:
        moved = supply[term].clone()
        moved.view(-1)[place] += step
        moved = moved.requires_grad_() * 1  # with a graph, so that a cell under no_grad does what it does in training
        with around():
            found = evaluate(cell, {**supply, term: moved}, on)
        return found.detach() * weights

    worst, stops, compared, kinks = 0.0, "", 0, 0
    for place, analytic in enumerate(slope.flatten().tolist()):
        numeric = _difference(losses, place, nullcontext)
        if numeric is None:
            kinks += 1
            continue
        compared += bool(analytic or numeric[0])
        if _close(analytic, *numeric):
            worst = max(worst, abs(analytic - numeric[0]))
            continue
        index = [int(number) for number in torch.unravel_index(torch.tensor(place), slope.shape)]
        numbers = f"autograd gives {analytic:.4g} and differences {numeric[0]:.4g} in {term}{index}"
        kept: list[tuple[Any, Any]] = []
        held = _difference(losses, place, lambda kept=kept: _Constants(kept))  # type: ignore[misc]
        if not kept or (held is not None and not _close(analytic, *held)):
            cause = "the stops of the gradient do not explain it" if kept else "nothing stops the gradient on the way"
            raise Broken(f"{numbers} on {on}; {cause}: a backward of your own is wrong, or values pass outside torch")
        stops = stops or numbers
    if kinks and not compared:
        return Note(f"too rough to compare autograd with differences: {term} is at a kink on {on}")
    if stops:
        return Note(
            f"stops the gradient: {stops}; with everything that leaves the graph (detach, no_grad, item) held "
            "constant they are equal, so it is right if the stop is meant, as CISPO's is"
        )
    return f"autograd equals central differences ({worst:.1g} apart)"


def _difference(
    losses: Callable[[float, int, Around], Tensor], place: int, around: Around
) -> tuple[float, float] | None:
    """The central difference and its uncertainty; None at a kink, where autograd can get no derivative wrong.

    With a quarter of the step, the difference of both sides is a quarter where the loss is curved, and as large at a
    kink. Losses are subtracted before they are added up: rows that did not change add no rounding.
    """
    middle = losses(0.0, place, around)
    (forward, backward), (nearer, behind) = (
        [float((losses(step, place, around) - middle).sum()) / step for step in (size, -size)]
        for size in (STEP, STEP / 4)
    )
    gap, size = abs(nearer - behind), max(abs(nearer), abs(behind))
    if gap > KINK * size + TINY and gap > abs(forward - backward) / 2:
        return None
    wide, narrow = (forward + backward) / 2, (nearer + behind) / 2
    return wide, abs(wide - narrow)


def _close(analytic: float, numeric: float, uncertainty: float) -> bool:
    return abs(analytic - numeric) <= CLOSE * max(abs(analytic), abs(numeric)) + 2 * uncertainty + TINY


class _Constants(TorchFunctionMode):
    """Adds what leaves the graph to an empty list of (function, result), or replays a list that an earlier one made."""

    def __init__(self, kept: list[tuple[Any, Any]]) -> None:
        super().__init__()
        self._kept = kept
        self._replayed = iter([*kept]) if kept else None
        self._grad_off = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Seen for no_grad in the cell, and not for the forward of an autograd.Function, which has a backward.
        if func is torch._C._set_grad_enabled:
            self._grad_off = not args[0]
            return result
        if not (self._grad_off or func in LEAVES_GRAPH):
            return result
        if self._replayed is None:
            self._kept.append((func, _copied(result)))
            return result
        known, kept = next(self._replayed, (None, None))
        return _copied(kept) if known == func else result  # another path through the code has nothing kept for it


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
