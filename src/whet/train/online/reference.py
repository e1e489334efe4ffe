"""The reference of the KL penalty: the start model, a copy synced with the policy, or a fixed distribution."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.algorithms.table import Algorithm
from whet.config import OnlineConfig
from whet.distributed.sharding import local, take_over
from whet.distributed.world import World
from whet.models.adapters.base_view import BaseView
from whet.models.adapters.lora import has_adapters
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.references import Bigram, Uniform
from whet.tasks.protocol import HasText, Task
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import random_policy
from whet.train.setup.offloading import own_device
from whet.train.spreading.spread_models import held, second_model

BIGRAM_EXAMPLES = 10_000  # training examples whose tokens are counted where a task has no text of its own
OTHER_SEED = 1  # added to the seed: random weights other than the policy's


class Reference(Checkpointed):
    """The reference model, and its sync schedule if it has one."""

    def __init__(
        self,
        model: Any,
        *,
        sync_steps: int | None = None,
        ema: float = 0.0,
        is_saved: bool = False,
        own: torch.device | None = None,
    ) -> None:
        """`own`: the device that it is on, if that is not the policy's."""
        self.model, self.is_saved = model, is_saved or sync_steps is not None
        self.sync_steps, self.ema, self.own = sync_steps, ema, own

    @property
    def passed(self) -> Any:
        """The model that a pass goes through: of a view without adapters the one that has them."""
        return self.model.beneath if isinstance(self.model, BaseView) else self.model

    def is_due(self, step: int) -> bool:
        """Whether it is synced after this step."""
        return self.sync_steps is not None and step % self.sync_steps == 0

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        """Its weights; of a model with adapters these alone, because it shares the rest with the policy."""
        is_adapted = has_adapters(self.model)
        for name, parameter in self.model.named_parameters():
            if not is_adapted or "lora_" in name:
                yield name, parameter

    @torch.no_grad()
    def follow(self, policy: CausalLM) -> None:
        """reference ← (1 − ema) · policy + ema · reference."""
        new = dict(policy.named_parameters())
        for name, parameter in self._own():
            mine = local(parameter)
            mine.lerp_(local(new[name]).to(mine.device), 1 - self.ema)

    def tensors(self) -> dict[str, Tensor]:
        """The weights, unless they are those of the start model."""
        if not self.is_saved:
            return {}
        return {name: parameter.detach() for name, parameter in self._own()}

    @torch.no_grad()
    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        if self.is_saved:
            for name, parameter in self._own():
                take_over(parameter, tensors[name])


def build_reference(
    algorithm: Algorithm,
    policy: CausalLM,
    tokenizer: Tokenizer,
    task: Task,
    config: OnlineConfig,
    world: World | None = None,
) -> Reference | None:
    """The reference that the config names, if the algorithm needs one; `policy` has the start weights.

    `world`: of a policy that is spread over its ranks, as the reference then is.
    """
    kl = config.algorithm.kl
    if not algorithm.needs_reference:
        return None
    if kl.reference == "uniform":
        return Reference(Uniform(policy.vocab_size))
    if kl.reference == "bigram":
        return Reference(Bigram(_counted_text(task, tokenizer, config.seed), policy.vocab_size))
    own = own_device(config.placement.reference, "placement.reference")
    if kl.reference == "random":
        assert config.model.new is not None
        other = random_policy(config.model.new, tokenizer, config.seed + OTHER_SEED)
        alone = World.alone(own or next(policy.parameters()).device)
        here = alone if world is None or own is not None else world
        return Reference(frozen(held(other, here)), own=own)
    sync_steps = kl.sync_steps if kl.reference == "sync" else None
    # A repeated cold start may round differently on a GPU.
    is_saved = config.cold_start.steps > 0
    if has_adapters(policy) and sync_steps is None and not is_saved:
        assert isinstance(policy, nn.Module)
        model: Any = BaseView(policy)
    else:
        model = frozen(second_model(policy, world))
        model = model if own is None else model.to(own)
    return Reference(model, sync_steps=sync_steps, ema=kl.ema, is_saved=is_saved, own=own)


def _counted_text(task: Task, tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """Token sequences of the training text if the task has one, else of many training examples."""
    if isinstance(task, HasText):
        yield from map(tokenizer.encode, task.training_text())
        return
    for example in task.draw(BIGRAM_EXAMPLES, seed=(seed, 1)):
        yield [*tokenizer.prompt(example.prompt), *tokenizer.encode(example.answer), tokenizer.eos]


def frozen(model: CausalLM) -> CausalLM:
    """The model without gradients."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model
