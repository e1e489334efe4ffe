"""LoRA of a recipe: adapters on the model that a run starts from, and their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from whet.config.model_config import ModelConfig
from whet.errors import UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.adapter_targets import refuse_rank
from whet.models.adapters.lora import LoRAShape, attach, targeted, trained_tensors
from whet.models.adapters.peft_files import read_adapter, write_adapter
from whet.models.adapters.quantized_base import quantize_base
from whet.models.decoder.decoder import Decoder
from whet.models.download.model_hub import resolve_model
from whet.models.half_precision import halve
from whet.models.load import layer_prefix
from whet.models.reward.reward_model import RewardModel

TASKS = {"preference": "SEQ_CLS", "outcome": "SEQ_CLS", "process": "TOKEN_CLS"}  # PEFT's name of a reward model's kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """The adapters of a run: what they are on, and how they are saved and read."""

    shape: LoRAShape
    base: Path
    layers: tuple[str, ...]  # names in the model
    prefix: str  # of these names, before those that PEFT uses
    task: str  # as PEFT calls it
    quantization: str = "none"  # of the base

    def save(self, model: nn.Module, directory: Path) -> None:
        """The adapter directory; weights in fp32, as they are trained."""
        own = {self._peft(name): tensor for name, tensor in trained_tensors(model).items()}
        layers = [self._peft(name) for name in self.layers]
        write_adapter(
            directory, own, self.shape, base=self.base, layers=layers, task=self.task, quantization=self.quantization
        )

    def read(self, model: nn.Module, directory: Path) -> Mapping[str, Tensor]:
        """What `save` wrote, by the names in the model."""
        files = read_adapter(directory)
        saved = dict(files.others)
        for layer, (a, b) in files.pairs.items():
            saved |= {f"{layer}.lora_A": a, f"{layer}.lora_B": b}
        names = {self._peft(name): name for name in trained_tensors(model)}
        return {names.get(name, name): tensor for name, tensor in saved.items()}

    def _peft(self, name: str) -> str:
        """PEFT's name: that of transformers; a reward model's head is `score`."""
        if name.startswith(self.prefix):
            return name.removeprefix(self.prefix)
        return name.replace("head.", "score.", 1) if name.startswith("head.") else name


def attach_adapter(config: ModelConfig, model: nn.Module, device: torch.device, *, seed: int) -> Adapter | None:
    """Gives the model the adapters of the recipe, if it asks for them, and freezes the rest.

    On a GPU the frozen matrices are kept in bf16, in which they are multiplied, or on any device in NF4; norms and
    biases stay in fp32.
    """
    if config.lora is None:
        return None
    base = resolve_model(config.path)
    if is_adapter(base):
        raise UserError(
            f"model.lora with model.path {config.path}, which is an adapter: merge it first (whet models merge "
            f"{config.path} DIRECTORY) and use that directory"
        )
    trunk = model.trunk if isinstance(model, RewardModel) else model
    if isinstance(trunk, Decoder) and trunk.family.export_weights is not dict:
        raise UserError(
            f"model.lora is not available for {trunk.family.model_type}, which stores query, key and value matrices as "
            "one, so that PEFT has other names for its layers: leave it out"
        )
    wanted = config.lora
    if wanted.quantization != "none" and not isinstance(trunk, Decoder):
        raise UserError(
            f"model.lora.quantization={wanted.quantization} is for the families of whet's own decoder, and "
            f"transformers runs {config.path}: leave it out"
        )
    shape = LoRAShape(rank=wanted.rank, alpha=wanted.alpha, targets=wanted.targets, rslora=wanted.rslora)
    within = "trunk." if isinstance(model, RewardModel) else ""
    try:
        names = targeted(trunk, shape.targets)
    except UserError as error:
        raise UserError(f"model.lora.targets: {error}") from error
    matrices = [one for one in map(trunk.get_submodule, names) if isinstance(one, nn.Linear)]
    refuse_rank(shape.rank, [(one.out_features, one.in_features) for one in matrices])
    layers = tuple(within + name for name in attach(trunk, shape, seed=seed))
    if device.type == "cuda":
        halve(trunk)
    if wanted.quantization == "nf4":
        assert isinstance(trunk, Decoder)
        quantize_base(trunk.model.layers, device)
    task = TASKS[model.kind] if isinstance(model, RewardModel) else "CAUSAL_LM"
    return Adapter(
        shape=shape,
        base=base,
        layers=layers,
        prefix=within + layer_prefix(trunk),
        task=task,
        quantization=wanted.quantization,
    )
