"""What a recipe will do, before it does it: computed from the recipe alone, without loading a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from whet.algorithms.table import OBJECTIVES
from whet.batching import split_prompts
from whet.config import NewModel, OfflineConfig, OnlineConfig, TrainConfig
from whet.errors import UserError
from whet.models.decoder_config import DecoderConfig, parameter_count
from whet.models.families import family_named, head_width
from whet.models.hub import resolve_model
from whet.models.load import model_summary, usual_mlp_width
from whet.models.protocol import Tokenizer
from whet.models.tokenizers import load_tokenizer
from whet.recipe import Config, Recipe
from whet.tasks.guard import guarded_task
from whet.tasks.protocol import Task
from whet.train.formula import Loss, policy_loss, supervised_loss
from whet.train.inert import keys_without_effect
from whet.train.optim import learning_rate
from whet.train.parts import build_algorithm, new_tokenizer

FP32_BYTES = 4
ADAM_MOMENTS = 2
MEASURED = 64  # examples whose tokens are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one step works through."""

    prompts: int  # offline: rows
    group: int
    sequences: int  # prompts × group
    updates: int  # optimizer steps on them: epochs × minibatches
    sequences_per_update: tuple[int, int]  # fewest and most
    oldest: int  # updates between the policy that sampled the rollouts and the one that the last update starts from


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """How many tokens one step has. None: not known without the model's tokeniser."""

    measured_on: int  # examples
    prompt_mean: float | None
    prompt_longest: int | None
    completion: float | None  # online: the longest allowed; offline: the mean answer, end of sequence included
    trained: int | None  # per step: sequences × completion
    total: int | None  # per step: with the prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """The policy, and the bytes that do not depend on the batch."""

    about: str
    context: int | None
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    reference: int  # 0 where none is needed

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.weights + self.gradients + self.optimizer + self.reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """What happens over the whole run."""

    steps: int
    updates: int  # optimizer steps
    rates: tuple[float, float, float]  # learning rate of the first step, the highest, of the last step
    evaluations: int  # the ones before the first and after the last step included
    eval_examples: int
    eval_sequences: int  # per evaluation: greedy answers and samples
    checkpoints: int  # written; `save.keep` of them stay


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """A recipe in numbers and formulas."""

    recipe: str
    loop: str
    task: str
    loss: Loss
    step: Step
    tokens: Tokens
    model: Model | None
    missing: str  # why there is no model, else empty
    schedule: Schedule
    without_effect: Mapping[str, str]  # written key → reason
    notes: tuple[str, ...]  # what is allowed and probably not meant


def explain(recipe: Recipe) -> Explanation:
    """What will happen; a model that is not here leaves its numbers unknown, any other mistake is a UserError."""
    config = recipe.config
    task = guarded_task(config.task.name, config.task.options)
    loss, copies = _loss(config)
    model, tokenizer, missing = _model(config, task, copies=copies)
    step = _step(config)
    tokens = _tokens(config, task, tokenizer, step)
    schedule = _schedule(config, task, step)
    return Explanation(
        recipe=recipe.name,
        loop=config.loop,
        task=" ".join([config.task.name, *(f"{key}={value}" for key, value in config.task.options.items())]),
        loss=loss,
        step=step,
        tokens=tokens,
        model=model,
        missing=missing,
        schedule=schedule,
        without_effect=keys_without_effect(recipe),
        notes=tuple(_notes(config, tokens, model, schedule)),
    )


def _loss(config: Config) -> tuple[Loss, int]:
    """The loss, and how many copies of the weights it needs: two with a reference."""
    if isinstance(config, OfflineConfig):
        return supervised_loss(OBJECTIVES[config.objective]), 1
    algorithm = build_algorithm(config.algorithm)
    return policy_loss(algorithm, max_tokens=config.rollout.max_tokens), 2 if algorithm.needs_reference else 1


def _step(config: Config) -> Step:
    if isinstance(config, OfflineConfig):
        return Step(
            prompts=config.rows,
            group=1,
            sequences=config.rows,
            updates=1,
            sequences_per_update=(config.rows, config.rows),
            oldest=0,
        )
    rollout, update = config.rollout, config.update
    sizes = [len(prompts) for prompts in split_prompts(rollout.prompts, update.minibatches, seed=(config.seed,))]
    updates = update.epochs * update.minibatches
    return Step(
        prompts=rollout.prompts,
        group=rollout.group,
        sequences=rollout.prompts * rollout.group,
        updates=updates,
        sequences_per_update=(min(sizes) * rollout.group, max(sizes) * rollout.group),
        oldest=updates - 1,
    )


def _tokens(config: Config, task: Task, tokenizer: Tokenizer | None, step: Step) -> Tokens:
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


def _model(config: Config, task: Task, *, copies: int) -> tuple[Model | None, Tokenizer | None, str]:
    """The policy and its tokeniser; or why they are not here."""
    if config.model.new is not None:
        new = config.model.new
        tokenizer = new_tokenizer(new, task)
        parameters = parameter_count(new_decoder_config(new, tokenizer.vocab_size))
        facts: Mapping[str, Any] = {"family": new.family, "context": new.context, "parameters": parameters}
        about = f"new {new.family}, {new.layers} layers, width {new.width}"
    else:
        try:
            directory = resolve_model(config.model.path)
        except UserError as error:
            return None, None, str(error)
        tokenizer, facts = load_tokenizer(directory), model_summary(directory)
        about = f"{facts['family']} from {directory}"
    weights = facts["parameters"] * FP32_BYTES
    model = Model(
        about=about,
        context=facts["context"],
        parameters=facts["parameters"],
        weights=weights,
        gradients=weights,
        optimizer=ADAM_MOMENTS * weights,
        reference=(copies - 1) * weights,
    )
    return model, tokenizer, ""


def new_decoder_config(new: NewModel, vocab_size: int) -> DecoderConfig:
    """The shape of the decoder that a run would make."""
    family = family_named(new.family)
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "layers": new.layers,
        "heads": new.heads,
        "kv_heads": new.heads,
        "head_dim": head_width(new.width, new.heads),
        "width": new.width,
        "mlp_width": usual_mlp_width(family, new.width),
        "context": new.context,
    }
    return DecoderConfig(**{**family.traits, **shape})


def _schedule(config: TrainConfig, task: Task, step: Step) -> Schedule:
    # The rate rises until the end of the warm-up and never afterwards.
    peak = min(config.steps, max(1, config.optimizer.warmup_steps))
    rates = [learning_rate(number, config.steps, config.optimizer) for number in (1, peak, config.steps)]
    examples = len(task.held_out(config.eval.examples))
    return Schedule(
        steps=config.steps,
        updates=config.steps * step.updates,
        rates=(rates[0], rates[1], rates[2]),
        evaluations=1 + _times(config.eval.every_steps, config.steps),
        eval_examples=examples,
        eval_sequences=examples * (1 + config.eval.samples),
        checkpoints=_times(config.save.every_steps, config.steps),
    )


def _times(every: int, steps: int) -> int:
    """How often something happens that is due every so many steps, and after the last one."""
    return steps // every + (steps % every > 0)


def _notes(config: Config, tokens: Tokens, model: Model | None, schedule: Schedule) -> list[str]:
    notes = []
    warmup = config.optimizer.warmup_steps
    if warmup > config.steps:
        notes.append(
            f"optimizer.warmup_steps {warmup} is more than steps {config.steps}: the learning rate reaches "
            f"{schedule.rates[1]:.3g}, never {config.optimizer.lr:g}"
        )
    if config.eval.samples and not config.eval.ks:
        notes.append("eval.samples are drawn and recorded, but without eval.ks no pass@k is computed from them")
    if schedule.eval_examples < config.eval.examples:
        notes.append(f"the task has {schedule.eval_examples} held-out examples, fewer than eval.examples")
    notes += _room(tokens.prompt_longest, config, model)
    return notes


def _room(prompt: int | None, config: Config, model: Model | None) -> Sequence[str]:
    """What the context cuts off."""
    if prompt is None or model is None or model.context is None or not isinstance(config, OnlineConfig):
        return []
    room = model.context - prompt
    if room < 1:
        return [f"a prompt has {prompt} tokens and the model's context is {model.context}: the run will stop there"]
    if room < config.rollout.max_tokens:
        return [f"the context of {model.context} leaves {room} tokens after a prompt of {prompt}, not max_tokens"]
    return []
