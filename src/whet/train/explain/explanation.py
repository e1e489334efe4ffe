"""Explains a recipe or a pipeline: loss, batch sizes, memory and schedule, without loading weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from whet import recipe as recipes
from whet.algorithms.advantages import keep_all
from whet.algorithms.cells import plain
from whet.algorithms.table import Algorithm, Objective
from whet.batching import split_prompts
from whet.config import OfflineConfig, OnlineConfig, OptimizerConfig
from whet.config.loops import Acting, CollectConfig, Training
from whet.config.objective import objective_row
from whet.config.pipeline import references
from whet.errors import UserError
from whet.models.protocol import Tokenizer
from whet.models.references import BIGRAM_LARGEST
from whet.recipe import Pipeline, Recipe
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Task
from whet.train.explain.formula import Loss, offline_loss, policy_loss
from whet.train.explain.memory import ModelMemory, find_model, require_other_models
from whet.train.explain.processes import processes
from whet.train.explain.unused_keys import keys_without_effect
from whet.train.optimizers.optimizer import learning_rate
from whet.train.setup.chosen_algorithm import build_algorithm
from whet.train.setup.disk_use import FP32_BYTES, DiskUse
from whet.train.setup.epochs import with_steps
from whet.train.setup.stage_models import with_stage_model

MEASURED = 64  # examples whose tokens are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Batch sizes of one step."""

    prompts: int  # offline: rows
    group: int = 1
    sequences: int  # prompts × group
    greedy: int = 0  # greedy completions, only as baselines
    rounds: int = 1  # most sampling rounds
    epochs: int = 1
    minibatches: int = 1
    updates: int = 1  # optimizer steps: epochs × minibatches
    target_kl: float | None = None  # nats per token, above which updates stop
    sequences_per_update: tuple[int, int]  # fewest and most
    oldest: int = 0  # most updates between the sampling policy and the policy before the last update


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Tokens of one step; None if unknown without the model's tokenizer."""

    measured_on: int  # examples
    prompt_mean: float | None
    prompt_longest: int | None
    completion: float | None  # online: max_tokens; offline: mean answer with its end of sequence
    trained: int | None  # per step: sequences × completion
    total: int | None  # per step: with the prompts
    window: int | None = None  # of objectives that read a text: tokens of a window; there are no prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Schedule of the run."""

    steps: int
    updates: int  # optimizer steps
    optimizer: str
    rates: tuple[float, float, float]  # learning rate of the first step, peak, last step
    shape: str  # of the learning rate over the run, in words
    critic_rate: float | None  # peak; None without a critic
    critic_alone: int  # warm-up steps in which only the critic trains
    cold_start: tuple[int, int, float] | None  # supervised steps, rows per step, learning rate
    evaluations: int  # including those before the first and after the last step
    eval_examples: int
    eval_sequences: int  # per evaluation: greedy answers and samples
    checkpoints: int  # written; `save.keep` of them are kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    recipe: str
    loop: str
    task: str
    loss: Loss
    step: Step
    tokens: Tokens
    model: ModelMemory | None
    missing: str  # why the model is unknown, else empty
    schedule: Schedule
    processes: Mapping[str, str]  # who trains and who samples, and how they hold the models
    without_effect: Mapping[str, str]  # written key → reason
    notes: tuple[str, ...]  # allowed settings that are probably mistakes


def explain(recipe: Recipe) -> Explanation:
    """Explains a recipe; a model that is not pulled leaves its numbers unknown, other mistakes raise UserError."""
    config = with_steps(recipe.config)
    if isinstance(config, CollectConfig):
        raise UserError(f"{recipe.name} makes rows and trains nothing: run it with whet train {recipe.name}")
    if isinstance(config, Acting):
        raise UserError(f"{recipe.name} trains a small network in environments: whet explain is of language models")
    task = guarded_task(config.task.name, config.task.options)
    algorithm = build_algorithm(config.algorithm) if isinstance(config, OnlineConfig) else None
    require_other_models(config)
    model, tokenizer, missing = find_model(config, task, algorithm)
    step = _step(config, algorithm)
    tokens = _window_tokens(config, model, step) or _tokens(config, task, tokenizer, step)
    schedule = _schedule(config, algorithm, task, step)
    return Explanation(
        recipe=recipe.name,
        loop=config.loop,
        task=" ".join([config.task.name, *(f"{key}={value}" for key, value in config.task.options.items())]),
        loss=policy_loss(config) if isinstance(config, OnlineConfig) else offline_loss(config),
        step=step,
        tokens=tokens,
        model=model,
        missing=missing,
        schedule=schedule,
        processes=processes(config),
        without_effect=keys_without_effect(replace(recipe, config=config)),
        notes=tuple(_notes(config, tokens, model, schedule)),
    )


def _step(config: Training, algorithm: Algorithm | None) -> Step:
    if isinstance(config, OfflineConfig):
        rows = config.batch_size
        return Step(prompts=rows, sequences=rows, sequences_per_update=(rows, rows))
    assert algorithm is not None
    rollout, update = config.rollout, config.update
    sizes = [len(prompts) for prompts in split_prompts(rollout.prompts, update.minibatches, seed=(config.seed,))]
    updates = update.epochs * update.minibatches
    return Step(
        prompts=rollout.prompts,
        group=rollout.group,
        sequences=rollout.prompts * rollout.group,
        greedy=rollout.prompts if algorithm.needs_greedy else 0,
        rounds=1 if plain(algorithm.dynamic_sampling) is keep_all else 1 + rollout.max_resamples,
        epochs=update.epochs,
        minibatches=update.minibatches,
        updates=updates,
        target_kl=update.target_kl,
        sequences_per_update=(min(sizes) * rollout.group, max(sizes) * rollout.group),
        oldest=updates - 1 + config.staleness * updates,
    )


def _window_tokens(config: Training, model: ModelMemory | None, step: Step) -> Tokens | None:
    """Tokens of a step on windows of a text, as long as the context; None for other objectives.

    A causal model is trained on all of them, a bidirectional one on those that are masked, a random number.
    """
    row = objective_row(config.objective) if isinstance(config, OfflineConfig) else None
    if not isinstance(row, Objective) or row.reads != "text" or model is None or model.context is None:
        return None
    total = step.sequences * model.context
    return Tokens(
        measured_on=0,
        prompt_mean=None,
        prompt_longest=None,
        completion=None,
        trained=total if row.masking is None else None,
        total=total,
        window=model.context,
    )


def _tokens(config: Training, task: Task, tokenizer: Tokenizer | None, step: Step) -> Tokens:
    prompts: list[int] = []
    answers: list[int] = []
    if tokenizer is not None:
        examples = task.draw(min(step.prompts, MEASURED), seed=(config.seed, 1))
        prompts = [len(tokenizer.prompt(example.prompt)) for example in examples]
        if isinstance(config, OfflineConfig):
            answers = [len(tokenizer.encode(example.answer)) + 1 for example in examples]
    prompt = fmean(prompts) if prompts else None
    longest = config.rollout.max_tokens if isinstance(config, OnlineConfig) else None
    completion = fmean(answers) if answers else longest
    trained = None if completion is None else round(step.sequences * completion)
    total = None if prompt is None or completion is None else round(step.sequences * (prompt + completion))
    return Tokens(
        measured_on=len(prompts),
        prompt_mean=prompt,
        prompt_longest=max(prompts, default=None),
        completion=completion,
        trained=trained,
        total=total,
    )


def _schedule(config: Training, algorithm: Algorithm | None, task: Task, step: Step) -> Schedule:
    # The rate never rises after the warm-up.
    peak = min(config.steps, max(1, config.optimizer.warmup(config.steps)))
    rates = [learning_rate(number, config.steps, config.optimizer) for number in (1, peak, config.steps)]
    critic = config.critic if isinstance(config, OnlineConfig) and algorithm and algorithm.needs_values else None
    examples = sum(len(one.held_out(config.eval.examples)) for one in _evaluation(config, task))
    cold = config.cold_start if isinstance(config, OnlineConfig) and config.cold_start.steps else None
    return Schedule(
        steps=config.steps,
        updates=config.steps * step.updates,
        optimizer=config.optimizer.name,
        rates=(rates[0], rates[1], rates[2]),
        shape=_shape(config.optimizer, config.steps),
        critic_rate=None if critic is None else rates[1] * (critic.lr or config.optimizer.lr) / config.optimizer.lr,
        critic_alone=0 if critic is None else min(config.steps, critic.warmup_steps),
        cold_start=None if cold is None else (cold.steps, cold.batch_size, cold.lr),
        evaluations=1 + ceil(config.steps / config.eval.every_steps) if config.eval.every_steps else 0,
        eval_examples=examples,
        eval_sequences=examples * (1 + config.eval.samples),
        checkpoints=ceil(config.steps / config.save.every_steps),
    )


def _evaluation(config: Training, task: Task) -> list[Task]:
    """The tasks whose held-out prompts are answered in an evaluation."""
    return [
        task if one == config.task else guarded_task(one.name, one.options) for one in config.evaluation_tasks.values()
    ]


def _shape(optimizer: OptimizerConfig, steps: int) -> str:
    """The course of the learning rate, e.g. 5 steps of warm-up, 75 constant, 20 of linear decay."""
    warmup = min(steps, optimizer.warmup(steps))
    decay = min(steps - warmup, ceil(optimizer.decay_share * steps)) if optimizer.schedule == "wsd" else steps - warmup
    ending = {"constant": "constant", "wsd": "of linear decay"}.get(
        optimizer.schedule, f"of {optimizer.schedule} decay"
    )
    floor = f" to {optimizer.min_lr_share:g} of the peak" if optimizer.min_lr_share else ""
    parts = [
        (warmup, "steps of warm-up"),
        (steps - warmup - decay, "constant"),
        (decay, ending + (floor if optimizer.schedule != "constant" else "")),
    ]
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def _notes(config: Training, tokens: Tokens, model: ModelMemory | None, schedule: Schedule) -> list[str]:
    notes = []
    warmup = config.optimizer.warmup(config.steps)
    if warmup > config.steps:
        notes.append(
            f"optimizer.warmup_steps {warmup} is more than steps {config.steps}: the learning rate reaches "
            f"{schedule.rates[1]:.3g}, never {config.optimizer.lr:g}"
        )
    if config.eval.samples and not config.eval.ks:
        notes.append("eval.samples are drawn and recorded, but without eval.ks no pass@k is computed from them")
    if schedule.evaluations and schedule.eval_examples < config.eval.examples:
        notes.append(f"there are {schedule.eval_examples} held-out examples, fewer than eval.examples")
    if not isinstance(config, OnlineConfig) or model is None:
        return notes
    if config.algorithm.kl.reference == "bigram" and model.reference > BIGRAM_LARGEST**2 * FP32_BYTES:
        notes.append(f"the bigram reference is for a vocabulary of at most {BIGRAM_LARGEST} tokens: the run will fail")
    if model.context is not None and tokens.prompt_longest is not None:
        room = model.context - tokens.prompt_longest
        if room < config.rollout.max_tokens:
            what = "the run will fail" if room < 1 else "completions are truncated before rollout.max_tokens"
            prompt = f"a prompt has {tokens.prompt_longest} tokens and the model's context is {model.context}"
            notes.append(f"{prompt}: {what}")
    return notes


def explain_pipeline(pipeline: Pipeline) -> dict[str, Explanation | str]:
    """Dotted name of each run → its explanation, or why it is unknown before an earlier stage has run."""
    stages = {recipe.name: recipe for recipe in pipeline.stages()}
    return {name: _explain(with_stage_model(recipe, stages)) for name, recipe in pipeline.runs().items()}


def disk_of(recipe: Recipe) -> DiskUse | None:
    """What a run takes on disk; None if its model or data are not there yet, or it trains nothing."""
    try:
        config = with_steps(recipe.config)
        if isinstance(config, CollectConfig | Acting):
            return None
        task = guarded_task(config.task.name, config.task.options)
        algorithm = build_algorithm(config.algorithm) if isinstance(config, OnlineConfig) else None
        model, _, _ = find_model(config, task, algorithm)
    except UserError:
        return None
    return None if model is None else model.disk


def disk_of_pipeline(pipeline: Pipeline) -> dict[str, DiskUse | None]:
    """Dotted name of each run → what it takes on disk."""
    stages = {recipe.name: recipe for recipe in pipeline.stages()}
    return {name: disk_of(with_stage_model(recipe, stages)) for name, recipe in pipeline.runs().items()}


def _explain(recipe: Recipe) -> Explanation | str:
    config = recipe.config
    if isinstance(config, CollectConfig):
        by = f"the reward model {config.reward.model.path}" if config.reward.model else f"task {config.task.name}"
        by = "the tokens of the answers" if config.reward.tokens else by
        drawn = f"{config.steps * config.rollout.prompts:,} prompts × {config.rollout.group:,} completions"
        return f"collects {config.select}: {drawn}, scored by {by}"
    try:
        return explain(recipe)
    except UserError as error:
        missing = references(recipes.plain(config))
        if not missing:
            raise
        return f"known when {' and '.join(sorted(missing))} is there ({error})"
