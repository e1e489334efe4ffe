"""Whether autograd says what the loss does: against central differences, and in the direction of the advantage.

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

from whet.algorithms.cells import Cell, terms
from whet.train.check import probes
from whet.train.check.findings import Broken, Supply, Verdict, answer, attempt, copied, note, passed, shape_of

STEPS = (1e-5, 1e-3)  # the second is for cells that compute in float32, whose rounding drowns the first
CLOSE = 5e-3  # of the size of a gradient; what is wrong in practice is wrong by a factor
SMALL = 2e-6  # where every gradient is 0 (a KL at ratio 1) there is no size to be measured by
ENOUGH = 0.5  # of the tokens must be away from kinks
LEAVES_GRAPH = frozenset(
    {
        *(torch.detach, Tensor.detach, Tensor.detach_, Tensor.data.__get__),  # type: ignore[attr-defined]
        *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__float__),
    }
)
Loss = Callable[[Tensor, AbstractContextManager[object]], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Autograd and differences, both (B, T), and where the function is smooth enough to tell."""

    analytic: Tensor
    numeric: Tensor
    smooth: Tensor
    mask: Tensor

    @property
    def can_tell(self) -> bool:
        """Whether enough trained tokens are away from kinks."""
        return float(self.smooth[self.mask].double().mean()) >= ENOUGH

    @property
    def wrong(self) -> Tensor:
        """Where they differ, (B, T)."""
        return self.smooth & ((self.analytic - self.numeric).abs() > _tolerance(self.analytic, self.numeric))


def token_weights(mask: Tensor) -> Tensor:
    """Weights as of a whole step: positive on trained tokens, no two alike, so that none can stand for another."""
    return mask / mask.sum() * torch.linspace(0.5, 1.5, mask.numel(), dtype=torch.float64).view(mask.shape)


def token_losses(cell: Cell, supply: Supply, on: str) -> Tensor:
    """What the cell gives, once it has proved to be one loss per token."""
    found = attempt(cell, supply, on)
    if found.shape != supply["mask"].shape:
        given = f"{shape_of(supply['mask'])} on {on}"
        raise Broken(f"returns {shape_of(found)} for {given}: {_shape_cause(found)}")
    return found


def _shape_cause(found: Tensor) -> str:
    if found.numel() == 1:
        return "it averages or sums the batch; return one loss per token, the weighting adds them up"
    if found.dim() == 1 or found.shape[-1] == 1:
        return "it drops or sums a dimension; return one loss per token, where need be with expand_as"
    return "return one loss per token, trained or not"


def pull(cell: Cell, supply: Supply, weights: Tensor, on: str) -> Tensor | None:
    """d(weighted loss)/d(logprobs) by autograd; None where the loss does not hang together with them."""
    leaf = supply["logprobs"].clone().requires_grad_()
    # The log-probs of a model are no leaf either; a leaf would refuse changes in place with a message about leaves.
    loss = token_losses(cell, {**supply, "logprobs": leaf * 1}, on)
    if not loss.requires_grad:
        return None
    weighted = (loss * weights).sum()
    backward = partial(torch.autograd.grad, weighted, leaf, allow_unused=True)
    slope: Tensor | None = answer(backward, [], f"the backward pass of {on}")[0]
    return slope


def check_gradient(cell: Cell, supply: Supply) -> Verdict:
    """Autograd equals central differences, of the loss itself or with what left the graph held constant."""
    verdicts = [_check_at(cell, given, on) for on, given in _points(supply).items()]
    notes = [verdict for verdict in verdicts if verdict.outcome == "note"]
    return notes[0] if notes else verdicts[0]


def _points(supply: Supply) -> dict[str, Supply]:
    return {"ordinary input": supply, "ratios of 1": probes.on_policy(supply)}


def _check_at(cell: Cell, supply: Supply, on: str) -> Verdict:
    weights = token_weights(supply["mask"])
    slope = pull(cell, supply, weights, on)
    if slope is None:
        raise Broken(
            "no gradient reaches logprobs, so nothing would be learned: everything passes a detach, no_grad or item"
        )

    def loss(logprobs: Tensor, around: AbstractContextManager[object]) -> float:
        # As a tensor that needs a gradient: what a cell does under no_grad must look as it does in training.
        given = {**supply, "logprobs": logprobs.clone().requires_grad_() * 1}
        with around:
            losses = token_losses(cell, given, on)
        return float((losses.detach() * weights).sum())

    compare = partial(_compared, loss, supply["logprobs"], slope, supply["mask"])
    plain = compare(None)
    if not plain.can_tell:
        return note(f"too rough to compare autograd with differences: most tokens are at kinks on {on}")
    if not bool(plain.wrong.any()):
        judged = int((plain.smooth & plain.mask).sum())
        return passed(f"autograd equals central differences ({_apart(plain)} over {judged} tokens)")
    constants = _Constants()
    held = compare(constants)
    if constants.count and held.can_tell and not bool(held.wrong.any()):
        return note(
            f"stops the gradient: {_place(plain)}; with the {constants.count} value{'s' * (constants.count > 1)} that "
            f"{'leave' if constants.count > 1 else 'leaves'} the graph (detach, no_grad, item) held constant they are "
            f"equal ({_apart(held)}), so it is right if the stop is meant, as CISPO's is"
        )
    cause = (
        "the stops of the gradient do not explain it" if constants.count else "nothing stops the gradient on the way"
    )
    raise Broken(f"{_place(plain)} on {on}; {cause}: a backward of your own is wrong, or values pass outside torch")


def _compared(loss: Loss, at: Tensor, analytic: Tensor, mask: Tensor, constants: _Constants | None) -> Comparison:
    """Against differences with the smallest step that rounding allows."""
    found = None
    for step in STEPS:
        forward, backward = _differences(loss, at, step, constants)
        numeric = (forward + backward) / 2
        # At a kink the two sides differ: there is no derivative that autograd could get wrong.
        smooth = (forward - backward).abs() <= _tolerance(analytic, numeric)
        found = Comparison(analytic=analytic, numeric=numeric, smooth=smooth, mask=mask)
        if found.can_tell:
            break
    assert found is not None
    return found


def _differences(loss: Loss, at: Tensor, step: float, constants: _Constants | None) -> tuple[Tensor, Tensor]:
    """Differences to the right and to the left of every entry."""
    if constants is not None:
        constants.forget()
    around: AbstractContextManager[object] = constants or nullcontext()

    def value(logprobs: Tensor) -> float:
        return loss(logprobs, around)

    middle = value(at)
    forward, backward = torch.zeros_like(at), torch.zeros_like(at)
    for row, column in torch.ones_like(at).nonzero().tolist():
        moved = at.clone()
        moved[row, column] += step
        forward[row, column] = (value(moved) - middle) / step
        moved[row, column] = at[row, column] - step
        backward[row, column] = (middle - value(moved)) / step
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


def _apart(found: Comparison) -> str:
    apart = ((found.analytic - found.numeric).abs() * found.smooth).max()
    return f"{float(apart):.1g} apart at most"


def _place(found: Comparison) -> str:
    apart = torch.where(found.wrong, (found.analytic - found.numeric).abs(), -1.0)
    row, token = divmod(int(apart.argmax()), apart.shape[1])
    analytic, numeric = float(found.analytic[row, token]), float(found.numeric[row, token])
    count = f"{int(found.wrong.sum())} tokens differ"
    return f"autograd gives {analytic:.4g} and differences {numeric:.4g} at row {row}, token {token} ({count})"


def check_direction(cell: Cell, supply: Supply) -> Verdict:
    """Before the first update a good token is pushed up, a bad one down, and one without advantage is left alone."""
    if "advantages" not in terms(cell):
        return note("takes no advantages, so there is no direction to check")
    given = probes.on_policy(supply)
    mask: Tensor = given["mask"]
    signs = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0], dtype=torch.float64)
    given["advantages"] = signs[:, None].expand(mask.shape) * 1.5
    on = "ratios of 1"
    slope = pull(cell, given, token_weights(mask), on)
    if slope is None:
        raise Broken("no gradient reaches logprobs: no advantage pushes anything")
    push = torch.where(mask, -slope, 0.0)  # a step of gradient descent goes against the slope
    wanted = torch.where(mask, signs[:, None], torch.zeros((), dtype=torch.float64))
    _require_sign(push, wanted, ref="logprobs_ref" in terms(cell))
    idle = mask & (wanted != 0) & (push == 0)
    if bool(idle.any()):
        row, token = (int(index) for index in idle.nonzero()[0])
        return note(
            f"on-policy, {int(idle.sum())} of {int((wanted != 0).sum())} tokens with an advantage get no gradient, "
            f"e.g. row {row}, token {token}; the others are pushed the right way"
        )
    return passed("on-policy, a positive advantage pushes up, a negative one down, and zero leaves the log-prob alone")


def _require_sign(push: Tensor, wanted: Tensor, *, ref: bool) -> None:
    against = push * wanted < 0
    if bool(against.any()):
        row, token = (int(index) for index in against.nonzero()[0])
        sign = "positive" if wanted[row, token] > 0 else "negative"
        way = "down" if wanted[row, token] > 0 else "up"
        raise Broken(
            f"on-policy, a {sign} advantage pushes the log-prob {way} (row {row}, token {token}, gradient "
            f"{-float(push[row, token]):.4g}; {int(against.sum())} of {int((wanted != 0).sum())} tokens): "
            "the sign is flipped; a loss is minus the advantage times what is to grow"
        )
    for value, name in ((1.0, "positive"), (-1.0, "negative")):
        if not bool(push[wanted == value].any()):
            raise Broken(f"on-policy, a {name} advantage gives no gradient at all, so nothing is learned from it")
    moved = (wanted == 0) & (push.abs() > 1e-9)
    if bool(moved.any()):
        row, token = (int(index) for index in moved.nonzero()[0])
        why = "a KL whose gradient is not 0 where the two agree (k1) does that" if ref else "a term lacks the advantage"
        raise Broken(
            f"on-policy, an advantage of 0 moves the log-prob (row {row}, token {token}, gradient "
            f"{-float(push[row, token]):.4g}): {why}"
        )
