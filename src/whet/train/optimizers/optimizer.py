"""Optimizers, their learning-rate schedule, one optimizer step on losses from cells, and its state as named tensors."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.algorithms import cells
from whet.config import OptimizerConfig
from whet.config.parts import SavedOptimizer
from whet.distributed.sharding import held_like, is_spread
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.imports import optional_package
from whet.models.half_precision import accumulate_in_fp32
from whet.models.storage.tensor_file import Named, Whole, as_it_is
from whet.train.optimizers.flat_adamw import FlatAdamW
from whet.train.optimizers.lion import Lion
from whet.train.optimizers.muon import Muon
from whet.train.optimizers.rounded_adamw import RoundedAdamW
from whet.train.optimizers.saved_moments import MASTER, packed, unpacked
from whet.train.optimizers.state_sizes import moment_bytes, moments_per_weight
from whet.train.optimizers.streamed_adamw import StreamedAdamW
from whet.user_code import one_line

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
EIGHT_BIT = ("state1", "state2", "step")  # of bitsandbytes; quantised ones have maps and scales besides
HEADS = {"lm_head", "embed_out", "head", "score", "classifier"}  # modules whose matrix makes logits, scores or values
WEIGHT = "weight"  # before the names of a critic's weights, which a checkpoint has beside its moments


class NotFinite(RunFailed):
    """The loss or gradient is not finite; no step was taken."""

    kind = "loss"  # of failure, in the name of its file

    def __init__(self, message: str, culprit: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.culprit = dict(culprit or {})  # the tensors it was computed from, if known


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """Loss and gradient norms of one optimizer step."""

    loss: float
    grad_norms: tuple[float, ...]  # before clipping, one per optimizer


class Trainable(Protocol):
    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


def make_optimizer(model: Trainable, config: OptimizerConfig, *, is_flat: bool = False) -> torch.optim.Optimizer:
    """The optimizer of a model; gradients are in fp32 whatever its weights are in.

    AdamW in fp32 is fused: five times as fast, also on a CPU. `is_flat`: of many small tensors, as one vector.
    """
    groups = _groups(model, config)
    for group in groups:
        accumulate_in_fp32(group["params"])
    betas = (config.beta1, config.beta2)
    moments = torch.bfloat16 if config.name == "adamw_bf16" else torch.float32
    match config.name, config.master_weights:
        case "adamw" | "adamw_bf16", "offload":
            return StreamedAdamW(groups, lr=config.lr, betas=betas, eps=config.epsilon, moments=moments)
        case ("adamw_bf16", _) | ("adamw", "bf16"):
            return RoundedAdamW(groups, lr=config.lr, betas=betas, eps=config.epsilon, moments=moments)
    match config.name:
        case "adamw":
            kind = FlatAdamW if is_flat else partial(torch.optim.AdamW, fused=True)
            return kind(groups, lr=config.lr, betas=betas, eps=config.epsilon)
        case "adamw_8bit":
            package: Any = optional_package("bitsandbytes", "optimizer.name adamw_8bit")
            made: torch.optim.Optimizer = package.optim.AdamW8bit(groups, lr=config.lr, betas=betas, eps=config.epsilon)
            return made
        case "lion":
            return Lion(groups, lr=config.lr, betas=betas)
        case _:
            return Muon(groups, lr=config.lr, momentum=config.momentum, betas=betas, eps=config.epsilon)


def _groups(model: Trainable, config: OptimizerConfig) -> list[dict[str, Any]]:
    """The trained weights by what the optimizer does with them: decay them, orthogonalise their updates."""
    hidden = {id(p) for p in hidden_matrices(model)}
    decays: dict[str, Callable[[Tensor], bool]] = {
        "matrices": lambda p: p.dim() >= 2,
        "hidden": lambda p: id(p) in hidden,
        "all": lambda _: True,
    }
    found: dict[tuple[bool, bool, bool], list[Tensor]] = {}
    # Fused optimizers do not take parts of tensors and whole ones in one group.
    # Decayed ones first, as in checkpoints of earlier versions.
    kinds = list(product((True, False), repeat=3))
    for _, p in model.named_parameters():
        if p.requires_grad:
            kind = (config.name == "muon" and id(p) in hidden, decays[config.weight_decay_on](p), is_spread(p))
            found.setdefault(kind, []).append(p)
    return [
        {
            "params": found[is_muon, decay, spread],
            "weight_decay": config.weight_decay if decay else 0.0,
            **({"matrices": is_muon} if config.name == "muon" else {}),
        }
        for is_muon, decay, spread in kinds
        if (is_muon, decay, spread) in found
    ]


def hidden_matrices(model: Trainable) -> list[torch.nn.Parameter]:
    """The trained matrices other than embeddings and heads."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    embedded = {id(p) for module in modules if isinstance(module, torch.nn.Embedding) for p in module.parameters()}
    return [
        p
        for name, p in model.named_parameters()
        if p.requires_grad and p.dim() == 2 and id(p) not in embedded and not HEADS.intersection(name.split("."))
    ]


def state_bytes(model: Trainable, config: OptimizerConfig) -> int:
    """Bytes of the optimizer's state after the first step, with master weights that are offloaded."""
    return moment_bytes(config.name) * moment_count(model, config) + master_bytes(model, config)


def moment_count(model: Trainable, config: OptimizerConfig) -> int:
    """Moments of all weights."""
    hidden = sum(p.numel() for p in hidden_matrices(model)) if config.name == "muon" else 0
    return moments_per_weight(config.name) * sum(p.numel() for p in _trained(model)) - hidden


def master_bytes(model: Trainable, config: OptimizerConfig) -> int:
    """Bytes of the fp32 weights that the optimizer keeps beside those in bf16."""
    is_kept = config.master_weights == "offload"
    return 4 * sum(p.numel() for p in _trained(model) if is_kept and p.dtype is torch.bfloat16)


def _trained(model: Trainable) -> list[torch.nn.Parameter]:
    return [p for _, p in model.named_parameters() if p.requires_grad]


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Learning rate of step 1 … steps: linear warm-up, then constant or falling to `min_lr_share` of the peak."""
    warmup = config.warmup(steps)
    if step <= warmup:
        return config.lr * step / warmup
    progress = (step - 1 - warmup) / (steps - warmup)
    decay = min(steps - warmup, ceil(config.decay_share * steps))  # steps of wsd's decay
    factors = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "wsd": min(1.0, (steps - step + 1) / max(1, decay)),
    }
    lowest = 1.0 if config.schedule == "constant" else config.min_lr_share
    return config.lr * (lowest + (1 - lowest) * factors[config.schedule])


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def descend(
    losses: Iterable[Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    world: World,
    *,
    max_grad_norm: float,
    proceed: Callable[[], bool] = lambda: True,
) -> Descent | None:
    """One step of each optimizer on the sum of the losses over micro-batches and ranks; None if `proceed` is False.

    `losses` is a generator: each loss is back-propagated before the next is computed, so only one micro-batch is in
    memory. `proceed` is called after all of them. Each optimizer's gradient is clipped by itself.
    """
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        if loss.requires_grad:  # no gradient without a trained token
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach().cpu()
    total = world.sum(total)
    if not bool(total.isfinite()):
        raise NotFinite(f"the loss is {float(total)}")
    if not proceed():
        return None
    norms = [world.sharding.clip(_weights(optimizer), max_grad_norm) for optimizer in optimizers]
    for norm in norms:
        if not math.isfinite(norm):
            raise NotFinite(f"the loss is {float(total):g} but the norm of its gradient is {norm}")
    for optimizer in optimizers:
        optimizer.step()
    return Descent(loss=float(total), grad_norms=tuple(norms))


def _weights(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def finite(loss: Tensor, **culprit: Tensor) -> Tensor:
    """The loss of a micro-batch; a non-finite one raises with the tensors it was computed from."""
    if not bool(loss.isfinite()):
        raise NotFinite(
            f"the loss is {float(loss.detach())}", {name: tensor.tolist() for name, tensor in culprit.items()}
        )
    return loss


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: Trainable, how: SavedOptimizer = "exact"
) -> dict[str, Tensor]:
    """Optimizer state by parameter name, for safetensors; moments as `save.optimizer` says."""
    return dict(optimizer_items(optimizer, model, how, as_it_is))


def optimizer_items(optimizer: torch.optim.Optimizer, model: Trainable, how: SavedOptimizer, whole: Whole) -> Named:
    """`optimizer_tensors` one by one, made of whole states."""
    for name, parameter in model.named_parameters():
        for kept, each in optimizer.state.get(parameter, {}).items():
            for moment, value in packed(kept, whole(torch.as_tensor(each)), how):
                yield f"{moment}/{name}", _savable(moment, value)


def _savable(moment: str, value: Tensor) -> Tensor:
    """A state as safetensors takes it: bitsandbytes shares the maps of its codes."""
    tensor = value if value.is_meta else value.cpu().contiguous()
    return tensor.clone() if moment.startswith("qmap") else tensor


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    model: Trainable,
    tensors: Mapping[str, Tensor],
    device: torch.device | None = None,
) -> None:
    """Restores `optimizer_tensors`; nothing if no step was taken before or no moments are saved.

    `device` is that of the optimizer, if the weights are offloaded; fused AdamW keeps its step count there.
    """
    known = {name for name, _ in model.named_parameters()}
    saved: dict[str, list[str]] = {}
    for key in tensors:
        moment, _, name = key.partition("/")
        if name in known and moment != WEIGHT:
            saved.setdefault(name, []).append(key)
    if not saved:
        return
    # Not with save.optimizer=none.
    has_moments = any(key.partition("/")[0] != MASTER for keys in saved.values() for key in keys)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or (not has_moments and name not in saved):
            continue
        stored = {key: tensors[key] for key in saved.get(name, ())}  # of one parameter at a time
        own = {key.partition("/")[0]: tensor for key, tensor in unpacked(stored)}
        expected = _state_names(optimizer, parameter) if has_moments else (MASTER,)
        if not set(expected) <= own.keys() or own[expected[0]].shape != parameter.shape:
            raise UserError(f"the checkpoint's optimizer state does not fit parameter {name!r}: it is of another model")
        if isinstance(optimizer, StreamedAdamW):
            optimizer.take(parameter, own)
            continue
        optimizer.state[parameter] = {
            moment: int(tensor) if tensor.dtype == torch.int64 else held_like(tensor, parameter, device)
            for moment, tensor in own.items()
        }


def _state_names(optimizer: torch.optim.Optimizer, parameter: Tensor) -> tuple[str, ...]:
    """The names of a parameter's state, first one of its shape."""
    if isinstance(optimizer, Lion | Muon | StreamedAdamW):
        return optimizer.state_names(parameter)
    return EIGHT_BIT if type(optimizer).__module__.startswith("bitsandbytes") else MOMENTS


MISTAKES = (ValueError, TypeError, IndexError, KeyError, RuntimeError, AttributeError, ZeroDivisionError)


def ask(cell: cells.Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """The result of a cell on the terms that it names; it must have one of these shapes."""
    try:
        answer: Tensor = cells.call(cell, supply)
        shape = tuple(answer.shape)
    except torch.OutOfMemoryError:
        raise
    except MISTAKES as error:
        raise RunFailed(f"{cells.name(cell)!r} failed: {one_line(error)} (see whet check-loss)") from error
    if shape not in [tuple(allowed) for allowed in shapes]:
        wanted = " or ".join(str(tuple(allowed)) for allowed in shapes)
        raise RunFailed(
            f"{cells.name(cell)!r} gave a result of shape {shape} instead of {wanted} (see whet check-loss)"
        )
    return answer


def ask_loss(cell: cells.Cell, supply: Mapping[str, Any], *, shapes: Sequence[Sequence[int]]) -> Tensor:
    """`ask` for a loss, which must have a gradient."""
    losses = ask(cell, supply, shapes=shapes)
    if torch.is_grad_enabled() and not losses.requires_grad:
        raise RunFailed(f"{cells.name(cell)!r} has no gradient in the model's outputs, so it trains nothing")
    return losses
