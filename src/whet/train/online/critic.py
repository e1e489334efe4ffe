"""The critic: values of states, and their optimizer."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.config import OnlineConfig
from whet.distributed.sharding import take_over
from whet.distributed.world import World
from whet.models.adapters.lora import copied, has_adapters
from whet.models.decoder.decoder import Decoder
from whet.models.layers.packing import Packing, pack
from whet.models.logprobs import ValueHead, token_values
from whet.models.protocol import CausalLM
from whet.models.reward.reward_model import LinearValue
from whet.models.storage.tensor_file import Named, Whole, as_it_is
from whet.records import Sequences
from whet.train.optimizers.optimizer import (
    learning_rate,
    make_optimizer,
    master_bytes,
    moment_count,
    optimizer_items,
    restore_optimizer,
    set_learning_rate,
)
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.offloading import size_of
from whet.train.spreading.spread_models import second_model

WEIGHT = "weight/"


class Critic(nn.Module, Checkpointed):
    """A value head on the policy's trunk or on a copy of it, with its own optimizer."""

    def __init__(self, policy: CausalLM, config: OnlineConfig, world: World | None = None) -> None:
        """`world`: of a policy that is spread over its ranks, as the critic then is."""
        super().__init__()
        # Its weights may be offloaded elsewhere.
        self.device = next(policy.parameters()).device if world is None else world.device
        self.config = config
        self.trunk = None if config.critic.model == "shared" else _trunk(policy, world)
        self.head = LinearValue(state_width(policy)).to(self.device)
        rate = config.critic.lr if config.critic.lr is not None else config.optimizer.lr
        self.settings = config.optimizer.model_copy(update={"lr": rate})
        self.optimizer = make_optimizer(self, self.settings)

    def is_warming_up(self, step: int) -> bool:
        """Whether only the critic trains at this step."""
        return step <= self.config.critic.warmup_steps

    def set_rate(self, step: int) -> None:
        """The policy's schedule with the critic's own peak."""
        set_learning_rate(self.optimizer, learning_rate(step, self.config.steps, self.settings))

    def beside(self, policy_learns: bool) -> ValueHead | None:
        """The head to evaluate in the policy's own forward pass, if the trunk is shared."""
        return self.head if self.trunk is None and policy_learns else None

    def values(self, policy: CausalLM, s: Sequences, packing: Packing | None) -> Tensor:
        """(B, T) values by a separate forward pass; gives a shared trunk no gradient."""
        trunk, head = (policy, self._detached) if self.trunk is None else (self.trunk, self.head)
        return token_values(trunk, head, s.tokens, s.lengths, s.mask, packing)

    def values_after(self, policy: CausalLM, s: Sequences, groups: Tensor) -> Tensor:
        """(B,) values after the last token: bootstrap values of truncated rollouts."""
        rows = torch.arange(len(s.lengths), device=s.lengths.device)
        tokens, mask = (nn.functional.pad(x, (0, 1)) for x in (s.tokens, s.mask))
        mask[rows, s.lengths] = True  # a dummy token: its value is that of the state before it
        extended = Sequences(tokens=tokens, mask=mask, lengths=s.lengths + 1)
        # Packed even without `update.padding_free`: packing drops the dummy token, so the context is not exceeded.
        return self.values(policy, extended, pack(tokens, mask, groups))[rows, s.lengths]

    def _detached(self, states: Tensor) -> Tensor:
        values: Tensor = self.head(states.detach())
        return values

    def _saved(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Its weights, without those that it shares with the policy under their adapters."""
        is_adapted = has_adapters(self)
        return ((name, p) for name, p in self.named_parameters() if p.requires_grad or not is_adapted)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.items(as_it_is))

    def items(self, whole: Whole) -> Named:
        for name, parameter in self._saved():
            yield f"{WEIGHT}{name}", whole(parameter.detach())
        yield from optimizer_items(self.optimizer, self, self.config.save.optimizer, whole)

    def saved_sizes(self) -> tuple[int, int]:
        weights = size_of(parameter for _, parameter in self._saved())
        return weights + master_bytes(self, self.settings), moment_count(self, self.settings)

    @torch.no_grad()
    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        for name, parameter in self._saved():
            take_over(parameter, tensors[f"{WEIGHT}{name}"])
        restore_optimizer(self.optimizer, self, tensors, self.device)


def state_width(policy: CausalLM) -> int:
    """D, the size of a hidden state."""
    if isinstance(policy, Decoder):
        return policy.config.width
    device = next(policy.parameters()).device
    with torch.no_grad():
        token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        return int(policy.hidden(token, torch.ones(1, dtype=torch.int64, device=device)).shape[-1])


def _trunk(policy: CausalLM, world: World | None) -> Any:
    """A copy of the policy, or adapters on the same frozen weights; its LM head is unused and not trained."""
    trunk: Any = copied(policy) if world is None else second_model(policy, world)
    if has_adapters(trunk):
        return trunk
    for name, parameter in trunk.named_parameters():
        parameter.requires_grad_("lm_head" not in name)
    return trunk
