"""A model with adapters, seen without them: the reference of a LoRA run, which needs no second copy of the weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whet.models.adapters.lora import switched_off


class BaseView:
    """The frozen base of a model with adapters; reads as `whet.models.protocol.CausalLM` does, without gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.beneath: Any = model
        self.context, self.vocab_size = self.beneath.context, self.beneath.vocab_size

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids, (B,) lengths → (B, T, D), after the final norm."""
        with switched_off(self.beneath):
            states: Tensor = self.beneath.hidden(tokens, lengths)
        return states

    def hidden_packed(self, packing: Any) -> Tensor:
        """→ (N, D): as `hidden`, without padding."""
        with switched_off(self.beneath):
            states: Tensor = self.beneath.hidden_packed(packing)
        return states

    @property
    def head_weight(self) -> Tensor | None:
        """(V, D), or None: heads have no adapters."""
        weight: Tensor | None = self.beneath.head_weight
        return weight

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits."""
        logits: Tensor = self.beneath.head(hidden)
        return logits
