"""Whether autograd says what the loss does: against central differences, and in the right direction at the start.

A loss may stop the gradient on purpose (CISPO's ratio). Then autograd must equal the differences of another function:
the same one with everything that left the graph held constant. `_Constants` holds it, so a stop can be told from a
mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whet.algorithms.cells import Cell
from whet.train.check import probes
from whet.train.check.findings import Broken, Supply, Verdict, answer, attempt, copied, note, passed, place_of, shape_of

STEPS = (1e-5, 1e-3)  # the second is for cells that compute in float32, whose rounding drowns the first
CLOSE = 5e-3  # of the size of a gradient; what is wrong in practice is wrong by a factor
SMALL = 2e-6  # where every gradient is 0 (a KL at ratio 1) there is no size to be measured by
ENOUGH = 0.5  # of the values must be away from kinks
LEAVES_GRAPH = frozenset(
    {
        *(torch.detach, Tensor.detach, Tensor.detach_, Tensor.data.__get__),  # type: ignore[attr-defined]
        *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__float__),
    }
)
Loss = Callable[[Tensor, AbstractContextManager[object]], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Autograd and differences of one term, and where the function is smooth enough to tell."""

    term: str
    analytic: Tensor
    numeric: Tensor
    smooth: Tensor
    trained: Tensor  # the mask, where there is one

    @property
    def can_tell(self) -> bool:
        """Whether enough trained values are away from kinks."""
        return float(self.smooth[self.trained].double().mean()) >= ENOUGH

    @property
    def wrong(self) -> Tensor:
        """Where they differ."""
        return self.smooth & ((self.analytic - self.numeric).abs() > _tolerance(self.analytic, self.numeric))

    @property
    def apart(self) -> str:
        """How far they are apart."""
        return f"{float(((self.analytic - self.numeric).abs() * self.smooth).max()):.1g} apart at most"

    @property
    def worst(self) -> str:
        """Where they are furthest apart."""
        apart = torch.where(self.wrong, (self.analytic - self.numeric).abs(), -1.0)
        at = tuple((apart == apart.max()).nonzero()[0].tolist())
        gave = f"autograd gives {float(self.analytic[at]):.4g} and differences {float(self.numeric[at]):.4g}"
        where = place_of(at, probes.labels_of(self.term, apart))
        return f"{gave} at {where} ({int(self.wrong.sum())} values of {self.term} differ)"


def weights_of(supply: Supply) -> Tensor:
    """Weights as of a whole step: positive on what is trained, no two alike, so that none can stand for another."""
    mask = probes.trained_mask(supply)
    return mask / mask.sum() * torch.linspace(0.5, 1.5, mask.numel(), dtype=torch.float64).view(mask.shape)


def losses_of(cell: Cell, supply: Supply, on: str) -> Tensor:
    """What the cell gives, once it has proved to be one loss per token or per unit."""
    found, wanted = attempt(cell, supply, on), probes.trained_mask(supply)
    if found.shape == wanted.shape:
        return found
    each = "token" if "mask" in supply else "unit"
    cause = f"return one loss per {each}, trained or not"
    if found.numel() == 1:
        cause = f"it averages or sums the batch; return one loss per {each}, what is weighed is added up later"
    elif found.dim() < wanted.dim() or found.shape[-1] == 1:
        cause = f"it drops or sums a dimension; return one loss per {each}, where need be with expand_as"
    raise Broken(f"returns {shape_of(found)} for {shape_of(wanted)} on {on}: {cause}")


def pull(cell: Cell, supply: Supply, weights: Tensor, on: str) -> dict[str, Tensor | None]:
    """d(weighted loss) by autograd in each term that the model says; None where the loss does not depend on it."""
    leaves = {term: supply[term].clone().requires_grad_() for term in probes.trained_terms(supply)}
    # What a model says is no leaf either; a leaf would refuse changes in place with a message about leaves.
    loss = losses_of(cell, {**supply, **{term: leaf * 1 for term, leaf in leaves.items()}}, on)
    if not loss.requires_grad:
        return dict.fromkeys(leaves)
    backward = partial(torch.autograd.grad, (loss * weights).sum(), list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, answer(backward, [], f"the backward pass of {on}"), strict=True))


def check_gradient(cell: Cell, supply: Supply) -> Verdict:
    """Autograd equals central differences, of the loss itself or with what left the graph held constant."""
    points = {"ordinary input": supply, probes.start_name(supply): probes.start(supply)}
    verdicts = [
        _check_at(cell, given, term, on) for on, given in points.items() for term in probes.trained_terms(supply)
    ]
    return next((verdict for verdict in verdicts if verdict[0] == "note"), verdicts[0])


def _check_at(cell: Cell, supply: Supply, term: str, on: str) -> Verdict:
    weights = weights_of(supply)
    slope = pull(cell, supply, weights, on)[term]
    if slope is None:
        raise Broken(
            f"no gradient reaches {term}, so nothing would be learned: everything passes a detach, no_grad or item"
        )

    def loss(values: Tensor, around: AbstractContextManager[object]) -> float:
        # As a tensor that needs a gradient: what a cell does under no_grad must look as it does in training.
        given = {**supply, term: values.clone().requires_grad_() * 1}
        with around:
            losses = losses_of(cell, given, on)
        return float((losses.detach() * weights).sum())

    trained = supply.get("mask", torch.ones_like(slope, dtype=torch.bool))
    compare = partial(_compared, loss, term, supply[term], slope, trained)
    plain = compare(None)
    if not plain.can_tell:
        return note(f"too rough to compare autograd with differences: most values are at kinks on {on}")
    if not bool(plain.wrong.any()):
        judged = int((plain.smooth & plain.trained).sum())
        return passed(f"autograd equals central differences ({plain.apart} over {judged} values)")
    constants = _Constants()
    held = compare(constants)
    if constants.count and held.can_tell and not bool(held.wrong.any()):
        return note(
            f"stops the gradient: {plain.worst}; with the {constants.count} value{'s' * (constants.count > 1)} that "
            f"{'leave' if constants.count > 1 else 'leaves'} the graph (detach, no_grad, item) held constant they are "
            f"equal ({held.apart}), so it is right if the stop is meant, as CISPO's is"
        )
    cause = (
        "the stops of the gradient do not explain it" if constants.count else "nothing stops the gradient on the way"
    )
    raise Broken(f"{plain.worst} on {on}; {cause}: a backward of your own is wrong, or values pass outside torch")


def _compared(
    loss: Loss, term: str, at: Tensor, analytic: Tensor, trained: Tensor, constants: _Constants | None
) -> Comparison:
    """Against differences with the smallest step that rounding allows."""
    found = None
    for step in STEPS:
        forward, backward = _differences(loss, at, step, constants)
        numeric = (forward + backward) / 2
        # At a kink the two sides differ: there is no derivative that autograd could get wrong.
        smooth = (forward - backward).abs() <= _tolerance(analytic, numeric)
        found = Comparison(term=term, analytic=analytic, numeric=numeric, smooth=smooth, trained=trained)
        if found.can_tell:
            break
    assert found is not None
    return found


def _differences(loss: Loss, at: Tensor, step: float, constants: _Constants | None) -> tuple[Tensor, Tensor]:
    """Differences to the right and to the left of every entry."""
    if constants is not None:
        constants.forget()
    around: AbstractContextManager[object] = constants or nullcontext()
    middle = loss(at, around)
    forward, backward = torch.zeros_like(at), torch.zeros_like(at)
    for index in torch.ones_like(at).nonzero():
        moved, entry = at.clone(), tuple(index)
        moved[entry] += step
        forward[entry] = (loss(moved, around) - middle) / step
        moved[entry] = at[entry] - step
        backward[entry] = (middle - loss(moved, around)) / step
    return forward, backward


class _Constants(TorchFunctionMode):
    """Keeps what leaves the graph in a first evaluation and gives the same again in all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        """The next evaluation is a first one."""
        self._kept: list[tuple[Any, Any]] = []
        self._next: int | None = None
        self._grad_off = False

    @property
    def count(self) -> int:
        """How many values leave the graph in one evaluation."""
        return len(self._kept)

    def __enter__(self) -> _Constants:
        self._next = 0 if self._kept else None
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Seen for no_grad in the cell, and not for the forward of an autograd.Function, which has a backward.
        if func is torch._C._set_grad_enabled:
            self._grad_off = not args[0]
            return result
        if not (self._grad_off or func in LEAVES_GRAPH):
            return result
        if self._next is None:
            self._kept.append((func, copied(result)))
            return result
        known, kept = self._kept[self._next] if self._next < len(self._kept) else (None, None)
        self._next += 1
        return copied(kept) if known == func else result  # another path through the code has nothing kept for it


def _tolerance(analytic: Tensor, numeric: Tensor) -> Tensor:
    size = analytic.abs() + numeric.abs()
    return CLOSE * (size + size.mean()) + SMALL
