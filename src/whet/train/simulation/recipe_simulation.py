"""A recipe's steps on many GPUs: its schedules side by side, each on the best split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whet.config import OnlineConfig
from whet.errors import UserError
from whet.train.plan.gpus import GPUS, like
from whet.train.plan.planning import HOUR
from whet.train.plan.recipe_plan import Asked, Known, known, plan_config, planned_disk
from whet.train.simulation.best_split import best_outcomes, schedules
from whet.train.simulation.cluster import NODE, cluster_of
from whet.train.simulation.completion_lengths import fixed, read_lengths
from whet.train.simulation.deployment import Deployment
from whet.train.simulation.outcome import Outcome

if TYPE_CHECKING:
    from whet.recipe import Recipe
    from whet.train.plan.planning import Plan

BOUNDS = (1, 2, 4)  # of the staleness, where none is asked for
MOST_BOUND = 64  # that is simulated
MOST_SEQUENCES = 32_768  # of a step; more would take longer than ten seconds
ALIKE = 1.01  # times the seconds of the fastest: not worth stale rollouts
NOT_SIMULATED = "evaluations, the loading of models and failures are not simulated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a simulation is made for, beside what a plan is."""

    bounds: Sequence[int] = ()  # none: the recipe's own, and some to compare it with
    trainer: int | None = None  # GPUs that train; None: the best split
    engine_gpus: int = 1
    lengths: str | None = None  # as `--lengths` says
    network: float | None = None  # bytes a second between nodes, per GPU
    node: int = NODE


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeSimulation:
    """The outcomes of a recipe, synchronous ones first."""

    recipe: str
    about: str  # the model
    gpus: int
    steps: int  # of the run
    deployment: Deployment
    outcomes: tuple[Outcome, ...]
    bound: int | None  # the recipe's asynchronous.staleness
    notes: tuple[str, ...]

    @property
    def best(self) -> Outcome | None:
        """The first of those that fit that is as fast as the fastest."""
        possible = [one for one in self.outcomes if one.fits]
        fastest = min((one.seconds for one in possible), default=0.0)
        return next((one for one in possible if one.seconds <= ALIKE * fastest), None)

    @property
    def own(self) -> Outcome | None:
        """What the recipe's section `asynchronous` asks for, if it has one that is compared."""
        asked = (one for one in self.outcomes if not one.schedule.colocated and one.schedule.staleness == self.bound)
        return None if self.bound is None else next(asked, None)

    def hours(self, one: Outcome) -> float:
        """The whole run by one of them, with its checkpoints."""
        every = self.deployment.checkpoint_every
        checkpoints = self.steps // every if every else 0
        return (self.steps * one.seconds + checkpoints * one.placed.hand_off.checkpoint) / HOUR

    def dollars(self, one: Outcome) -> float:
        return self.hours(one) * self.gpus * self.deployment.cluster.gpu.price


def simulate_recipe(recipe: Recipe, asked: Asked, simulated: Simulated) -> RecipeSimulation:
    """The recipe on `asked.gpus` GPUs by every schedule."""
    found = known(recipe, asked)
    if not isinstance(found.config, OnlineConfig):
        raise UserError(f"{recipe.name} samples no rollouts: --simulate is for online recipes, leave it out")
    if found.config.placement.names:
        raise UserError("--simulate does not place models on GPUs of their own: leave placement out, or --simulate")
    plan = plan_config(found.config, found.shapes, found.lengths, asked.gpu)
    if plan.work.sequences > MOST_SEQUENCES:
        raise UserError(
            f"{plan.work.sequences:,} completions a step are too many to simulate (at most {MOST_SEQUENCES:,}): "
            "lower rollout.prompts or rollout.group"
        )
    deployment = _deployment(found, plan, asked, simulated)
    enough = asked.gpus > simulated.engine_gpus
    own = found.config.asynchronous
    bounds = simulated.bounds or sorted({*BOUNDS, min(found.config.staleness, MOST_BOUND)})
    compared = [one for one in schedules(bounds) if enough or one.colocated]
    if not enough and simulated.trainer is not None:
        raise UserError(f"--trainer-gpus {simulated.trainer} leaves no GPU for rollouts: raise --gpus")
    outcomes = best_outcomes(deployment, asked.gpus, compared, trainer=simulated.trainer)
    notes = _notes(plan, asked, simulated)
    notes += _undivided(outcomes, 1 if own is None else own.parts)
    if found.config.staleness > MOST_BOUND:
        notes.append(f"asynchronous.staleness {found.config.staleness} is simulated as {MOST_BOUND}")
    if not any(one.fits for one in outcomes):
        notes.append("nothing fits: whet plan without --simulate lists keys with which one GPU needs less")
    return RecipeSimulation(
        recipe=recipe.name,
        about=found.shapes.about,
        gpus=asked.gpus,
        steps=found.config.steps,
        deployment=deployment,
        outcomes=tuple(outcomes),
        bound=None if own is None else min(own.staleness, MOST_BOUND),
        notes=(*found.notes, *notes),
    )


def _deployment(found: Known, plan: Plan, asked: Asked, simulated: Simulated) -> Deployment:
    longest = plan.work.completion
    config = found.config
    lengths = fixed(plan.usual.completion) if simulated.lengths is None else read_lengths(simulated.lengths, longest)
    return Deployment(
        models=plan.models,
        work=plan.work,
        prompt=plan.usual.prompt,
        lengths=lengths,
        cluster=cluster_of(asked.gpu, network=simulated.network, node=simulated.node),
        engine_gpus=simulated.engine_gpus,
        checkpoint_bytes=planned_disk(config, plan.models, found.shapes.exported).checkpoint,
        checkpoint_every=config.save.every_steps,
        seed=config.seed,
    )


def _notes(plan: Plan, asked: Asked, simulated: Simulated) -> list[str]:
    notes = [NOT_SIMULATED]
    if simulated.lengths is None:
        notes.append(
            "all completions are as long as allowed, so no engine waits for a long one: --lengths takes a run's "
            "rollouts, or lognormal:MEDIAN:SIGMA"
        )
    if plan.gpu.name not in GPUS:
        notes.append(f"{plan.gpu.name}: speed and price are those of {like(plan.gpu.memory).name}")
    if asked.gpus <= simulated.engine_gpus:
        notes.append("with one engine's GPUs nothing can be apart: --gpus compares the other schedules")
    if plan.usual.rounds > 1:
        notes.append(f"dynamic sampling: {plan.usual.rounds:g} rounds of sampling a step are assumed")
    return notes


def _undivided(outcomes: Sequence[Outcome], parts: int) -> list[str]:
    """Engines to which the recipe gives no work, because it divides a draw into fewer parts."""
    for one in outcomes:
        if one.fits and one.schedule.staleness and parts < one.placed.engines:
            return [
                f"asynchronous: every draw is divided among all engines, here, and into {parts} by the recipe: set "
                f"asynchronous.parts to the number of engines, e.g. {one.placed.engines} with {one.schedule.name}"
            ]
    return []
