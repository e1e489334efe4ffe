"""The engine of a policy that is spread over processes: it samples from a whole copy of its own.

Decoding through the policy's own blocks would gather each of them for every token, and all processes would have to
sample completions of the same length. The copy is filled tensor by tensor, so it costs its own size and one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whet.engines.engine_protocol import Engine, OnGroup
from whet.engines.rounds import Reply, converse
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling


class GatheringEngine:
    """An engine of this process that samples from `own`, a model of the policy's shape with matrices in any dtype."""

    def __init__(self, engine: Engine, own: Any, whole: Callable[[Tensor], Tensor]) -> None:
        """`whole` gives the whole of a weight to all processes, which call it together."""
        self._engine, self._own, self._whole = engine, own, whole
        self._is_filled = False

    @property
    def is_exact(self) -> bool:
        return self._engine.is_exact

    @torch.no_grad()
    def sync(self, policy: CausalLM, *, version: int) -> None:
        """Copies the policy's weights, frozen ones once; every process calls it."""
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad or not self._is_filled:
                self._own.get_parameter(name).copy_(self._whole(parameter))
        self._is_filled = True
        self._engine.sync(self._own, version=version)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        return self._engine.generate(prompts, sampling, count=count, on_group=on_group)

    def converse(
        self, prompts: Sequence[Prompt], sampling: Sampling, reply: Reply, *, count: int, overlaps: bool
    ) -> None:
        """Conversations as the engine samples them."""
        converse(self._engine, prompts, sampling, reply, count=count, overlaps=overlaps)

    def close(self) -> None:
        self._engine.close()
