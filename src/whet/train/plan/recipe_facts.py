"""From a config to the numbers of a plan: which models there are, how they are kept, and what a step does."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Literal

from whet.algorithms.advantages import keep_all
from whet.algorithms.cells import plain
from whet.algorithms.preference.preference_table import Preference, RewardObjective
from whet.config import OfflineConfig, OnlineConfig
from whet.config.objective import objective_row
from whet.errors import UserError
from whet.models.adapters.adapter_targets import chosen, refuse_rank
from whet.models.sizes.weight_counts import adapter_weights, layer_names, layer_shape
from whet.train.plan.workload import Models, Storage, Work
from whet.train.setup.chosen_algorithm import build_algorithm, old_source

if TYPE_CHECKING:
    from whet.config.loops import Training
    from whet.config.model_config import LoRAConfig
    from whet.models.layers.decoder_config import DecoderConfig


def models_of(
    config: Training,
    shape: DecoderConfig,
    *,
    reward: DecoderConfig | None = None,
    reward_adapter: int = 0,
    on_gpu: bool = True,
) -> Models:
    """The models of a run whose policy has this shape; `reward` is the shape of its reward model, if it has one."""
    from whet.models.layers.decoder_config import has_usual_blocks, is_served

    lora = config.model.lora
    online = isinstance(config, OnlineConfig)
    algorithm = build_algorithm(config.algorithm) if isinstance(config, OnlineConfig) else None
    reference: Literal["none", "copy", "shared"] = "none"
    if algorithm is not None and algorithm.needs_reference and isinstance(config, OnlineConfig):
        syncs = config.algorithm.kl.reference == "sync" or config.cold_start.steps > 0
        is_model = config.algorithm.kl.reference not in ("uniform", "bigram")
        reference = "none" if not is_model else "shared" if lora is not None and not syncs else "copy"
    critic: Literal["none", "separate", "shared"] = "none"
    if algorithm is not None and algorithm.needs_values and isinstance(config, OnlineConfig):
        critic = config.critic.model
    learns_scores = _learns_scores(config)
    return Models(
        policy=shape,
        storage=_storage(config),
        adapters=0 if lora is None else _adapters(lora, shape),
        optimizer=config.optimizer.name,
        recompute=config.model.gradient_checkpointing,
        is_fused=is_served(shape) if on_gpu else has_usual_blocks(shape),
        has_head=not learns_scores,
        reference=reference,
        critic=critic,
        reward=reward,
        reward_adapter=0 if lora is None or lora.quantization != "none" else reward_adapter,
        on_gpu=on_gpu,
        samples=online or (bool(config.eval.every_steps) and not learns_scores),
        engine_half=2 if on_gpu and config.engine.precision == "bf16" else 4,
    )


def _adapters(lora: LoRAConfig, shape: DecoderConfig) -> int:
    """Weights of the adapters; refuses what training refuses."""
    try:
        layers = chosen(layer_names(shape), lora.targets)
    except UserError as error:
        raise UserError(f"model.lora.targets: {error}") from error
    refuse_rank(lora.rank, (layer_shape(shape, layer) for layer in layers))
    return adapter_weights(shape, lora.rank, layers)


def _learns_scores(config: Training) -> bool:
    """Whether a reward model is trained: its evaluation samples nothing."""
    return isinstance(config, OfflineConfig) and isinstance(objective_row(config.objective), RewardObjective)


def _storage(config: Training) -> Storage:
    """How the policy's matrices are kept on a GPU."""
    if config.model.lora is not None:
        return "nf4" if config.model.lora.quantization == "nf4" else "frozen"
    kinds: dict[str, Storage] = {"fp32": "fp32", "bf16": "bf16", "offload": "streamed"}
    return kinds[config.optimizer.master_weights]


def work_of(config: Training, *, prompt: int, completion: int, gpus: int = 1, on_gpu: bool = True) -> Work:
    """The work of one of `gpus` GPUs: prompts and rows are divided among them.

    `prompt` and `completion` are in tokens; a completion of an online run is as long as it may be.
    """
    update, engine, evaluation = config.update, config.engine, config.eval
    evaluated = evaluation.examples if evaluation.every_steps and not _learns_scores(config) else 0
    work = partial(
        Work,
        prompt=max(1, prompt),
        micro_batch_tokens=update.micro_batch_tokens,
        max_sequences=engine.max_sequences,
        padding_free=update.padding_free,
        eval_prompts=-(-evaluated // gpus),
        eval_samples=max(1, evaluation.samples),
        eval_completion=evaluation.max_tokens,
    )
    if isinstance(config, OfflineConfig):
        row = objective_row(config.objective)
        is_pair = isinstance(row, Preference) and row.unit == "pair"
        is_pair = is_pair or (isinstance(row, RewardObjective) and row.kind == "preference")
        return work(
            loop="offline",
            prompts=-(-config.batch_size // gpus),
            group=2 if is_pair else 1,
            completion=max(1, completion),
        )
    algorithm = build_algorithm(config.algorithm)
    resampled = plain(algorithm.dynamic_sampling) is not keep_all
    return work(
        loop="online",
        prompts=-(-config.rollout.prompts // gpus),
        group=config.rollout.group,
        completion=config.rollout.max_tokens,
        updates=update.epochs * min(update.minibatches, config.rollout.prompts),
        epochs=update.epochs,
        reads_old=old_source(algorithm, config, is_exact=not on_gpu) == "read",
        rounds=2.0 if resampled else 1.0,
        greedy=algorithm.needs_greedy,
        offload=config.offload.model_dump(),
    )


def evaluations_of(config: Training) -> int:
    """Evaluations of the whole run, the one before training included."""
    every = config.eval.every_steps
    return 1 + ceil(config.steps / every) if every else 0
