"""Memory of the models of a run, apart from activations, without loading weights."""

import re
from dataclasses import dataclass
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
from whet.models.adapters.lora import chosen
from whet.models.download.model_hub import can_be_pulled, resolve_model
from whet.models.layers.decoder_config import (
    DecoderConfig,
    all_heads_bytes_per_token,
    kv_bytes_per_token,
    parameter_count,
)
from whet.models.load import KV_DTYPE, base_directory, covered, model_summary, read_config
from whet.models.protocol import Tokenizer
from whet.models.storage.safetensors_files import stored_tensors
from whet.models.text.tokenizers import load_tokenizer
from whet.tasks.protocol import Task
from whet.train.setup.build import chat_tokenizer, export_dtype, new_decoder_config
from whet.train.setup.corpora import named_tokenizer
from whet.train.setup.disk_use import FP32_BYTES, DiskUse, disk_use
from whet.train.setup.optimizer import STATE_BYTES

LEARNING = 3  # per trained weight: a gradient and two Adam moments
BF16_BYTES = 2
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_positions|wte|wpe|embed_in|word_embeddings)\.weight$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMemory:
    """Bytes of the policy and the other models."""

    about: str
    context: int | None
    parameters: int
    weights: int
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

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.reference + self.critic + (self.reward or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a model."""

    parameters: int
    head: int  # of them, in an untied LM head
    width: int
    vocab: int
    context: int | None
    kv_per_token: int | None = None
    kv_of_all_heads: int | None = None


def find_model(
    config: Training, task: Task, algorithm: Algorithm | None
) -> tuple[ModelMemory | None, Tokenizer | None, str]:
    """The policy's memory and tokenizer; or why they are unknown."""
    if config.model.new is not None:
        new = config.model.new
        masks = isinstance(config, OfflineConfig) and hides_tokens(config.objective)
        tokenizer, _ = chat_tokenizer(config.model, named_tokenizer(new.tokenizer, task, masks=masks))
        shape = _shape_of(new_decoder_config(new, tokenizer.vocab_size, causal=not masks))
        about = f"new {new.family}, {new.layers} layers, width {new.width}"
    else:
        try:
            directory = resolve_model(config.model.path)
        except UserError as error:
            if not can_be_pulled(config.model.path):
                raise
            return None, None, str(error)
        tokenizer, _ = chat_tokenizer(config.model, load_tokenizer(directory))
        facts = model_summary(directory)
        shape = _shape_on_disk(directory, facts)
        about = f"{facts['family']} from {directory}"
    if config.model.lora is not None:
        adapters = adapter_parameters(config.model.lora, directory)
        about += f", LoRA of rank {config.model.lora.rank}: {adapters:,} trained"
        return _adapted(config, algorithm, shape, about, adapters), tokenizer, ""
    weights = shape.parameters * FP32_BYTES
    reference, critic, reward = _other_models(config, algorithm, shape)
    state = _state_bytes(config.optimizer.name, shape)
    saved = critic * LEARNING // (1 + LEARNING)  # without gradients
    model = ModelMemory(
        about=about,
        context=shape.context,
        parameters=shape.parameters,
        weights=weights,
        gradients=weights,
        optimizer=state,
        reference=reference,
        critic=critic,
        reward=reward,
        kv_per_token=shape.kv_per_token,
        kv_of_all_heads=shape.kv_of_all_heads,
        disk=disk_use(config, weights=weights, state=state, others=saved, dtype=export_dtype(config.model)),
    )
    return model, tokenizer, ""


def adapter_parameters(lora: LoRAConfig, directory: Path) -> int:
    """The number of trained weights: rank · (rows + columns) of every adapted matrix."""
    shapes = {
        name.removesuffix(".weight"): tensor.shape
        for name, tensor in stored_tensors(directory).items()
        if len(tensor.shape) == 2 and not EMBEDDING.search(name)
    }
    return lora.rank * sum(sum(shapes[name]) for name in chosen(list(shapes), lora.targets))


def _adapted(
    config: Training, algorithm: Algorithm | None, shape: ModelShape, about: str, adapters: int
) -> ModelMemory:
    """Memory of a LoRA run: one frozen copy of the weights, which reference and critic share, and adapters."""
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    trained, state = adapters * FP32_BYTES, STATE_BYTES[config.optimizer.name] * adapters
    has_critic = isinstance(config, OnlineConfig) and algorithm is not None and algorithm.needs_values
    own_critic = has_critic and isinstance(config, OnlineConfig) and config.critic.model == "separate"
    critic = (shape.width + 1 + adapters * own_critic) * (1 + LEARNING) * FP32_BYTES * has_critic
    return ModelMemory(
        about=about,
        context=shape.context,
        parameters=shape.parameters + adapters,
        weights=shape.parameters * (BF16_BYTES if on_gpu else FP32_BYTES) + trained,
        gradients=trained,
        optimizer=state,
        reference=0,
        critic=critic,
        reward=_reward_bytes(config) if isinstance(config, OnlineConfig) else 0,
        kv_per_token=shape.kv_per_token,
        kv_of_all_heads=shape.kv_of_all_heads,
        disk=disk_use(config, weights=trained, state=state, others=critic * LEARNING // 4, dtype=torch.float32),
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


def _other_models(config: Training, algorithm: Algorithm | None, shape: ModelShape) -> tuple[int, int, int | None]:
    """Bytes of the reference, the critic and the reward model of an online run; 0 without."""
    if not isinstance(config, OnlineConfig) or algorithm is None:
        return 0, 0, 0
    values = {"uniform": 0, "bigram": shape.vocab**2}.get(config.algorithm.kl.reference, shape.parameters)
    trained = kept = shape.width + 1  # the value head
    if config.critic.model == "separate":  # beside a copy of the policy, whose LM head is not trained
        kept += shape.parameters
        trained += shape.parameters - shape.head
    reference = values * FP32_BYTES if algorithm.needs_reference else 0
    critic = (kept + LEARNING * trained) * FP32_BYTES if algorithm.needs_values else 0
    return reference, critic, _reward_bytes(config)


def _reward_bytes(config: OnlineConfig) -> int | None:
    if config.reward.model is None:
        return 0
    try:
        stored = stored_tensors(_weights_of(resolve_model(config.reward.model.path)))
    except UserError:
        return None
    return sum(torch.Size(tensor.shape).numel() for tensor in stored.values()) * FP32_BYTES


def _shape_of(config: DecoderConfig) -> ModelShape:
    return ModelShape(
        parameters=parameter_count(config),
        head=0 if config.tied_head else config.vocab_size * config.width,
        width=config.width,
        vocab=config.vocab_size,
        context=config.longest,
        kv_per_token=kv_bytes_per_token(config, KV_DTYPE) if config.causal else 0,
        kv_of_all_heads=all_heads_bytes_per_token(config, KV_DTYPE) if config.causal else 0,
    )


def _weights_of(directory: Path) -> Path:
    """The directory with the weights: of an adapter, that of its base."""
    return base_directory(directory) if is_adapter(directory) else directory


def _shape_on_disk(directory: Path, facts: dict[str, Any]) -> ModelShape:
    directory = _weights_of(directory)
    found = covered(directory, read_config(directory))
    if found is not None:
        return _shape_of(found[1])
    sizes = {key: torch.Size(tensor.shape).numel() for key, tensor in stored_tensors(directory).items()}
    return ModelShape(
        parameters=facts["parameters"],
        head=sum(size for key, size in sizes.items() if "lm_head" in key),
        width=facts["width"] or 0,
        vocab=facts["vocab"] or 0,
        context=facts["context"],
    )
