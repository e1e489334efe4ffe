"""What learns beside the policy: critics, their targets, the entropy coefficient; and TD3's target of the policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.config.control.off_policy import OffPolicyConfig
from whet.control.off_policy.critics import TwinCritics
from whet.control.policies import Policy
from whet.train.optimizers.optimizer import make_optimizer, moment_count, optimizer_tensors, restore_optimizer
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.offloading import size_of

WEIGHT = "weight/"  # before the names of weights, which are saved beside moments


class TrainedCritics(nn.Module, Checkpointed):
    """Critics with an optimizer of their own, which also adapts the entropy coefficient."""

    def __init__(self, config: OffPolicyConfig, policy: Policy) -> None:
        super().__init__()
        algorithm, shape = config.algorithm, config.policy
        is_soft, coefficient = algorithm.preset == "sac", algorithm.entropy_coefficient
        self.config, self.updates = config, 0  # so far
        self.critics = TwinCritics(policy.size, policy.distribution.noise, shape.widths, shape.activation)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_policy = None if is_soft else copy.deepcopy(policy).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(())) if is_soft and coefficient == "auto" else None
        self._alpha = 0.0 if coefficient == "auto" else coefficient
        wanted = algorithm.target_entropy
        self.target_entropy = -float(policy.distribution.noise) if wanted is None else wanted
        self.to(next(policy.parameters()).device)
        self.optimizer = make_optimizer(self, config.optimizer)

    @property
    def alpha(self) -> Tensor:
        """The entropy coefficient, without a gradient."""
        if self.log_alpha is None:
            return torch.tensor(self._alpha, device=next(self.parameters()).device)
        return self.log_alpha.detach().exp()

    def numbers(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def tensors(self) -> dict[str, Tensor]:
        weights = {f"{WEIGHT}{name}": one.detach() for name, one in self.state_dict().items()}
        return weights | optimizer_tensors(self.optimizer, self, self.config.save.optimizer)

    def saved_sizes(self) -> tuple[int, int]:
        return size_of(self.state_dict().values()), moment_count(self, self.config.optimizer)

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.updates = numbers["updates"]
        self.load_state_dict({name: tensors[f"{WEIGHT}{name}"] for name in self.state_dict()})
        restore_optimizer(self.optimizer, self, tensors)
