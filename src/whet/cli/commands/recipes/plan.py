"""`whet plan`: memory, seconds and price of a recipe on a GPU, by formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import typer

from whet.cli import arguments
from whet.cli.commands.recipes import plan_options
from whet.cli.commands.recipes.simulation_page import SimulationOptions, show_simulation
from whet.cli.terminal import readable_bytes, say, say_json
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.recipe import Pipeline, Recipe
    from whet.train.plan.advice import Advice
    from whet.train.plan.recipe_plan import Asked, RecipePlan

GIBI, MEBI = 2**30, 2**20
LABEL_WIDTH, NUMBER_WIDTH = 17, 12
HOUR, DAY = 3600, 24


def plan(  # noqa: PLR0917 - typer's
    source: arguments.Recipe,
    overrides: arguments.Overrides = None,
    gpu: plan_options.GPUName = "h200",
    gpus: plan_options.GPUs = 1,
    price: plan_options.Price = None,
    shape: plan_options.Shape = None,
    prompt_tokens: plan_options.PromptTokens = None,
    completion_tokens: plan_options.CompletionTokens = None,
    simulate: plan_options.Simulate = False,
    trainer_gpus: plan_options.TrainerGPUs = None,
    engine_gpus: plan_options.EngineGPUs = None,
    staleness: plan_options.Staleness = None,
    lengths: plan_options.Lengths = None,
    network: plan_options.Network = None,
    node_gpus: plan_options.NodeGPUs = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Plan memory, seconds and price of a recipe on a GPU.

    By formula: no GPU is needed and no weights are read. Where the recipe does not fit, changes with which it does are
    listed. A model that is not here is planned by its name if its shape is well known. The exit code is 1 if a run
    does not fit, else 0.

    With --simulate the steps of an online recipe are simulated on --gpus GPUs, which are divided between trainer and
    rollouts: seconds a step, idle GPUs and staleness, synchronous and asynchronous.

    \b
    Examples:
      whet plan grpo-sorting
      whet plan grpo model=Qwen/Qwen3-8B task=arithmetic --gpu a6000
      whet plan grpo-sorting --shape qwen3-4b --gpu 24GiB --price 0.4
      whet plan rlhf-reviews --gpu 4090 --json
      whet plan grpo model=Qwen/Qwen3-8B task=arithmetic --simulate --gpus 32 --lengths lognormal:200:0.8
    """
    from whet.recipe import is_pipeline, read_any
    from whet.train.plan.gpus import find_gpu
    from whet.train.plan.recipe_plan import Asked

    found = find_gpu(gpu)
    if price is not None and not isfinite(price):
        raise UserError(f"--price is {price}: give the dollars an hour of one GPU, e.g. 2.5")
    asked = Asked(
        gpu=found if price is None else replace(found, price=price),
        gpus=gpus,
        prompt=prompt_tokens,
        completion=completion_tokens,
        shape=shape,
    )
    if shape is not None and is_pipeline(source):
        raise UserError(f"--shape is for a recipe of one run, and {source} is a pipeline: leave it out")
    recipe = read_any(source, _overridden(overrides, shape))
    options = SimulationOptions(trainer_gpus, engine_gpus, staleness, lengths, network, node_gpus)
    if not (show_simulation(recipe, asked, options, as_json) if simulate else _show(recipe, asked, options, as_json)):
        raise typer.Exit(1)


def _show(recipe: Recipe | Pipeline, asked: Asked, options: SimulationOptions, as_json: bool) -> bool:
    """Prints the plan; whether everything fits."""
    from whet.recipe import Pipeline
    from whet.train.plan.recipe_plan import plan_pipeline, plan_recipe

    options.refuse_any()
    if isinstance(recipe, Pipeline):
        planned = plan_pipeline(recipe, asked)
        _show_pipeline(planned, max(1, len(recipe.config.seeds)), as_json=as_json)
        return all(isinstance(one, str) or one.plan.fits for one in planned.values())
    one = plan_recipe(recipe, asked)
    if as_json:
        say_json(plan_json(one))
    else:
        _print(_page(one.recipe, one))
    return one.plan.fits


def _overridden(overrides: list[str] | None, shape: str | None) -> list[str]:
    """The overrides, first of all the model that a named shape stands for: a recipe may leave its model open."""
    words = arguments.with_runs(overrides)
    return words if shape is None else [f"model.path={shape}", *words]


def plan_json(one: RecipePlan) -> dict[str, Any]:
    """A plan as JSON: bytes, seconds, tokens, dollars."""
    plan, told, choice = one.plan, one.shown, one.plan.peaks.choice
    return {
        "recipe": one.recipe,
        "gpu": asdict(plan.gpu),
        "gpus": plan.gpus,
        "fits": plan.fits,
        "model": one.shapes.about,
        "lengths": asdict(one.lengths),
        "memory": {
            "available": plan.gpu.memory,
            "needed": plan.peaks.needed,
            "peak": plan.peaks.peak,
            "moments": {name: {"peak": size, **one.owners[name]} for name, size in plan.peaks.moments.items()},
            "host": one.host,
            "apart": dict(one.plan.apart),
        },
        "chosen": {**asdict(choice), "away": sorted(choice.away)},
        "largest": asdict(one.most),
        "seconds": {**told.seconds.moments, "step": told.seconds.step, "evaluation": told.seconds.evaluation},
        "tokens_a_second": told.tokens_per_second,
        "steps": plan.steps,
        "hours": told.hours,
        "dollars": told.dollars,
        "disk": {**asdict(one.disk), "total": one.disk.total, "peak": one.disk.peak},
        "advice": [asdict(advice) for advice in one.advice],
        "fits_on": list(one.fits_on),
        "notes": list(one.notes),
    }


def _show_pipeline(planned: Mapping[str, RecipePlan | str], seeds: int, *, as_json: bool) -> None:
    if as_json:
        say_json({name: one if isinstance(one, str) else plan_json(one) for name, one in planned.items()})
        return
    hours = dollars = 0.0
    for name, one in planned.items():
        times = seeds if name.startswith("methods.") else 1
        if isinstance(one, str):
            _print([f"{name}: {one}", ""])
            continue
        _print([*_page(name, one), ""])
        hours, dollars = hours + times * one.shown.hours, dollars + times * one.shown.dollars
    again = f", methods with {seeds} seeds each" if seeds > 1 else ""
    say(f"all runs that are planned: {_duration(hours)}, {_price(dollars)}{again}")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def _page(name: str, one: RecipePlan) -> Iterator[str]:
    plan = one.plan
    many = f"{plan.gpus} × " if plan.gpus > 1 else ""
    where = f"{many}{plan.gpu.name} ({plan.gpu.memory / GIBI:.1f} GiB)"
    verdict = "fits" if plan.fits else "does not fit"
    yield f"{name}: {verdict} on {where}, needs {plan.peaks.needed / GIBI:.1f} GiB"
    yield _line("model", f"{one.shapes.about}, {_parameters(one)}")
    lengths = f"prompts of up to {one.lengths.prompt:,}, completions of up to {one.lengths.completion:,}"
    yield _line("tokens", f"{lengths} ({one.lengths.source})")
    yield from _memory(one)
    yield from _time(one)
    yield from _disk(one)
    yield from _changes(one)
    yield from (f"note: {note}" for note in one.notes)


def _parameters(one: RecipePlan) -> str:
    from whet.train.plan.placement import all_weights

    models = one.plan.models
    adapters = f", {models.adapters:,} of adapters trained" if models.adapters else ""
    return f"{all_weights(models.policy):,} parameters{adapters}"


def _memory(one: RecipePlan) -> Iterator[str]:
    """A table of bytes: a line for each owner, a column for each moment."""
    from whet.train.plan.owners import offloaded_bytes

    size, unit = (GIBI, "GiB") if one.plan.peaks.peak >= GIBI else (MEBI, "MiB")

    def cell(count: int) -> str:
        return f"{count / size:.2f}" if count else "–"

    moments = list(one.plan.peaks.moments)
    present = [owner for owner in next(iter(one.owners.values())) if any(one.owners[name][owner] for name in moments)]
    yield ""
    yield _columns(unit, moments)
    for owner in present:
        yield _columns(owner, [cell(one.owners[name][owner]) for name in moments])
    yield _columns("peak", [cell(one.plan.peaks.moments[name]) for name in moments])
    choice, slots = one.plan.peaks.choice, one.plan.peaks.choice.slots or one.plan.peaks.choice.eval_slots
    if away := offloaded_bytes(one.plan.peaks):
        yield _line("offloaded", ", ".join(away))
    for device, needed in one.plan.apart.items():
        yield _line(
            device, f"needs {needed / GIBI:.1f} of {one.plan.gpu.memory / GIBI:.1f} GiB ({_placed(one, device)})"
        )
    if one.host:
        yield _line("host memory", f"{one.host / GIBI:.1f} GiB")
    tokens = choice.micro_batch_tokens
    yield _line("micro-batch", f"{tokens:,} tokens{_largest(tokens, one.most.micro_batch_tokens)}")
    if slots:
        yield _line("slots", f"{slots:,} sequences at a time{_largest(slots, one.most.slots)}")


def _placed(one: RecipePlan, device: str) -> str:
    """The models that have a GPU of their own."""
    placed = [name for name, devices in one.places.items() if device in devices]
    return " and ".join(placed)


def _largest(chosen: int, most: int | None) -> str:
    """How many would fit, where that is another number."""
    if most is None:
        return "; not one sequence fits"
    return f"; at most {most:,} would fit" if most != chosen else ""


def _time(one: RecipePlan) -> Iterator[str]:
    told = one.shown
    moments = list(told.seconds.moments.items())
    yield ""
    yield _columns("seconds", [*(name for name, _ in moments), "step"])
    yield _columns("", [*(f"{value:.2f}" for _, value in moments), f"{told.seconds.step:.2f}"])
    if not one.plan.fits:
        yield _line("", "as on a GPU of this speed with enough memory")
    yield _line("speed", f"{told.tokens_per_second:,.0f} trained tokens a second")
    each = f"{told.seconds.evaluation:.1f} s"
    evaluations = f" and {told.evaluations:,} evaluations of {each}" if told.evaluations else ""
    price = f"{_price(told.dollars)} at ${told.gpu.price:g} an hour"
    yield _line("whole run", f"{told.steps:,} steps{evaluations}: {_duration(told.hours)}, {price}")


def _disk(one: RecipePlan) -> Iterator[str]:
    disk = one.disk
    whole = f"{readable_bytes(disk.total)} at the end, models at most {readable_bytes(disk.peak)}"
    yield _line("disk", f"{readable_bytes(disk.checkpoint)} a checkpoint; {whole}")


def _changes(one: RecipePlan) -> Iterator[str]:
    if one.plan.fits:
        return
    yield ""
    if one.advice:
        yield "what fits instead, what changes the result least first:"
        yield from (f"  {_advice(advice)}" for advice in one.advice)
    else:
        yield "no change of the recipe that is known here makes it fit: use a smaller model or shorter completions"
    if one.fits_on:
        yield f"as it is, it fits on: {', '.join(one.fits_on)}"


def _advice(advice: Advice) -> str:
    host = f" and {advice.host / GIBI:.1f} GiB of host memory" if advice.host else ""
    cost = f"fits in {advice.needed / GIBI:.1f} GiB{host}, {advice.seconds:.1f} s a step, {advice.slower:.2g} ×"
    return f"{' '.join(map(_quoted, advice.overrides))}: {cost} ({advice.effect})"


def _quoted(override: str) -> str:
    """An override as a shell takes it."""
    return f"'{override}'" if set(override) & set(" {}") else override


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL_WIDTH}}{text}"


def _columns(label: str, cells: Iterable[str]) -> str:
    return _line(label, "".join(f"{cell:>{NUMBER_WIDTH}}" for cell in cells))


def _duration(hours: float) -> str:
    if hours * HOUR < 120:
        return f"{hours * HOUR:.0f} s"
    if hours < 2:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 2 * DAY else f"{hours / DAY:.1f} days"


def _price(dollars: float) -> str:
    return f"${dollars:,.2f}" if dollars < 100 else f"${dollars:,.0f}"
