"""Memory of the models of a run, apart from activations, without loading weights."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from whet.algorithms.table import Algorithm
from whet.config import OfflineConfig, OnlineConfig
from whet.config.loops import Training
from whet.config.model_config import LoRAConfig
from whet.config.objective import hides_tokens
from whet.config.pipeline import REFERENCE
from whet.errors import UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.adapter_targets import ALL_LINEAR, chosen, refuse_rank
from whet.models.download.model_hub import can_be_pulled, resolve_model
from whet.models.layers.decoder_config import (
    DecoderConfig,
    all_heads_bytes_per_token,
    kv_bytes_per_token,
    parameter_count,
)
from whet.models.load import KV_DTYPE, model_summary
from whet.models.model_shape import base_directory, covered, read_config
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import Tokenizer
from whet.models.storage.safetensors_files import stored_tensors
from whet.tasks.protocol import Task
from whet.train.optimizers.state_sizes import STATE_BYTES, moment_bytes, moments_per_weight
from whet.train.plan.placement import placement
from whet.train.plan.recipe_facts import models_of
from whet.train.plan.recipe_plan import planned_disk
from whet.train.plan.run_shapes import reward_adapter, reward_shape
from whet.train.setup.build import chat_tokenizer, export_dtype
from whet.train.setup.corpora import named_tokenizer
from whet.train.setup.disk_use import FP32_BYTES, DiskUse, SavedSizes, disk_use
from whet.train.setup.new_model_shape import new_decoder_config

LEARNING = 3  # per trained weight: a gradient and two Adam moments
BF16_BYTES = 2
NF4_BYTES = 0.5 + 4 / 64  # four bits, and the fp32 absmax of a block of 64 weights
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_positions|wte|wpe|embed_in|word_embeddings)\.weight$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMemory:
    """Bytes of the policy and the other models."""

    about: str
    context: int | None
    parameters: int
    weights: int  # as stored
    joined: int  # copies of them that products read
    gradients: int
    optimizer: int
    reference: int  # 0 without
    critic: int  # its own weights, gradients and moments; 0 without
    reward: int | None  # reward model; 0 without, None if it is not pulled
    kv_per_token: (
        int | None
    )  # what the sampler's cache holds for a token, in bf16; None if transformers samples, 0: bidirectional
    kv_of_all_heads: int | None  # the same if the keys and values of every query head were cached
    disk: DiskUse
    host: int = 0  # master weights and moments that are streamed from host memory

    @property
    def total(self) -> int:
        """On the GPU, or in memory where there is none."""
        trained = self.weights + self.joined + self.gradients + self.optimizer
        return trained + self.reference + self.critic + (self.reward or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a model."""

    parameters: int
    head: int  # of them, in an untied LM head
    width: int
    vocab: int
    context: int | None


def find_model(
    config: Training, task: Task, algorithm: Algorithm | None
) -> tuple[ModelMemory | None, Tokenizer | None, str]:
    """The policy's memory and tokenizer; or why they are unknown."""
    if config.model.new is not None:
        new = config.model.new
        masks = isinstance(config, OfflineConfig) and hides_tokens(config.objective)
        tokenizer, _ = chat_tokenizer(config.model, named_tokenizer(new.tokenizer, task, masks=masks))
        decoder = new_decoder_config(new, tokenizer.vocab_size, causal=not masks)
        about = f"new {new.family}, {new.layers} layers, width {new.width}"
        return _of_decoder(config, algorithm, decoder, about), tokenizer, ""
    try:
        directory = resolve_model(config.model.path)
    except UserError as error:
        if not can_be_pulled(config.model.path):
            raise
        return None, None, str(error)
    tokenizer, _ = chat_tokenizer(config.model, model_tokenizer(directory))
    facts, base = model_summary(directory), _weights_of(directory)
    about, found = f"{facts['family']} from {directory}", covered(base, read_config(base))
    if found is not None:
        return _of_decoder(config, algorithm, found[1], about), tokenizer, ""
    return _of_transformers(config, algorithm, directory, facts, about), tokenizer, ""


def _of_decoder(config: Training, algorithm: Algorithm | None, shape: DecoderConfig, about: str) -> ModelMemory:
    """Memory by the formulas of `whet plan`; a critic's gradients and moments are its own."""
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    judge, shared = _judge(config, shape)
    models = models_of(config, shape, reward=judge, reward_adapter=shared, on_gpu=on_gpu)
    held, alone = placement(models), placement(replace(models, critic="none"))
    lora, kind = config.model.lora, "QLoRA (base in NF4)" if models.storage == "nf4" else "LoRA"
    trained = "" if lora is None else f", {kind} of rank {lora.rank}: {models.adapters:,} trained"
    has_reference = algorithm is not None and algorithm.needs_reference
    is_bigram = has_reference and isinstance(config, OnlineConfig) and config.algorithm.kl.reference == "bigram"
    return ModelMemory(
        about=about + trained,
        context=shape.context,
        parameters=parameter_count(shape) + models.adapters,
        weights=held.weights,
        joined=held.joined + held.sampler,
        gradients=alone.gradients,
        optimizer=alone.state,
        reference=FP32_BYTES * shape.vocab_size**2 if is_bigram else held.reference,
        critic=held.critic + held.gradients - alone.gradients + held.state - alone.state,
        reward=held.reward if judge is not None else _reward_bytes(config),
        kv_per_token=kv_bytes_per_token(shape, KV_DTYPE) if shape.causal else 0,
        kv_of_all_heads=all_heads_bytes_per_token(shape, KV_DTYPE) if shape.causal else 0,
        disk=planned_disk(config, models, FP32_BYTES if lora else export_dtype(config.model).itemsize),
        host=held.host,
    )


def _judge(config: Training, policy: DecoderConfig) -> tuple[DecoderConfig | None, int]:
    """The shape of the reward model, None if it is not known, and the bytes of an adapter on the policy's base."""
    if not isinstance(config, OnlineConfig) or config.judge is None:
        return None, 0
    found, unknown = reward_shape(config.judge.path, policy)
    return (None, 0) if unknown else (found, reward_adapter(config))


def _of_transformers(
    config: Training, algorithm: Algorithm | None, directory: Path, facts: dict[str, Any], about: str
) -> ModelMemory:
    """Memory of a model that transformers runs, by the headers of its files."""
    shape = _shape_on_disk(directory, facts)
    if config.model.lora is not None:
        adapters = adapter_parameters(config.model.lora, directory)
        is_quantized = config.model.lora.quantization == "nf4"
        kind = "QLoRA (base in NF4)" if is_quantized else "LoRA"
        about += f", {kind} of rank {config.model.lora.rank}: {adapters:,} trained"
        quantized = sum(rows * columns for rows, columns in _linear_shapes(directory).values()) if is_quantized else 0
        return _adapted(config, algorithm, shape, about, adapters, quantized)
    weights = shape.parameters * FP32_BYTES
    reference, critic, reward = _other_models(config, algorithm, shape)
    state = _state_bytes(config.optimizer.name, shape)
    return ModelMemory(
        about=about,
        context=shape.context,
        parameters=shape.parameters,
        weights=weights,
        joined=0,
        gradients=weights,
        optimizer=state,
        reference=reference,
        critic=critic,
        reward=reward,
        kv_per_token=None,
        kv_of_all_heads=None,
        disk=disk_use(config, _saved_sizes(config, algorithm, shape, state)),
    )


def adapter_parameters(lora: LoRAConfig, directory: Path) -> int:
    """The number of trained weights: rank · (rows + columns) of every adapted matrix."""
    shapes = _linear_shapes(directory)
    layers = chosen(list(shapes), lora.targets)
    refuse_rank(lora.rank, (shapes[name] for name in layers))
    return lora.rank * sum(sum(shapes[name]) for name in layers)


def _linear_shapes(directory: Path) -> dict[str, Sequence[int]]:
    """(rows, columns) of the linear layers of a model, without its head."""
    shapes = {
        name.removesuffix(".weight"): tensor.shape
        for name, tensor in stored_tensors(directory).items()
        if len(tensor.shape) == 2 and not EMBEDDING.search(name)
    }
    return {name: shapes[name] for name in chosen(list(shapes), ALL_LINEAR)}


def _adapted(
    config: Training, algorithm: Algorithm | None, shape: ModelShape, about: str, adapters: int, quantized: int
) -> ModelMemory:
    """Memory of a LoRA run: one frozen copy of the weights, which reference and critic share, and adapters.

    So many `quantized` weights are in NF4; it does not count the copy of them that a rollout samples from.
    """
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    trained, state = adapters * FP32_BYTES, STATE_BYTES[config.optimizer.name] * adapters
    has_critic = isinstance(config, OnlineConfig) and algorithm is not None and algorithm.needs_values
    own_critic = has_critic and isinstance(config, OnlineConfig) and config.critic.model == "separate"
    critic = (shape.width + 1 + adapters * own_critic) * (1 + LEARNING) * FP32_BYTES * has_critic
    moving = trained if _moves(config, algorithm) else 0  # adapters of its own on the same frozen weights
    has_reference = isinstance(config, OnlineConfig) and algorithm is not None and algorithm.needs_reference
    is_bigram = has_reference and isinstance(config, OnlineConfig) and config.algorithm.kl.reference == "bigram"
    reference = FP32_BYTES * shape.vocab**2 if is_bigram else moving
    return ModelMemory(
        about=about,
        context=shape.context,
        parameters=shape.parameters + adapters,
        weights=(shape.parameters - quantized) * (BF16_BYTES if on_gpu else FP32_BYTES)
        + int(NF4_BYTES * quantized)
        + trained,
        joined=0,
        gradients=trained,
        optimizer=state,
        reference=reference,
        critic=critic,
        reward=_reward_bytes(config),
        kv_per_token=None,
        kv_of_all_heads=None,
        disk=disk_use(
            config,
            SavedSizes(
                weights=trained + critic // (1 + LEARNING) + moving,
                moments=(state + critic * (LEARNING - 1) // (1 + LEARNING)) // moment_bytes(config.optimizer.name),
                best=trained,
            ),
        ),
    )


def require_other_models(config: Training) -> None:
    """Refuses a reward model or a reference that can be neither found nor pulled, as `find_model` does the policy's."""
    named = {"reference": config.reference} if isinstance(config, OfflineConfig) else {}
    if isinstance(config, OnlineConfig) and config.reward.model is not None:
        named["reward.model"] = config.reward.model.path
    for key, path in named.items():
        if not path or REFERENCE.fullmatch(path) or can_be_pulled(path):  # a stage of a pipeline is made before
            continue
        try:
            resolve_model(path)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None


def _state_bytes(optimizer: str, shape: ModelShape) -> int:
    """Bytes of the optimizer's state: with Muon one moment per weight of hidden matrices and two of the others."""
    if optimizer == "muon":
        return FP32_BYTES * (shape.parameters + shape.vocab * shape.width + shape.head)
    return STATE_BYTES[optimizer] * shape.parameters


def _saved_sizes(config: Training, algorithm: Algorithm | None, shape: ModelShape, state: int) -> SavedSizes:
    """What the checkpoints of a run without adapters hold: policy, critic, and a reference that moves."""
    settings = config.optimizer
    stored = FP32_BYTES if settings.master_weights == "fp32" else BF16_BYTES
    masters = FP32_BYTES if settings.master_weights == "offload" else 0
    kept, trained = _critic_weights(config, algorithm, shape)
    reference = shape.parameters if _moves(config, algorithm) else 0
    return SavedSizes(
        weights=stored * (shape.parameters + kept + reference) + masters * (shape.parameters + trained),
        moments=state // moment_bytes(settings.name) + moments_per_weight(settings.name) * trained,
        best=export_dtype(config.model).itemsize * shape.parameters,
    )


def _moves(config: Training, algorithm: Algorithm | None) -> bool:
    """Whether there is a reference model that changes: one that is synced, or begins after a cold start."""
    if not isinstance(config, OnlineConfig) or algorithm is None or not algorithm.needs_reference:
        return False
    kind = config.algorithm.kl.reference
    return kind == "sync" or (config.cold_start.steps > 0 and kind not in ("uniform", "bigram"))


def _other_models(config: Training, algorithm: Algorithm | None, shape: ModelShape) -> tuple[int, int, int | None]:
    """Bytes of the reference, the critic and the reward model of an online run; 0 without."""
    if not isinstance(config, OnlineConfig) or algorithm is None:
        return 0, 0, 0
    values = {"uniform": 0, "bigram": shape.vocab**2}.get(config.algorithm.kl.reference, shape.parameters)
    kept, trained = _critic_weights(config, algorithm, shape)
    reference = values * FP32_BYTES if algorithm.needs_reference else 0
    return reference, (kept + LEARNING * trained) * FP32_BYTES, _reward_bytes(config)


def _critic_weights(config: Training, algorithm: Algorithm | None, shape: ModelShape) -> tuple[int, int]:
    """The weights of the critic and how many of them are trained; 0 without."""
    if not isinstance(config, OnlineConfig) or algorithm is None or not algorithm.needs_values:
        return 0, 0
    head = shape.width + 1  # of values
    if config.critic.model == "shared":
        return head, head
    return shape.parameters + head, shape.parameters - shape.head + head  # a copy, whose LM head is not trained


def _reward_bytes(config: Training) -> int | None:
    if not isinstance(config, OnlineConfig) or config.judge is None:
        return 0
    try:
        stored = stored_tensors(_weights_of(resolve_model(config.judge.path)))
    except UserError:
        return None
    return sum(torch.Size(tensor.shape).numel() for tensor in stored.values()) * FP32_BYTES


def _weights_of(directory: Path) -> Path:
    """The directory with the weights: of an adapter, that of its base."""
    return base_directory(directory) if is_adapter(directory) else directory


def _shape_on_disk(directory: Path, facts: dict[str, Any]) -> ModelShape:
    directory = _weights_of(directory)
    sizes = {key: torch.Size(tensor.shape).numel() for key, tensor in stored_tensors(directory).items()}
    return ModelShape(
        parameters=facts["parameters"],
        head=sum(size for key, size in sizes.items() if "lm_head" in key),
        width=facts["width"] or 0,
        vocab=facts["vocab"] or 0,
        context=facts["context"],
    )
