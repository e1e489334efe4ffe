"""How to divide GPUs between trainer and rollouts: the split with the fewest seconds a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whet.errors import UserError
from whet.train.simulation.deployment import Deployment, Split
from whet.train.simulation.outcome import Outcome, Prepared, Schedule, outcome, preparing

TRIED = 16  # parts into which the GPUs are divided at most
COARSE = 8  # splits of a synchronous schedule that are simulated
SHORT = 2  # steps by which it is seen which side takes longer


def best_outcomes(
    deployment: Deployment, gpus: int, compared: Sequence[Schedule], *, trainer: int | None = None
) -> list[Outcome]:
    """Each schedule on its best split of so many GPUs, or with so many of them for the trainer."""
    prepare = preparing(deployment)
    return [_best(prepare, deployment, gpus, schedule, trainer) for schedule in compared]


Prepare = Callable[[Split], Prepared]


def _best(prepare: Prepare, deployment: Deployment, gpus: int, schedule: Schedule, trainer: int | None) -> Outcome:
    if schedule.colocated:
        whole = gpus // deployment.engine_gpus * deployment.engine_gpus
        if whole < 1:
            raise UserError(f"{gpus} GPUs hold no engine of {deployment.engine_gpus}: raise --gpus")
        return outcome(prepare(Split(trainer=gpus, rollout=whole, colocated=True)), schedule)
    splits = possible_splits(gpus, deployment.engine_gpus)
    if trainer is not None:
        rest = (gpus - trainer) // deployment.engine_gpus * deployment.engine_gpus
        splits = [Split(trainer=trainer, rollout=rest)] if rest > 0 else []
    if not splits:
        raise UserError(
            f"{gpus} GPUs cannot be divided between a trainer{f' with {trainer}' if trainer else ''} and rollout "
            f"engines of {deployment.engine_gpus}: raise --gpus"
        )

    return min((outcome(prepare(split), schedule) for split in _likely(prepare, splits, schedule)), key=_order)


def _order(found: Outcome) -> tuple[bool, float]:
    """What fits comes before what does not."""
    return not found.fits, found.seconds


def _likely(prepare: Prepare, splits: Sequence[Split], schedule: Schedule) -> Sequence[Split]:
    """Splits of which one is the best.

    Asynchronous, trainer and engines should take equally long: more GPUs for the trainer make its seconds fall and
    those of the engines rise, so the place where they cross is found by halving.
    """
    if not schedule.staleness:
        tried = [outcome(prepare(one), schedule, steps=SHORT) for one in splits[:: max(1, len(splits) // COARSE)]]
        return [min(tried, key=_order).split]
    low, high = 0, len(splits) - 1
    while low < high:
        middle = (low + high) // 2
        found = outcome(prepare(splits[middle]), schedule, steps=SHORT)
        if found.training > found.sampling or not found.fits:
            low = middle + 1
        else:
            high = middle
    return splits[max(0, low - 1) : low + 2]


def possible_splits(gpus: int, engine_gpus: int = 1) -> list[Split]:
    """Splits from the fewest to the most GPUs of the trainer, all of them or about sixteen."""
    unit = engine_gpus * max(1, -(-gpus // (engine_gpus * TRIED)))
    rollouts = range(unit, gpus, unit)
    return [Split(trainer=gpus - rollout, rollout=rollout) for rollout in reversed(rollouts)]


def schedules(bounds: Sequence[float]) -> list[Schedule]:
    """The schedules that are compared: synchronous ones, and asynchronous ones with these bounds."""
    return [Schedule(colocated=True), Schedule(), *(Schedule(staleness=bound) for bound in bounds if bound)]
