"""Checks that training can change the model: gradients reach every trained weight, and one batch can be overfitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from whet.algorithms.table import OBJECTIVES
from whet.config import TrainConfig
from whet.distributed.world import World
from whet.models.adapters.lora import has_adapters
from whet.models.protocol import CausalLM
from whet.records import Row
from whet.train.optimizers.optimizer import Trainable, set_learning_rate
from whet.train.preflight.results import CheckFailed, NotTried
from whet.train.rows.sft import fit

PASSES = 2  # steps in which a gradient may arrive: that of a LoRA matrix is 0 while the other one is 0
NAMED = 6  # weights that a sentence names
SEQUENCES = 8  # of the batch that is overfitted
STEPS = 60  # on that batch, at each learning rate
RATES = (3e-3, 3e-4, 3e-5)  # of which one must do; small models learn at the first
LEARNED = 0.25  # of the loss at the start that may be left
EXPERTS = "experts"  # in names of weights that a batch may leave out

Step = Callable[[], float]  # one optimizer step on the same batch; gives its loss


def supervised_step(
    policy: CausalLM, optimizer: torch.optim.Optimizer, rows: Sequence[Row], config: TrainConfig, world: World
) -> Step:
    """A step of maximum likelihood on the trained tokens of a few rows."""

    def step() -> float:
        return fit(policy, optimizer, rows, OBJECTIVES["sft"], config, world)[0]["loss"]

    return step


def distinct(rows: Sequence[Row]) -> list[Row]:
    """Rows of which no two have the same prompt: what comes after it can be learned by heart."""
    found: dict[tuple[int, ...], Row] = {}
    for row in rows:
        found.setdefault(row.tokens[: row.mask.index(True)], row)
    return list(found.values())[:SEQUENCES]


def reach_every_weight(model: Trainable, optimizer: torch.optim.Optimizer, step: Step) -> str:
    """Every trained weight gets a gradient other than 0 in one of a few steps."""
    trained = {name: weights for name, weights in model.named_parameters() if weights.requires_grad}
    if not trained:
        raise CheckFailed("no weight of the model is trained")
    frozen = [name for name, weights in model.named_parameters() if not weights.requires_grad]
    if frozen and not has_adapters(model):
        raise CheckFailed(f"{len(frozen)} weights are frozen, though the recipe has no model.lora: {_listed(frozen)}")
    known = {id(weights) for group in optimizer.param_groups for weights in group["params"]}
    forgotten = [name for name, weights in trained.items() if id(weights) not in known]
    if forgotten:
        raise CheckFailed(f"the optimizer does not have {_listed(forgotten)}")
    with _noted_gradients(trained) as reached:
        for _ in range(PASSES):
            step()
    missing = [name for name in trained if name not in reached]
    idle = [name for name in missing if EXPERTS in name]
    if without := [name for name in missing if name not in idle]:
        raise CheckFailed(
            f"{len(without)} of {len(trained)} trained weights got no gradient in {PASSES} steps: {_listed(without)}: "
            "they are not part of what the loss reads, or are detached from it"
        )
    unused = f"; {len(idle)} weights of experts were not used by these tokens" if idle else ""
    return f"all {len(trained) - len(idle)} trained weights got one in {PASSES} steps{unused}"


@contextmanager
def _noted_gradients(trained: Mapping[str, torch.nn.Parameter]) -> Iterator[set[str]]:
    """The names of the weights that get a gradient other than 0 in the block."""
    reached: set[str] = set()

    def noting(name: str) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            if bool((gradient != 0).any()):
                reached.add(name)

        return note

    handles = [weights.register_hook(noting(name)) for name, weights in trained.items()]  # type: ignore[no-untyped-call]
    try:
        yield reached
    finally:
        for handle in handles:
            handle.remove()


def can_be_overfitted(model: Trainable, optimizer: torch.optim.Optimizer, step: Step) -> str:
    """The loss of one batch falls to a fraction of what it was, at one of a few learning rates."""
    trained = [weights for _, weights in model.named_parameters() if weights.requires_grad]
    begun = [weights.detach().clone() for weights in trained]
    told = []
    for rate in RATES:
        with torch.no_grad():
            for weights, value in zip(trained, begun, strict=True):
                weights.copy_(value)
        optimizer.state.clear()
        losses = _losses(optimizer, step, rate)
        if min(losses) <= LEARNED * losses[0]:
            return (
                f"the loss fell from {losses[0]:.3g} to {losses[-1]:.2g} in {len(losses)} steps at a rate of {rate:g}"
            )
        told.append(f"{min(losses):.3g} at {rate:g}")
    if losses[0] <= 0:
        raise NotTried(f"the loss of the batch is {losses[0]:.3g} before the first step, so it cannot fall by a share")
    raise CheckFailed(
        f"the loss of one batch is {losses[0]:.3g} at first and after {STEPS} steps on it at best {', '.join(told)} "
        "(learning rates): a model and a loss without a bug learn it by heart; look at what the loss reads"
    )


def _losses(optimizer: torch.optim.Optimizer, step: Step, rate: float) -> list[float]:
    """Losses until the batch is learned, or of all steps."""
    losses: list[float] = []
    for _ in range(STEPS):
        set_learning_rate(optimizer, rate)
        losses.append(step())
        if losses[-1] <= LEARNED * losses[0]:
            break
    return losses


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
