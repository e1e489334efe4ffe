"""LoRA of a recipe: adapters on the model that a run starts from, and their files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from whet.config.model_config import ModelConfig
from whet.errors import UserError
from whet.models.adapters.adapter_directory import is_adapter
from whet.models.adapters.adapter_targets import refuse_rank
from whet.models.adapters.lora import LoRALinear, LoRAShape, attach, targeted, trained_tensors
from whet.models.adapters.peft_files import note_quantization, read_adapter, write_adapter
from whet.models.adapters.quantized_base import quantize_base
from whet.models.adapters.stored_layers import Linear, joined_pair, parts_by_layer, separate_pairs
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.family import Family
from whet.models.download.model_hub import resolve_model
from whet.models.half_precision import halve
from whet.models.load import stored_layer_of
from whet.models.reward.reward_model import RewardModel, head_name
from whet.models.storage.tensor_file import Whole, as_it_is

PAIR = (".lora_A", ".lora_B")  # after the name of a layer
TASKS = {"preference": "SEQ_CLS", "outcome": "SEQ_CLS", "process": "TOKEN_CLS"}  # PEFT's name of a reward model's kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """The adapters of a run: what they are on, and how they are saved and read."""

    shape: LoRAShape
    base: Path
    task: str  # as PEFT calls it
    quantization: str = "none"  # of the base

    def save(self, model: nn.Module, directory: Path | None, whole: Whole = as_it_is) -> None:
        """The adapter directory; weights in fp32, as they are trained.

        `whole`: of weights that are spread over processes, all of which call this; one of them names a directory.
        """
        own = self.tensors(model, whole)
        if directory is None:
            return
        layers = _stored(model)
        untouched = [name for name, parts in layers.items() if not _are_adapted(parts.values())]
        family = _decoder_family(_trunk(model))
        write_adapter(
            directory,
            own,
            self.shape,
            base=self.base,
            layers=[name for name in layers if name not in untouched],
            untouched=untouched,
            task=self.task,
            transposed=family is not None and family.transposed,
        )
        if self.quantization != "none":
            note_quantization(directory, self.quantization)

    def tensors(self, model: nn.Module, whole: Whole = as_it_is) -> dict[str, Tensor]:
        """What `save` writes, by PEFT's names; every process has all adapters."""
        heads = {name: head for name, head in trained_tensors(model).items() if not name.endswith(PAIR)}
        found = {_head(model, name): whole(tensor) for name, tensor in heads.items()}
        for name, parts in _stored(model).items():
            if _are_adapted(parts.values()):
                found |= zip((name + end for end in PAIR), joined_pair(parts.values()), strict=True)
        return found

    def read(self, model: nn.Module, directory: Path) -> Mapping[str, Tensor]:
        """What `save` wrote, by the names in the model; other names and shapes if it is of another run."""
        files, layers = read_adapter(directory), _stored(model)
        heads = {_head(model, name): name for name in trained_tensors(model)}
        saved = {heads.get(name, name): tensor for name, tensor in files.others.items()}
        within = "trunk." if isinstance(model, RewardModel) else ""
        for stored, pair in files.pairs.items():
            for name, own in separate_pairs(pair, layers.get(stored, {})).items():
                saved |= zip((within + name + end for end in PAIR), own, strict=True)
        return saved


def _trunk(model: nn.Module) -> nn.Module:
    trunk: nn.Module = model.trunk if isinstance(model, RewardModel) else model
    return trunk


def _decoder_family(trunk: nn.Module) -> Family | None:
    return trunk.family if isinstance(trunk, Decoder) else None


def _stored(model: nn.Module) -> dict[str, dict[str, Linear]]:
    """Our layers by those of the checkpoint, which are PEFT's."""
    trunk = _trunk(model)
    return parts_by_layer(trunk, stored_layer_of(trunk))


def _are_adapted(parts: Iterable[Linear]) -> bool:
    return any(isinstance(layer, LoRALinear) for layer in parts)


def _head(model: nn.Module, name: str) -> str:
    """PEFT's name of what is trained whole: that of transformers' classifier."""
    family = _decoder_family(_trunk(model))
    if family is None or not isinstance(model, RewardModel):
        return name.removeprefix("trunk.").removeprefix("model.")
    return name.replace("head.", f"{head_name(family, model.classes)}.", 1) if name.startswith("head.") else name


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
    trunk = _trunk(model)
    wanted = config.lora
    if wanted.quantization != "none" and not isinstance(trunk, Decoder):
        raise UserError(
            f"model.lora.quantization={wanted.quantization} is for the families of whet's own decoder, and "
            f"transformers runs {config.path}: leave it out"
        )
    shape = LoRAShape(rank=wanted.rank, alpha=wanted.alpha, targets=wanted.targets, rslora=wanted.rslora)
    try:
        names = targeted(trunk, shape.targets)
    except UserError as error:
        raise UserError(f"model.lora.targets: {error}") from error
    matrices = [one for one in map(trunk.get_submodule, names) if isinstance(one, nn.Linear)]
    refuse_rank(shape.rank, [(one.out_features, one.in_features) for one in matrices])
    attach(trunk, shape, seed=seed)
    if isinstance(model, RewardModel):
        model.head.requires_grad_(True)  # transformers' classifiers have it in the trunk
    if device.type == "cuda":
        halve(trunk)
    if wanted.quantization == "nf4":
        assert isinstance(trunk, Decoder)
        quantize_base(trunk.model.layers, device)
    task = TASKS[model.kind] if isinstance(model, RewardModel) else "CAUSAL_LM"
    return Adapter(shape=shape, base=base, task=task, quantization=wanted.quantization)
