"""What `whet plan --simulate` prints: a line for each schedule, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from whet.cli.arguments import run_directory
from whet.cli.terminal import say, say_json
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe
    from whet.train.plan.recipe_plan import Asked
    from whet.train.simulation.outcome import Outcome
    from whet.train.simulation.recipe_simulation import RecipeSimulation

GIBI, GIGA = 2**30, 10**9
NAME_WIDTH, WIDTH = 26, 10
COLUMNS = ("trainer", "rollouts", "s a step", "tokens/s", "idle", "idle", "slots idle", "staleness")
SIDES = ("GPUs", "GPUs", "", "", "trainer", "rollouts", "", "")
DAY = 24


class SimulationOptions(NamedTuple):
    """Options that only a simulation has, as they were given."""

    trainer_gpus: int | None = None
    engine_gpus: int | None = None
    staleness: list[int] | None = None
    lengths: str | None = None
    network: float | None = None
    node_gpus: int | None = None

    def refuse_any(self) -> None:
        """They have no meaning for a plan."""
        given = [f"--{name.replace('_', '-')}" for name, value in self._asdict().items() if value]
        if given:
            raise UserError(f"{' and '.join(given)}: only with --simulate")


def show_simulation(recipe: Recipe | Pipeline, asked: Asked, options: SimulationOptions, as_json: bool) -> bool:
    """Prints the simulation of a recipe; whether any schedule fits."""
    from whet.recipe import Pipeline
    from whet.train.simulation.cluster import NODE
    from whet.train.simulation.recipe_simulation import Simulated, simulate_recipe

    if isinstance(recipe, Pipeline):
        raise UserError("--simulate is for a recipe of one run, and this is a pipeline: leave it out")
    lengths = options.lengths
    if lengths is not None and ":" not in lengths:
        lengths = str(run_directory(lengths))
    simulated = Simulated(
        bounds=sorted(set(options.staleness or ())),
        trainer=options.trainer_gpus,
        engine_gpus=options.engine_gpus or 1,
        lengths=lengths,
        network=None if options.network is None else options.network * GIGA,
        node=options.node_gpus or NODE,
    )
    one = simulate_recipe(recipe, asked, simulated)
    if as_json:
        say_json(simulation_json(one))
    else:
        for line in simulation_page(one):
            say(line)
    return one.best is not None


def simulation_json(one: RecipeSimulation) -> dict[str, Any]:
    """A simulation as JSON: seconds, shares, tokens, bytes, dollars."""
    deployment, cluster, best = one.deployment, one.deployment.cluster, one.best
    return {
        "recipe": one.recipe,
        "gpu": asdict(cluster.gpu),
        "gpus": one.gpus,
        "node_gpus": cluster.node,
        "link": cluster.link,
        "network": cluster.network,
        "engine_gpus": deployment.engine_gpus,
        "model": one.about,
        "prompt_tokens": deployment.prompt,
        "lengths": deployment.lengths.about,
        "fits": best is not None,
        "best": None if best is None else best.schedule.name,
        "recipe_schedule": None if one.own is None else one.own.schedule.name,
        "schedules": [_outcome_json(found) for found in one.outcomes],
        "steps": one.steps,
        "hours": None if best is None else one.hours(best),
        "dollars": None if best is None else one.dollars(best),
        "notes": list(one.notes),
    }


def _outcome_json(one: Outcome) -> dict[str, Any]:
    placed, bound = one.placed, one.schedule.staleness
    return {
        "name": one.schedule.name,
        "colocated": one.split.colocated,
        "staleness_bound": None if bound == inf else int(bound),
        "trainer_gpus": one.split.trainer,
        "rollout_gpus": one.split.rollout,
        "engines": placed.engines,
        "slots": placed.slots,
        "shards": placed.trainer.shards,
        "micro_batch_tokens": placed.trainer.micro_batch_tokens,
        "fits": one.fits,
        "memory": {"trainer": placed.needed, "rollouts": placed.engine_needed},
        "seconds": {
            "step": one.seconds,
            "mean": one.mean_seconds,
            "rollout": one.rollout,
            "training": one.training,
            "hand_off": placed.hand_off.sent + placed.hand_off.taken,
            "checkpoint": placed.hand_off.checkpoint,
        },
        "tokens_a_second": one.tokens_per_second,
        "idle": {"trainer": one.trainer_idle, "rollouts": one.rollout_idle, "slots": one.slots_idle},
        "staleness": one.staleness,
        "bottleneck": one.bottleneck,
    }


def simulation_page(one: RecipeSimulation) -> Iterator[str]:
    """The lines of a simulation."""
    deployment, cluster, best = one.deployment, one.deployment.cluster, one.best
    verdict = "does not fit on" if best is None else "fits on"
    fastest = "" if best is None else f", fastest: {best.schedule.name}"
    yield f"{one.recipe}: {verdict} {one.gpus:,} × {cluster.gpu.name}{fastest}"
    yield f"  model     {one.about}"
    work = deployment.work
    yield f"  a step    {work.prompts:,} prompts × {work.group:,} completions; lengths: {deployment.lengths.about}"
    where = (
        f"nodes of {cluster.node}, {cluster.link / GIGA:g} GB/s within, {cluster.network / GIGA:g} GB/s per GPU between"
    )
    yield f"  GPUs      {where}"
    yield ""
    yield _row("", COLUMNS)
    yield _row("", SIDES)
    for found in one.outcomes:
        yield _row(found.schedule.name, _cells(found)) if found.fits else _lacking(found, cluster.gpu.memory)
    if best is not None:
        yield from _explained(one, best)
    yield from (f"note: {note}" for note in one.notes)


def _explained(one: RecipeSimulation, best: Outcome) -> Iterator[str]:
    """What a step waits for in each schedule that fits; memory, hours and price of the fastest, and of the recipe's."""
    yield ""
    for found in one.outcomes:
        if found.fits:
            yield f"  {found.schedule.name}: {found.bottleneck}"
    yield from _placed(best)
    pause, every = best.placed.hand_off.checkpoint, one.deployment.checkpoint_every
    checkpoints = f", a checkpoint of {pause:.0f} s every {every:,}" if every and every <= one.steps else ""
    price = f"${one.dollars(best):,.2f} at ${one.deployment.cluster.gpu.price:g} an hour and GPU"
    yield f"  whole run: {one.steps:,} steps{checkpoints}: {_duration(one.hours(best))}, {price}"
    if (own := one.own) is not None and own is not best:
        name = f"  the recipe's own schedule, {own.schedule.name}"
        if own.fits:
            yield f"{name}: {own.seconds / best.seconds:.2f} times as long, ${one.dollars(own):,.2f}"
        else:
            yield f"{name}: does not fit"


def _duration(hours: float) -> str:
    if hours < 2:
        return f"{60 * hours:.0f} min"
    return f"{hours:.1f} h" if hours < 2 * DAY else f"{hours / DAY:.1f} days"


def _placed(best: Outcome) -> Iterator[str]:
    placed, split = best.placed, best.split
    kept = f"shards of {placed.trainer.shards} GPUs (FSDP)" if placed.trainer.shards > 1 else "all weights on every GPU"
    yield ""
    need = f"{placed.needed / GIBI:.1f} GiB of a trainer's GPU, {placed.engine_needed / GIBI:.1f} GiB of a rollout GPU"
    yield f"  {best.schedule.name}, {split.trainer}:{split.rollout}: {kept}; needs {need}"
    engines = f"engines: {placed.engines:,} of {placed.speed.gpus} GPU{'s' if placed.speed.gpus > 1 else ''}"
    yield f"  {engines} with {placed.slots:,} slots each; micro-batches of {placed.trainer.micro_batch_tokens:,} tokens"


def _cells(one: Outcome) -> Iterator[str]:
    yield f"{one.split.trainer:,}"
    yield f"{one.split.rollout:,}"
    yield f"{one.seconds:.2f}"
    yield f"{one.tokens_per_second:,.0f}"
    yield from (f"{share:.0%}" for share in (one.trainer_idle, one.rollout_idle, one.slots_idle))
    yield str(one.staleness)


def _lacking(one: Outcome, memory: int) -> str:
    """The row of a schedule for which memory does not suffice."""
    where, needed = max(
        ("a trainer's GPU", one.placed.needed), ("a rollout GPU", one.placed.engine_needed), key=lambda side: side[1]
    )
    row = _row(one.schedule.name, (f"{one.split.trainer:,}", f"{one.split.rollout:,}"))
    return f"{row}   does not fit: {where} needs {needed / GIBI:.1f} of {memory / GIBI:.1f} GiB"


def _row(name: str, cells: Iterator[str] | tuple[str, ...]) -> str:
    return f"  {name:<{NAME_WIDTH}}{''.join(f'{cell:>{WIDTH + 1}}' for cell in cells)}".rstrip()
