"""The plan of a recipe or a pipeline: what is read of its models and data, its plan, its disk, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from whet import recipe as recipes
from whet.config import OfflineConfig, OnlineConfig
from whet.config.loops import Acting, CollectConfig
from whet.config.pipeline import references
from whet.errors import RunFailed, UserError
from whet.models.sizes.pass_bytes import FP32
from whet.tasks.loading import guarded_task
from whet.train.optimizers.state_sizes import moment_bytes, moments_per_weight
from whet.train.plan.advice import Advice, advise
from whet.train.plan.gpus import GPU, GPUS, like
from whet.train.plan.largest import Largest, largest
from whet.train.plan.owners import by_owner, host_bytes
from whet.train.plan.placement import all_weights, placement
from whet.train.plan.planning import Plan, make_plan
from whet.train.plan.recipe_facts import evaluations_of, models_of, work_of
from whet.train.plan.run_shapes import RunShapes, run_shapes
from whet.train.plan.token_lengths import FLAGS, Lengths, examples_of, token_lengths
from whet.train.plan.workload import Spread
from whet.train.setup.disk_use import DiskUse, SavedSizes, disk_use
from whet.train.setup.epochs import load_sides, with_steps
from whet.train.setup.stage_models import with_stage_model

if TYPE_CHECKING:
    from whet.config.loops import Training
    from whet.recipe import Pipeline, Recipe
    from whet.tasks.protocol import Task
    from whet.train.plan.workload import Models

ENOUGH = 2**50  # bytes of a GPU on which everything fits


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a plan is made for."""

    gpu: GPU
    gpus: int = 1
    prompt: int | None = None  # tokens, in place of measured ones
    completion: int | None = None
    shape: str | None = None  # of a well-known model, in place of the policy's


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipePlan:
    """A plan with what it rests on and what follows from it."""

    recipe: str
    plan: Plan
    unbound: Plan  # the same on a GPU with enough memory: what a step would take if it fitted
    shapes: RunShapes
    lengths: Lengths
    owners: Mapping[str, Mapping[str, int]]  # moment → owner → bytes
    host: int  # bytes in host memory
    places: Mapping[str, Sequence[str]]  # model → GPUs of its own
    most: Largest  # micro-batch and slots
    disk: DiskUse
    notes: tuple[str, ...]
    advice: tuple[Advice, ...]  # none if it fits
    fits_on: tuple[str, ...]  # GPUs of the table on which it fits as it is

    @property
    def shown(self) -> Plan:
        """The plan whose seconds are told."""
        return self.plan if self.plan.fits else self.unbound


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What is known of a run before it is planned."""

    config: Training  # with its number of steps
    shapes: RunShapes
    lengths: Lengths
    notes: tuple[str, ...]


def known(recipe: Recipe, asked: Asked) -> Known:
    """What a recipe's models, task and data say."""
    if isinstance(recipe.config, CollectConfig):
        raise UserError(f"{recipe.name} makes rows and trains nothing: there is no step to plan")
    if isinstance(recipe.config, Acting):
        raise UserError(f"{recipe.name} trains a small network in environments: plans are of language models")
    config, task, rows, notes = _read(recipe.config, asked)
    shapes = run_shapes(config, task, named=asked.shape)
    lengths, told = _lengths(config, task, rows, shapes, asked)
    return Known(config=config, shapes=shapes, lengths=lengths, notes=(*notes, *told, *shapes.notes))


def plan_recipe(recipe: Recipe, asked: Asked) -> RecipePlan:
    """The plan of a recipe of one run."""
    found = known(recipe, asked)
    config, shapes, lengths = found.config, found.shapes, found.lengths
    plan = plan_config(config, shapes, lengths, asked.gpu, asked.gpus)
    unbound = plan_config(config, shapes, lengths, ample(asked.gpu), asked.gpus)
    fits_on = tuple(
        name
        for name, gpu in GPUS.items()
        if not plan.fits and plan_config(config, shapes, lengths, gpu, asked.gpus).fits
    )
    return RecipePlan(
        recipe=recipe.name,
        plan=plan,
        unbound=unbound,
        shapes=shapes,
        lengths=lengths,
        owners=by_owner(plan.models, plan.work, plan.peaks),
        host=host_bytes(plan.peaks),
        places={} if isinstance(config, OfflineConfig) else config.placement.places,
        most=largest(plan.models, plan.work, plan.gpu.memory),
        disk=planned_disk(config, plan.models, shapes.exported),
        notes=(*found.notes, *_notes(config, shapes, plan)),
        advice=() if plan.fits else _advice(config, shapes, lengths, asked, unbound.seconds.step),
        fits_on=fits_on,
    )


def plan_pipeline(pipeline: Pipeline, asked: Asked) -> dict[str, RecipePlan | str]:
    """Dotted name of each run → its plan, or why there is none."""
    stages = {recipe.name: recipe for recipe in pipeline.stages()}
    return {name: _plan_run(with_stage_model(one, stages), asked) for name, one in pipeline.runs().items()}


def _plan_run(recipe: Recipe, asked: Asked) -> RecipePlan | str:
    if isinstance(recipe.config, CollectConfig):
        return "makes rows and trains nothing: not planned"
    try:
        return plan_recipe(recipe, asked)
    except UserError as error:
        missing = references(recipes.plain(recipe.config))
        if not missing:
            raise
        return f"known when {' and '.join(sorted(missing))} is there ({error})"


def plan_config(config: Training, shapes: RunShapes, lengths: Lengths, gpu: GPU, gpus: int = 1) -> Plan:
    """The plan of a config whose models have these shapes and whose sequences have these lengths."""
    places = {} if isinstance(config, OfflineConfig) else config.placement.places
    own = () if isinstance(config, OfflineConfig) else config.placement.names
    if own and gpus <= len(own):
        raise UserError(
            f"placement names {', '.join(own)} beside the GPUs of the trainer: plan with --gpus {len(own) + 1} or more"
        )
    gpus -= len(own)
    share = config.batch_size if isinstance(config, OfflineConfig) else config.rollout.prompts
    if share < gpus:
        raise UserError(f"{share} prompts or rows a step cannot be shared by {gpus} GPUs: raise the number")
    work = work_of(config, prompt=lengths.prompt, completion=lengths.completion, gpus=gpus)
    room = max(1, shapes.policy.context - work.prompt)  # completions end at the context
    longest = replace(work, completion=lengths.completion, eval_completion=min(work.eval_completion, room))
    models = models_of(config, shapes.policy, reward=shapes.reward, reward_adapter=shapes.reward_adapter)
    models = replace(models, spread=spread_of(config, gpus))
    if own:
        shared = {name: -(-gpus // len(devices)) if devices else 0 for name, devices in places.items()}
        models = replace(models, reference_apart=shared["reference"], reward_apart=shared["reward"])
        models = replace(models, reward_adapter=0) if shared["reward"] else models
    return make_plan(
        models,
        longest,
        gpu,
        usual=replace(longest, prompt=lengths.mean_prompt, completion=lengths.mean_completion),
        gpus=gpus,
        steps=config.steps,
        evaluations=evaluations_of(config),
        places=places,
    )


def spread_of(config: Training, gpus: int) -> Spread | None:
    """How so many GPUs share the models of a config; one GPU has all of them."""
    distributed = config.distributed
    if distributed.sharding == "none" or gpus == 1:
        return None
    if gpus % distributed.replicas:
        raise UserError(f"distributed.replicas is {distributed.replicas}, which does not divide {gpus} GPUs")
    ranks = gpus // distributed.replicas
    if ranks == 1:
        return None
    return Spread(kind=distributed.sharding, ranks=ranks, cpu_offload=distributed.cpu_offload)


def planned_disk(config: Training, m: Models, exported: int) -> DiskUse:
    """What the run writes: `exported` are the bytes of one weight of its best model."""
    m = replace(m, spread=None)  # files hold whole tensors
    held = placement(m)
    own = held.gradients - placement(replace(m, critic="none")).gradients  # of a critic's trained weights, in fp32
    moves = isinstance(config, OnlineConfig) and (
        config.algorithm.kl.reference == "sync" or config.cold_start.steps > 0
    )
    reference = FP32 * m.adapters or held.models["reference"]
    others = max(own, held.models["critic"]) + (reference if moves and m.reference == "copy" else 0)
    masters = held.gradients if m.storage == "streamed" else 0
    sizes = SavedSizes(
        weights=(FP32 * m.adapters or held.weights) + others + masters,
        moments=held.state // moment_bytes(m.optimizer) or moments_per_weight(m.optimizer) * held.gradients // FP32,
        best=exported * (m.adapters or all_weights(m.policy)),
    )
    return disk_use(config, sizes)


def _read(config: Training, asked: Asked) -> tuple[Training, Task | None, Sequence[Any], list[str]]:
    """The config with its number of steps, its task and its rows, as far as they are here and needed."""
    task: Task | None = None
    rows: Sequence[Any] = ()
    notes: list[str] = []
    needs_rows = asked.prompt is None or asked.completion is None or config.epochs is not None
    if isinstance(config, OfflineConfig) and config.data is not None:
        try:
            rows = load_sides(config.data)[1] if needs_rows else ()
        except UserError as error:
            if config.epochs is not None:
                raise UserError(f"{error}; to plan without the data, give a number of steps, e.g. steps=1000") from None
            notes.append(f"the data is not here ({error})")
        if config.epochs is not None:
            steps = max(1, ceil(config.epochs * len(rows) / config.batch_size))
            config = config.model_copy(update={"steps": steps, "epochs": None})
    else:
        found = with_steps(config)
        assert isinstance(found, OnlineConfig | OfflineConfig)
        config = found
    try:
        task = guarded_task(config.task.name, config.task.options)
    except UserError as error:
        if config.model.new is not None:  # its vocabulary may be the task's
            raise
        notes.append(f"the task is not here ({error})")
    return config, task, rows, notes


def _lengths(
    config: Training, task: Task | None, rows: Sequence[Any], shapes: RunShapes, asked: Asked
) -> tuple[Lengths, list[str]]:
    """Lengths of sequences, and a note where there was nothing to measure."""
    given, told = {"prompt": asked.prompt, "completion": asked.completion}, []
    is_given = asked.prompt is not None and (asked.completion is not None or isinstance(config, OnlineConfig))
    has_data = isinstance(config, OfflineConfig) and config.data is not None
    try:
        examples = [] if is_given else examples_of(config, None if has_data else task, rows)
    except (UserError, RunFailed) as error:
        examples, told = [], [f"prompts are not here ({error}): lengths are assumed, {' and '.join(FLAGS)} change them"]
    return token_lengths(config, shapes, examples, **given), told


def ample(gpu: GPU) -> GPU:
    """The same GPU with enough memory."""
    return replace(gpu, memory=ENOUGH)


def _advice(config: Training, shapes: RunShapes, lengths: Lengths, asked: Asked, seconds: float) -> tuple[Advice, ...]:
    def plan_of(other: Training) -> Plan:
        return plan_config(other, shapes, lengths, asked.gpu, asked.gpus)

    return advise(config, plan_of, seconds=seconds, places=True)


def _notes(config: Training, shapes: RunShapes, plan: Plan) -> list[str]:
    """What the plan does not know, in sentences."""
    found = []
    if config.device == "cpu":
        found.append("device is cpu: planned is the same recipe on a GPU")
    if isinstance(config, OnlineConfig) and config.engine.name == "vllm":
        found.append("engine.name is vllm: planned is engine.name=native, and vLLM takes engine.memory_share besides")
    if isinstance(config, OnlineConfig) and config.reward.model is not None and config.judge is None:
        found.append("reward.model.workers score on CPUs: how long a step waits for them is not planned")
    if not plan.models.is_fused:
        found.append("the kernels of whet do not serve this shape: plain blocks are less closely predicted")
    if not shapes.policy.causal:
        found.append("a bidirectional model keeps no KV cache: evaluation needs less than planned")
    if plan.gpu.name not in GPUS:
        found.append(f"{plan.gpu.name}: speed and price are those of {like(plan.gpu.memory).name}")
    if plan.apart:
        found.append(
            f"{plan.gpus} of {plan.gpus + len(plan.apart)} GPUs train; passes on the others overlap with nothing here"
        )
    found += _of_several(plan)
    if plan.usual.rounds > 1:
        found.append(f"dynamic sampling: {plan.usual.rounds:g} rounds of sampling a step are assumed")
    return found


def _of_several(plan: Plan) -> list[str]:
    """How several GPUs hold the models."""
    spread = plan.models.spread
    if spread is None:
        alike = "every GPU holds all weights, gradients and moments (data parallel): more GPUs save time alone"
        return [alike] if plan.gpus > 1 else []
    found = [f"spread over {spread.ranks} GPUs ({spread.kind}): not yet compared with memory measured on GPUs"]
    if spread.cpu_offload:
        found.append("host memory is that of one GPU's process; seconds leave out the optimizer step there")
    return found
