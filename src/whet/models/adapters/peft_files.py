"""Adapters on disk in the layout of PEFT: adapter_config.json and adapter_model.safetensors.

PEFT and vLLM load what is written here; adapters of other programs are read where they are plain LoRA on linear layers.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from whet.errors import RunFailed, UserError
from whet.files import read_object
from whet.models.adapters.adapter_directory import ADAPTER_CONFIG, ADAPTER_WEIGHTS, OWN_SETTINGS
from whet.models.adapters.adapter_targets import ALL_LINEAR
from whet.models.adapters.lora import LoRALinear, LoRAShape
from whet.models.storage.checksums import refuse_damage
from whet.models.storage.safetensors_files import FILE_MODE, read_tensors, stored_in

PREFIX = "base_model.model."  # before the name of a layer in PEFT's files
HEADS = ("score.", "classifier.")  # whole weights of the head of a reward model
PAIR = (".lora_A.weight", ".lora_B.weight")
EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings")
LM_HEAD = "lm_head"
LARGEST_ALPHA = 2.0**53  # far above every adapter's
# Keys of adapter_config.json under which an adapter is more than s·B·A; all must be absent, false or empty.
NOT_PLAIN = (
    *("use_dora", "lora_bias", "layer_replication", "trainable_token_indices", "use_qalora"),
    *("alora_invocation_tokens", "target_parameters", "arrow_config"),
)
# Values of init_lora_weights that leave the base as it is. Others (pissa, olora, corda, loftq, lora_ga) change it
# before training, so that s·B·A belongs to another base than the one that is named.
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
# Of a pattern of a file that nobody vouches for: more would match for hours.
MOST_BRANCHINGS, LONGEST_PATTERN = 3, 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFiles:
    """The content of an adapter directory."""

    directory: Path
    base: str  # base_model_name_or_path
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # layer → A (rank, in) and B (out, rank)
    scales: Mapping[str, float]  # layer → s
    others: Mapping[str, Tensor]  # whole weights of a reward model's head, trained beside the adapters

    @property
    def is_reward(self) -> bool:
        """Whether it is the adapter of a reward model."""
        return bool(self.others)


def write_adapter(
    directory: Path,
    tensors: Mapping[str, Tensor],
    shape: LoRAShape,
    *,
    base: Path,
    layers: Sequence[str],
    untouched: Sequence[str] = (),
    task: str = "CAUSAL_LM",
    transposed: bool = False,
) -> None:
    """Writes an adapter. `tensors` by name of the layer: NAME.lora_A, NAME.lora_B, or a whole weight.

    `untouched`: the linear layers without an adapter. `transposed`: the base stores its layers as (in, out).
    """
    others = sorted({name.rpartition(".")[0] for name in tensors if not name.endswith((".lora_A", ".lora_B"))})
    is_pattern = isinstance(shape.targets, str) and shape.targets != ALL_LINEAR
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": str(base),
        **_ranks({n.removesuffix(".lora_A"): len(a) for n, a in tensors.items() if n.endswith(".lora_A")}, shape),
        "use_rslora": shape.rslora,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "target_modules": sorted(layers if is_pattern else {_short(name, untouched) for name in layers}),
        "modules_to_save": others or None,
    }
    stored = {PREFIX + _peft_name(name): tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(stored, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        (directory / ADAPTER_WEIGHTS).chmod(FILE_MODE)
        (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except (SafetensorError, OSError) as error:
        raise RunFailed(f"{directory}: the adapter cannot be saved ({error})") from error


def note_quantization(directory: Path, quantization: str) -> None:
    """Writes how the base was quantised, for which PEFT has no key, to a file of its own."""
    try:
        (directory / OWN_SETTINGS).write_text(json.dumps({"quantization": quantization}) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFailed(f"{directory / OWN_SETTINGS} cannot be written ({error.strerror or error})") from error


def _ranks(ranks: Mapping[str, int], shape: LoRAShape) -> dict[str, Any]:
    """The entries of ranks and alphas by layer. Each is the recipe's, or of several adapters as one a multiple.

    The largest is `r`, which programs take for the largest there is; s is the same for all.
    """
    largest = max(ranks.values())
    smaller: dict[str, int] = {}
    for name, rank in ranks.items():
        if rank < largest:
            short = _short(name, [other for other, found in ranks.items() if found != rank])
            smaller[re.escape(short)] = rank
    entries = {"r": largest, "lora_alpha": _alpha(shape, largest)}
    patterns = {"rank_pattern": smaller, "alpha_pattern": {name: _alpha(shape, r) for name, r in smaller.items()}}
    return entries | patterns if smaller else entries


def _alpha(shape: LoRAShape, rank: int) -> float:
    """The alpha that keeps s at this rank."""
    times = rank / shape.rank
    return shape.alpha * (math.sqrt(times) if shape.rslora else times)


def _short(name: str, others: Sequence[str]) -> str:
    """The end of its name; the whole of it if one of the others ends so too."""
    end = name.rpartition(".")[2]
    return name if any(other.rpartition(".")[2] == end for other in others) else end


def _peft_name(name: str) -> str:
    return f"{name}.weight" if name.endswith((".lora_A", ".lora_B")) else name


def read_adapter(directory: Path) -> AdapterFiles:
    """Reads and checks an adapter directory."""
    refuse_damage(directory)
    path = directory / ADAPTER_CONFIG
    config = read_object(path)
    _refuse_other_kinds(config, path)
    stored = stored_in(directory / ADAPTER_WEIGHTS)
    unknown = next((name for name in stored if not name.startswith(PREFIX)), None)
    if unknown is not None:
        raise UserError(
            f"{directory / ADAPTER_WEIGHTS}: tensor {unknown!r} is not one of PEFT's: save the adapter again"
        )
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_tensors(stored).items()}
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name in [name for name in tensors if name.endswith(PAIR)]:
        layer = name.removesuffix(PAIR[0]).removesuffix(PAIR[1])
        if layer in pairs:
            continue
        a, b = (tensors.get(layer + end) for end in PAIR)
        if a is None or b is None or a.dim() != 2 or b.dim() != 2 or not 0 < a.shape[0] == b.shape[1]:
            raise UserError(
                f"{directory / ADAPTER_WEIGHTS}: the A and B of {layer!r} do not belong together: copy it again"
            )
        pairs[layer] = (a, b)
    others = {name: tensor for name, tensor in tensors.items() if not name.endswith(PAIR)}
    _refuse_other_weights(others, directory)
    if not pairs:
        raise UserError(f"{directory / ADAPTER_WEIGHTS} holds no LoRA weights (lora_A, lora_B): copy it again")
    _check_ranks(config, pairs, path)
    return AdapterFiles(
        directory=directory,
        base=str(config["base_model_name_or_path"]),
        pairs=pairs,
        scales={layer: _scale(config, layer, rank=len(a)) for layer, (a, _) in pairs.items()},
        others=others,
    )


def _refuse_other_weights(others: Mapping[str, Tensor], directory: Path) -> None:
    """Refuses what is neither a pair A and B nor the head of a reward model."""
    for name in others:
        layer = name.partition(".lora_")[0].partition(".base_layer.")[0]
        if ".lora_embedding_" in name or layer.rpartition(".")[2] in EMBEDDINGS:
            what = f"adapts the embedding {layer!r}"
        elif layer != name:  # beside an adapted embedding or head, PEFT saves the layer itself
            what = f"adapts {layer!r} and holds the layer itself" if ".base_layer." in name else f"has {name!r}"
        elif not name.startswith(HEADS):
            what = f"replaces {name!r} whole (modules_to_save)"
        else:
            continue
        raise UserError(f"{directory} {what}, and only LoRA on linear layers is read: merge it with PEFT")


def _refuse_other_kinds(config: Mapping[str, Any], path: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{path}: peft_type is {config.get('peft_type')!r:.40}, and only LORA is read: merge it with PEFT"
        )
    if config.get("bias", "none") != "none":
        raise UserError(f"{path}: bias is {config['bias']!r:.40}, and only none is read: merge it with PEFT")
    for key in NOT_PLAIN:
        if config.get(key):
            raise UserError(f"{path}: {key} is {config[key]!r:.60}, and only plain LoRA is read: merge it with PEFT")
    start, is_root = config.get("init_lora_weights"), config.get("use_rslora", False)
    if start not in PLAIN_STARTS:
        raise UserError(
            f"{path}: init_lora_weights is {start!r:.40}, which changes the base before training: convert it to plain "
            "LoRA with PEFT (path_initial_model_for_weight_conversion)"
        )
    if not isinstance(is_root, bool):
        raise UserError(f"{path}: use_rslora is {is_root!r:.40}: expected true or false")
    if not _is_number(config.get("lora_alpha")) or not isinstance(config.get("base_model_name_or_path"), str):
        raise UserError(f"{path}: lora_alpha or base_model_name_or_path is missing: copy the adapter again")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or not all(map(_is_number, patterns.values())):
        raise UserError(f"{path}: alpha_pattern is {patterns!r:.60}, not a number for each pattern: copy it again")


def _is_number(value: Any) -> bool:
    """Whether it can be an alpha: finite, and no truth value."""
    return type(value) in (int, float) and abs(value) < LARGEST_ALPHA


def _check_ranks(config: Mapping[str, Any], pairs: Mapping[str, tuple[Tensor, Tensor]], path: Path) -> None:
    """Refuses weights of another rank than the config's: its alpha is not theirs."""
    patterns = config.get("rank_pattern") or {}
    if not isinstance(patterns, dict):
        raise UserError(f"{path}: rank_pattern is {patterns!r:.60}, not a rank for each pattern: copy it again")
    stated = [config.get("r"), *patterns.values()]
    for layer, (a, _) in pairs.items():
        if len(a) not in stated:
            raise UserError(
                f"{path}: r is {config.get('r')!r:.40}, and the weights of {layer!r} have rank {len(a)}: copy both "
                "files of the adapter again"
            )


def _check_pattern(pattern: str) -> None:
    """Refuses a regular expression that may take hours to match."""
    plain = re.sub(r"\\.", "", pattern).replace("(?:", "(")
    branchings = sum(map(plain.count, "(*+?{"))
    if len(pattern) > LONGEST_PATTERN or branchings > MOST_BRANCHINGS or re.search(r"\)[*+{]", plain):
        raise UserError(
            f"{ADAPTER_CONFIG}: the pattern {pattern!r:.60} of alpha_pattern has more than {MOST_BRANCHINGS} groups "
            f"and repetitions, a repeated group, or more than {LONGEST_PATTERN} characters: name the layers"
        )


def _scale(config: Mapping[str, Any], layer: str, *, rank: int) -> float:
    """s of a layer: alpha_pattern of PEFT overrides lora_alpha for the layers whose names end in a pattern."""
    patterns = config.get("alpha_pattern") or {}
    for pattern in patterns:
        _check_pattern(pattern)
    try:
        found = (value for end, value in patterns.items() if re.match(rf"(.*\.)?({end})$", layer))
        alpha = next(found, config["lora_alpha"])
    except re.error as error:
        raise UserError(f"{ADAPTER_CONFIG}: alpha_pattern has no regular expression ({error}): correct it") from None
    return float(LoRAShape(rank=rank, alpha=float(alpha), rslora=bool(config.get("use_rslora"))).scale)


@torch.no_grad()
def apply_adapter(model: nn.Module, files: AdapterFiles, *, prefix: str = "") -> None:
    """Adds s·B·A to the weights of a plain model; `prefix` is before the names of its layers."""
    for name, linear in _adapted_layers(model, files, prefix).items():
        a, b = files.pairs[name]
        linear.weight += (files.scales[name] * (b @ a)).to(linear.weight.dtype)


@torch.no_grad()
def attach_adapter_files(model: nn.Module, files: AdapterFiles, *, prefix: str = "") -> None:
    """Puts the adapters beside the weights of a plain model, which stay as they are."""
    unused = torch.Generator()
    for name, linear in _adapted_layers(model, files, prefix).items():
        a, b = files.pairs[name]
        layer = LoRALinear(linear, rank=len(a), scale=files.scales[name], generator=unused)
        layer.lora_A.copy_(a)
        layer.lora_B.copy_(b)
        parent, _, leaf = (prefix + name).rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)


def _shared_head(files: AdapterFiles, layer: str) -> str:
    return (
        f"{files.directory} adapts {layer!r}, whose matrix is that of the embedding in {files.base}, which the adapter "
        "leaves alone: merge it with PEFT"
    )


def _adapted_layers(model: nn.Module, files: AdapterFiles, prefix: str) -> dict[str, nn.Linear]:
    """The layers of a plain model that the adapters are for, by their names in the files."""
    modules, found = dict(model.named_modules()), {}
    uses = Counter(id(one.weight) for one in modules.values() if isinstance(one, nn.Linear | nn.Embedding))
    for layer, (a, b) in files.pairs.items():
        linear = modules.get(prefix + layer)
        if layer == LM_HEAD and linear is None:
            raise UserError(_shared_head(files, layer))
        if not isinstance(linear, nn.Linear):
            raise UserError(
                f"{files.directory} adapts {layer!r}, which {files.base} has not: is it another base model?"
            )
        if (linear.out_features, linear.in_features) != (len(b), a.shape[1]):
            raise UserError(
                f"{files.directory}: the adapter of {layer!r} is for a matrix of {len(b)} × {a.shape[1]}, and that of "
                f"{files.base} has {linear.out_features} × {linear.in_features}: is it another base model?"
            )
        if uses[id(linear.weight)] > 1:
            raise UserError(_shared_head(files, layer))
        if not all(bool(one.isfinite().all()) for one in (a, b, files.scales[layer] * (b @ a))):
            raise UserError(
                f"{files.directory}: the adapter of {layer!r} has values that are not finite: copy it again"
            )
        found[layer] = linear
    return found
