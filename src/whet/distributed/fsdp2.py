"""Models spread over ranks by torch's `fully_shard` (FSDP2): a block is whole on a rank only while it computes.

Each block is one group of weights and what is left (embedding, head) is another. Matrices are spread; vectors (norms,
biases) stay whole on every rank in fp32, because they are small and their arithmetic is in fp32. On a GPU matrices are
gathered in bf16, in which they are multiplied, and their gradients are reduced in fp32.

Gradients are summed, not averaged, because losses carry global weights. The two settings for this hold for one group
each and are not inherited: set on the root alone they would leave the blocks averaging.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from whet.distributed.sharding import complete_gradients, is_spread, local
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.distributed.world import World

T = TypeVar("T")
M = TypeVar("M")

PASSES = ("hidden", "hidden_packed")  # methods of a model that read its blocks
BLOCK_PASSES = ("fused",)  # methods of a block besides `forward`


@dataclass
class Known:
    """What is known of a model that was spread."""

    blueprint: nn.Module  # the model as it was, on the meta device
    blocks: list[int]  # places of the blocks among the modules
    kept: frozenset[str]  # matrices that every rank has, by name
    made: int = 0  # passes through it so far
    roots: list[str] = field(default_factory=list)  # matrices outside of the blocks


class FSDP2:
    """Matrices are spread over ranks; `replicas` groups of ranks each hold all of them."""

    name, is_sharded = "fsdp2", True

    def __init__(self, world: World, *, replicas: int, cpu_offload: bool) -> None:
        if cpu_offload and world.device.type != "cuda":
            raise UserError(
                "distributed.cpu_offload keeps in host memory what a GPU does not need yet, and this is a CPU: "
                "leave it out"
            )
        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise UserError(
                f"distributed.sharding=fsdp2 sums gradients, and torch {torch.__version__} averages them: install a "
                "newer one"
            )
        self._world = world
        self._mesh, self._replicas = _mesh(world, replicas), replicas
        self._offload: OffloadPolicy = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
        is_cuda = world.device.type == "cuda"
        self._precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if is_cuda else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # the residual stream is fp32
        )
        self._known: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()

    def spread(self, model: nn.Module, blocks: Sequence[nn.Module], kept: Collection[str] = ()) -> None:
        places = {id(module): place for place, module in enumerate(model.modules())}
        at = [places[id(block)] for block in blocks]
        known = Known(blueprint=self._on_meta(model), blocks=at, kept=frozenset(kept))
        self._known[model] = known
        self._divide(model, known)

    def another(self, model: M) -> M:
        assert isinstance(model, nn.Module)
        known = self._known[model]
        second = copy.deepcopy(known.blueprint)
        self._known[second] = new = Known(blueprint=known.blueprint, blocks=known.blocks, kept=known.kept)
        self._divide(second, new)
        self._materialise(second)
        with torch.no_grad():
            for (_, mine), (_, theirs) in zip(second.named_parameters(), model.named_parameters(), strict=True):
                local(mine).copy_(local(theirs))
        return cast("M", second)

    def unsharded(self, model: M) -> M:
        assert isinstance(model, nn.Module)
        return cast("M", copy.deepcopy(self._known[model].blueprint))

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        with self._world.together():
            # Of offloaded weights the parts are in host memory, and only the GPU's are gathered.
            return cast("DTensor", tensor.to(self._world.device)).full_tensor()

    def evened(self, batches: Iterable[T], *models: Any, frozen: Sequence[Any] = ()) -> Iterator[T]:
        mine = list(batches)
        most = int(self._world.max(float(len(mine))))
        asleep, awake = ([model for model in some if model in self._known] for some in (frozen, models))
        passed = [*asleep, *awake]
        for number in range(most):
            before = [self._known[model].made for model in passed]
            if number < len(mine):
                yield mine[number]
            made = {id(model): self._known[model].made - was for model, was in zip(passed, before, strict=True)}
            if not any(made.values()):
                self._pass_over_nothing(asleep, awake)
                continue
            wanted = {id(model): sum(other is model for other in passed) for model in passed}
            assert made == wanted, f"passes through spread models: {made} instead of {wanted}"
        for model in passed:  # without a backward pass the weights outside of the blocks are still gathered
            self._release(model)

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        complete_gradients(parameters)
        kept = [parameter for parameter in parameters if not is_spread(parameter)]
        self._world.sum_gradients(kept)
        parts, wholes = (
            [local(cast("Tensor", parameter.grad)) for parameter in parameters if is_spread(parameter) is spread]
            for spread in (True, False)
        )
        # Every group of replicas has all parts once.
        total = math.sqrt(float(self._world.sum(_squared(parts))) / self._replicas + float(_squared(wholes)))
        if not total <= max_norm:
            share = max_norm / (total + 1e-6)  # as in torch's clipping
            for gradients in filter(None, (parts, wholes)):
                torch._foreach_mul_(gradients, share)
        return total

    @property
    def _home(self) -> torch.device:
        """Where the parts of weights are."""
        return torch.device("cpu") if isinstance(self._offload, CPUOffloadPolicy) else self._world.device

    def _divide(self, model: nn.Module, known: Known) -> None:
        modules = list(model.modules())
        small = {p for name, p in model.named_parameters() if p.dim() < 2 or name in known.kept}
        for parameter in small:
            if not parameter.is_meta:
                parameter.data = parameter.data.to(self._world.device, self._dtype(parameter), copy=True)
        settings: dict[str, Any] = {
            "mesh": self._mesh,
            "mp_policy": self._precision,
            "offload_policy": self._offload,
            "ignored_params": small,
        }
        blocks = [modules[place] for place in known.blocks]
        inside = {id(p) for block in blocks for p in block.parameters()}
        known.roots = [name for name, p in model.named_parameters() if id(p) not in inside and p not in small]
        for block in blocks:
            self._convert(block)
            fully_shard(block, reshard_after_forward=True, **settings)
            for name in BLOCK_PASSES:
                if hasattr(block, name):
                    register_fsdp_forward_method(block, name)
        for name in PASSES:
            setattr(model, name, self._counted(known, getattr(model, name)))
        self._convert(model)
        # The head is read after `hidden` has returned, so the root's weights stay until the backward pass.
        fully_shard(model, reshard_after_forward=False, **settings)
        for name in PASSES:
            register_fsdp_forward_method(model, name)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                _sum_gradients(module)

    def _materialise(self, model: nn.Module) -> None:
        """Gives the parts of a model that is on the meta device room."""
        model.to_empty(device=self._home)
        for parameter in model.parameters():
            if not is_spread(parameter):
                parameter.data = parameter.data.to(self._world.device)

    def _release(self, model: Any) -> None:
        """Keeps the parts alone."""
        model.reshard()

    def _dtype(self, parameter: Tensor) -> torch.dtype:
        """Weights are kept in fp32, but for frozen matrices on a GPU, which stay as they are stored."""
        is_frozen = parameter.dim() >= 2 and not parameter.requires_grad and self._world.device.type == "cuda"
        return parameter.dtype if is_frozen else torch.float32

    def _convert(self, module: nn.Module) -> None:
        """Of one block at a time, because its parts alone stay in memory."""
        for parameter in module.parameters():
            if not is_spread(parameter):
                parameter.data = parameter.data.to(self._dtype(parameter))

    def _on_meta(self, model: nn.Module) -> nn.Module:
        """A copy of a model without its weights."""
        known: dict[int, Any] = {}
        for parameter in model.parameters():
            shape = torch.empty_like(parameter, device="meta", dtype=self._dtype(parameter))
            known[id(parameter)] = nn.Parameter(shape, requires_grad=parameter.requires_grad)
        return copy.deepcopy(model, known)

    def _counted(self, known: Known, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(method)
        def counted(*arguments: Any) -> Tensor:
            known.made += 1
            return method(*arguments)

        return counted

    def _pass_over_nothing(self, asleep: Sequence[Any], awake: Sequence[Any]) -> None:
        """A pass through each model as the other ranks make it, with gradients of 0 for every trained weight."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self._world.device)
        length = torch.ones(1, dtype=torch.int64, device=self._world.device)
        loss, is_half = torch.zeros((), device=self._world.device), self._precision.param_dtype is not None
        for models, learns in ((asleep, False), (awake, torch.is_grad_enabled())):
            for model in models:
                with torch.set_grad_enabled(learns), torch.autocast(token.device.type, torch.bfloat16, is_half):
                    loss = loss + 0 * model.hidden(token, length).float().sum()
                    for name in self._known[model].roots:  # the head is read outside of `hidden`
                        weight = model.get_parameter(name)
                        loss = loss + 0 * weight.float().sum() if weight.requires_grad else loss
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]


def _squared(gradients: Sequence[Tensor]) -> Tensor:
    """(): the sum of the squares of all their elements."""
    norms = [norm.double() for norm in torch._foreach_norm(list(gradients))] if gradients else [torch.zeros(())]
    return torch.stack(norms).square().sum().cpu().double()


def _mesh(world: World, replicas: int) -> DeviceMesh:
    if world.size % replicas:
        raise UserError(
            f"distributed.replicas is {replicas} and there are {world.size} processes, which it does not divide: use a "
            "divisor of their number, e.g. the number of nodes"
        )
    if replicas == 1:
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    shape = (replicas, world.size // replicas)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))


def _sum_gradients(module: FSDPModule) -> None:
    """Sums over ranks, on gloo too, which knows no scaled sums."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
