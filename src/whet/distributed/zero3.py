"""Models spread over ranks by DeepSpeed's ZeRO-3, which divides, gathers and releases the matrices of a block.

DeepSpeed's own engine averages gradients, owns clipping and the optimizer step, and pickles its checkpoints. So it is
not used: DeepSpeed partitions weights, gradients are summed here block by block, and the run's optimizer steps on the
parts. A part is a number of rows, as with `fully_shard`, so moments, clipping and checkpoints are those of `fsdp2`.
An embedding or head whose rows the ranks do not divide stays whole on each of them; of blocks that is refused.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor, Shard

from whet.distributed.fsdp2 import BLOCK_PASSES, FSDP2, PASSES, Known
from whet.distributed.sharding import local
from whet.errors import UserError
from whet.imports import optional_package

if TYPE_CHECKING:
    from whet.distributed.world import World

PURPOSE = "distributed.sharding zero3"
VERSION = "0.19"  # parts of DeepSpeed that are used here are not documented, and may move
INSTALL = "pip install 'whet[deepspeed]', or use distributed.sharding=fsdp2, which needs no package"
SHARED_MEMORY = "deepspeed_shm_comm"  # an extension of DeepSpeed that is compiled where CPUs train, and not needed here


@dataclass
class _Matrix:
    """A spread weight of a module: its part is there between passes, and the whole, which DeepSpeed fills, in them."""

    module: nn.Module
    name: str
    whole: Any  # a parameter with methods of DeepSpeed
    part: nn.Parameter

    def gathered(self) -> None:
        self.whole.requires_grad_(self.part.requires_grad)
        self.module._parameters[self.name] = self.whole

    def released(self) -> None:
        self.module._parameters[self.name] = self.part


class _Gathered(nn.Module):
    """What DeepSpeed knows of a block: its spread matrices, which are whole while `forward` calls a pass of it."""

    def __init__(self, wholes: Sequence[nn.Parameter]) -> None:
        super().__init__()
        for number, whole in enumerate(wholes):
            self.register_parameter(str(number), whole)
        self.matrices: list[_Matrix] = []
        self.is_shown = False
        self.read: Callable[[Tensor], Tensor]  # the pass
        self.after_backward: Callable[[], None]

    def forward(self, states: Tensor) -> Tensor:
        was_shown = self.is_shown  # in a backward pass that computes the block again
        self.show(True)
        try:
            read = self.read(_when_passed(states, self.after_backward))
        finally:
            self.show(was_shown)
        return _when_passed(read, lambda: self.show(True))  # fused blocks read weights in their backward pass

    def show(self, whole: bool) -> None:
        self.is_shown = whole
        for matrix in self.matrices:
            matrix.gathered() if whole else matrix.released()


def _when_passed(states: Tensor, then: Callable[[], None]) -> Tensor:
    """The same states; `then` is called in a backward pass, when the gradients of all that follows are complete."""
    return cast("Tensor", _Passed.apply(states, then))  # type: ignore[no-untyped-call]


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, then: Callable[[], None]) -> Tensor:
        ctx.then = then
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.then()
        return (*gradients, None)


@dataclass
class _Held:
    """A model as DeepSpeed has it."""

    blocks: nn.ModuleList
    roots: list[_Matrix] = field(default_factory=list)  # embedding and head: whole from a pass to its backward pass
    fetcher: Any = None
    depth: int = 0  # of forward passes around its own
    are_gathered: bool = False  # the roots
    is_ending: bool = False  # a backward pass, after which the roots are released


class ZeRO3(FSDP2):
    """Matrices are spread over all ranks, and DeepSpeed gathers those of a block for its passes."""

    name = "zero3"

    def __init__(self, world: World) -> None:
        self._deepspeed = _started(world)
        super().__init__(world, replicas=1, cpu_offload=False)
        self._held: WeakKeyDictionary[nn.Module, _Held] = WeakKeyDictionary()

    def _divide(self, model: nn.Module, known: Known) -> None:
        """One block after the other, because its parts alone stay in memory."""
        modules, names = list(model.modules()), {id(module): name for name, module in model.named_modules()}
        require_even_rows(model, known, self._world.size)
        held = _Held(nn.ModuleList())
        self._held[model] = held
        blocks = [modules[place] for place in known.blocks]
        for block in blocks:
            gathered = self._partitioned(list(block.modules()), names, known)
            gathered.after_backward = lambda gathered=gathered: self._after(gathered, held)  # type: ignore[misc]
            held.blocks.append(gathered)
            for name in ("forward", *BLOCK_PASSES):
                if hasattr(block, name):
                    setattr(block, name, _through(gathered, getattr(block, name)))
        inside = {id(module) for block in blocks for module in block.modules()}
        held.roots = self._partitioned([one for one in modules if id(one) not in inside], names, known).matrices
        known.roots = [f"{names[id(root.module)]}.{root.name}" for root in held.roots]
        held.fetcher = self._fetcher(held.blocks)
        held.depth = len(_passing())
        for name in PASSES:
            setattr(model, name, self._counted(known, self._gathering(held, getattr(model, name))))

    def _materialise(self, model: nn.Module) -> None:
        """Nothing: `_divide` does it module by module."""

    def _release(self, model: nn.Module) -> None:
        _released(self._held[model])

    def _partitioned(self, modules: Sequence[nn.Module], names: dict[int, str], known: Known) -> _Gathered:
        """The matrices of these modules, each of which this rank has a part of from now on."""
        found: list[tuple[nn.Module, str, torch.Size]] = []
        for module in modules:
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                module.to_empty(device=self._world.device, recurse=False)
            for name, parameter in module.named_parameters(recurse=False):
                parameter.data = parameter.data.to(self._dtype(parameter), copy=True)
                is_spread = _is_matrix(f"{names[id(module)]}.{name}", parameter, known)
                if not is_spread or parameter.shape[0] % self._world.size:
                    parameter.data = parameter.data.to(self._world.device, torch.float32)
                else:
                    found.append((module, name, parameter.shape))
        wholes: list[Any] = [module._parameters[name] for module, name, _ in found]
        gathered = _Gathered(wholes)
        if wholes:
            self._deepspeed.zero.Init(module=gathered, dtype=torch.float32, mem_efficient_linear=False)
        for (module, name, shape), whole in zip(found, wholes, strict=True):
            rows = whole.ds_tensor.detach().view(shape[0] // self._world.size, *shape[1:])
            part = nn.Parameter(
                DTensor.from_local(rows, self._mesh, [Shard(0)], run_check=False), requires_grad=whole.requires_grad
            )
            matrix = _Matrix(module, name, whole, part)
            matrix.released()
            gathered.matrices.append(matrix)
        return gathered

    def _fetcher(self, blocks: nn.ModuleList) -> Any:
        """DeepSpeed's hooks, which gather the matrices of blocks before their passes and release them after."""
        offload = sys.modules["deepspeed.runtime.zero.parameter_offload"]
        timers = sys.modules["deepspeed.utils.timer"].NoopTimer()
        # Nothing stays gathered because it is small or is used again soon.
        settings = {"param_persistence_threshold": 0, "max_reuse_distance": 0}
        return offload.DeepSpeedZeRoOffload(blocks, timers, None, **settings)

    def _gathering(self, held: _Held, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(method)
        def gathering(*arguments: Any) -> Tensor:
            with torch.no_grad():
                held.fetcher.get_param_coordinator().reset_step()  # all ranks compare the order of blocks once
                if held.roots and not held.are_gathered:
                    held.roots[0].whole.all_gather(param_list=[root.whole for root in held.roots])
            held.are_gathered, held.depth = True, len(_passing())
            for root in held.roots:
                root.gathered()
            return method(*arguments)

        return gathering

    def _after(self, gathered: _Gathered, held: _Held) -> None:
        """The gradients of a block are complete."""
        gathered.show(False)
        self._sum(gathered.matrices)
        if not held.is_ending:
            held.is_ending = True
            Variable._execution_engine.queue_callback(lambda: self._end(held))

    def _end(self, held: _Held) -> None:
        """The backward pass is complete."""
        held.is_ending = False
        self._sum(held.roots)
        _released(held)

    @torch.no_grad()
    def _sum(self, matrices: Sequence[_Matrix]) -> None:
        """Each rank receives the sum of its rows of all gradients; those of ranks that used no weight are 0."""
        trained = [matrix for matrix in matrices if matrix.part.requires_grad]
        if not trained:
            return
        size, gradients = self._world.size, []
        for matrix in trained:
            gradient = matrix.whole.grad
            if gradient is None:
                gradient = torch.zeros(matrix.part.shape, device=self._world.device)
            gradients.append(gradient.float().reshape(size, -1))
            matrix.whole.grad = None
        own = self._scattered(torch.cat(gradients, dim=1))
        for matrix, piece in zip(trained, torch.split(own, [each.shape[1] for each in gradients]), strict=True):
            rows = piece.view_as(local(matrix.part))
            if matrix.part.grad is None:
                matrix.part.grad = DTensor.from_local(rows, self._mesh, [Shard(0)], run_check=False)
            else:
                local(matrix.part.grad).add_(rows)

    def _scattered(self, rows: Tensor) -> Tensor:
        """(ranks, N) → (N,): the sum over ranks of the row of this one."""
        own = rows.new_empty(rows.shape[1])
        with self._world.together():
            dist.reduce_scatter_tensor(own, rows.flatten())
        return own


def require_even_rows(model: nn.Module, known: Known, size: int) -> None:
    """Refuses a number of processes that does not divide the rows of every matrix of a block."""
    modules, names = list(model.modules()), {id(p): name for name, p in model.named_parameters()}
    inside = {id(p): p for place in known.blocks for p in modules[place].parameters()}
    rows = {names[key]: p.shape[0] for key, p in inside.items() if _is_matrix(names[key], p, known)}
    for name, count in rows.items():
        if count % size:
            raise UserError(
                f"distributed.sharding is zero3, {name} has {count} rows, and there are {size} processes, which do not "
                f"divide them: use a divisor of {math.gcd(*rows.values())}, or distributed.sharding=fsdp2"
            )


def _is_matrix(name: str, parameter: Tensor, known: Known) -> bool:
    """Whether a weight is to be spread, if its rows are even."""
    return parameter.dim() >= 2 and name not in known.kept


def _through(gathered: _Gathered, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A pass of a block within which it is whole. Its states are the only tensor that has a gradient."""

    @wraps(method)
    def through(*arguments: Any) -> Tensor:
        place = next(place for place, argument in enumerate(arguments) if isinstance(argument, Tensor))
        states = arguments[place]
        if torch.is_grad_enabled() and not states.requires_grad:  # of a frozen embedding: its backward pass has an end
            states = states.detach().requires_grad_()
        gathered.read = lambda given: method(*arguments[:place], given, *arguments[place + 1 :])
        return cast("Tensor", gathered(states))

    return through


@torch.no_grad()
def _released(held: _Held) -> None:
    """Leaves nothing whole, also of what DeepSpeed fetched in advance: the optimizer changes the parts alone."""
    held.fetcher.partition_all_parameters()
    del _passing()[held.depth :]
    if held.are_gathered:
        held.are_gathered = False
        for root in held.roots:
            root.released()
        if held.roots:
            held.roots[0].whole.partition(param_list=[root.whole for root in held.roots], has_been_updated=False)


def _passing() -> list[nn.Module]:
    """The modules of which DeepSpeed sees a forward pass. One that is computed again ends early and stays there."""
    return cast("list[nn.Module]", sys.modules["deepspeed.runtime.zero.parameter_offload"].FWD_MODULE_STACK)


def _started(world: World) -> Any:
    """The package, within this world's processes."""
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    os.environ.setdefault("LOCAL_RANK", str(world.device.index or 0))
    with redirect_stdout(sys.stderr):
        package = optional_package("deepspeed", PURPOSE, remedy=INSTALL)
        if not str(package.__version__).startswith(f"{VERSION}."):
            raise UserError(
                f"{PURPOSE} is made for DeepSpeed {VERSION}, and {package.__version__} is installed: {INSTALL}"
            )
        # Newer torch has other names for them, which older ones lack.
        warnings.filterwarnings("ignore", r".*(all_gather_into|reduce_scatter)_tensor. is deprecated", FutureWarning)
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        package.ops.__compatible_ops__[SHARED_MEMORY] = False
        backend = "nccl" if world.device.type == "cuda" else "gloo"
        package.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return package
