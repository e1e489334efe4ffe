"""The critic: what the rest of a rollout is worth, and the optimizer that teaches it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.config import OnlineConfig
from whet.models.layers.packing import Packing, pack
from whet.models.logprobs import ValueHead, token_values
from whet.models.protocol import CausalLM
from whet.models.reward.reward_model import LinearValue
from whet.records import Sequences
from whet.train.setup.optimizer import (
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)

WEIGHT = "weight/"


class Critic(nn.Module):
    """A linear head on the policy's own trunk, or on a copy of it; and an optimizer for what is its own."""

    def __init__(self, policy: CausalLM, config: OnlineConfig) -> None:
        super().__init__()
        self.device = next(policy.parameters()).device  # where it works; it may wait elsewhere
        self.config = config
        self.trunk = None if config.critic.model == "shared" else _trunk(policy)
        self.head = LinearValue(state_width(policy)).to(self.device)
        rate = config.critic.lr if config.critic.lr is not None else config.optimizer.lr
        self.settings = config.optimizer.model_copy(update={"lr": rate})
        self.optimizer = make_optimizer(self, self.settings)

    def is_warming_up(self, step: int) -> bool:
        """Whether the policy still waits for the critic."""
        return step <= self.config.critic.warmup_steps

    def set_rate(self, step: int) -> None:
        """The schedule is the policy's, the height its own."""
        set_learning_rate(self.optimizer, learning_rate(step, self.config.steps, self.settings))

    def beside(self, policy_learns: bool) -> ValueHead | None:
        """The head that reads the policy's own states in the policy's own pass, where the trunk is shared."""
        return self.head if self.trunk is None and policy_learns else None

    def values(self, policy: CausalLM, s: Sequences, packing: Packing | None) -> Tensor:
        """(B, T) values by a pass of their own; a shared trunk gets no gradient from them."""
        trunk, head = (policy, self._detached) if self.trunk is None else (self.trunk, self.head)
        return token_values(trunk, head, s.tokens, s.lengths, s.mask, packing)

    def values_after(self, policy: CausalLM, s: Sequences, groups: Tensor) -> Tensor:
        """(B,) values of the states after the last tokens: what a rollout that was cut off might still have earned."""
        rows = torch.arange(len(s.lengths), device=s.lengths.device)
        tokens, mask = (nn.functional.pad(x, (0, 1)) for x in (s.tokens, s.mask))
        mask[rows, s.lengths] = True  # a token that nobody reads: its value is that of the state before it
        extended = Sequences(tokens=tokens, mask=mask, lengths=s.lengths + 1)
        # Packed, whatever `update.packed` says: the added token itself is left out, so the context is not exceeded.
        return self.values(policy, extended, pack(tokens, mask, groups))[rows, s.lengths]

    def _detached(self, states: Tensor) -> Tensor:
        values: Tensor = self.head(states.detach())
        return values

    def numbers(self) -> dict[str, Any]:
        """None: it is all weights."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments."""
        weights = {f"{WEIGHT}{name}": parameter.detach() for name, parameter in self.named_parameters()}
        return {**weights, **optimizer_tensors(self.optimizer, self)}

    @torch.no_grad()
    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        """Puts back what `tensors` gave."""
        for name, parameter in self.named_parameters():
            parameter.copy_(tensors[f"{WEIGHT}{name}"])
        restore_optimizer(self.optimizer, self, tensors, self.device)


def state_width(policy: CausalLM) -> int:
    """D: the size of a hidden state."""
    device = next(policy.parameters()).device
    with torch.no_grad():
        token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        return int(policy.hidden(token, torch.ones(1, dtype=torch.int64, device=device)).shape[-1])


def _trunk(policy: CausalLM) -> Any:
    """A copy of the policy; its own head predicts no tokens, so it is not trained."""
    trunk = copy.deepcopy(policy)
    for name, parameter in trunk.named_parameters():
        parameter.requires_grad_("lm_head" not in name)
    return trunk
