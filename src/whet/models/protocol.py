"""The protocols of language models and tokenisers. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from whet.records import Message

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from whet.models.layers.packing import Packing

# Before the model_type of a model that is not causal: no other library knows it, so none takes it for a causal one.
BIDIRECTIONAL = "bidirectional_"


class Cache(Protocol):
    """A KV cache, one row per sequence."""

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]: repeats copy a prompt to its samples, omissions drop finished rows."""
        ...


class CausalLM(Protocol):
    """A causal language model. Rows are right-padded; the ids in the padding never change the outputs before it."""

    gradient_checkpointing: bool  # keep only the input of each block, recompute the rest in the backward pass

    @property
    def context(self) -> int:
        """The most tokens a sequence may have."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) ids, (B,) lengths → (B, T, D), after the final norm. The training path."""
        ...

    def hidden_packed(self, packing: Packing) -> Tensor:
        """→ (N, D): as `hidden`, without padding, shared prompts computed once."""
        ...

    @property
    def head_weight(self) -> Tensor | None:
        """(V, D) if the head is the product with this matrix and nothing else, or None."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits."""
        ...

    def begin(self, tokens: Tensor, lengths: Tensor, *, room: int) -> tuple[Tensor, Cache]:
        """Prefills prompts; returns the (B, D) state of each last token, and a cache with room for `room` more."""
        ...

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends one (B,) token to every row of the cache; returns (B, D)."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def save(self, directory: Path, dtype: torch.dtype | None = ...) -> None:
        """config.json and model.safetensors as `AutoModelForCausalLM.from_pretrained` reads them; fp32 by default."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. There is no padding id: sequences have lengths, and eos is a token like any other."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos(self) -> int:
        """The id that ends a sequence."""
        ...

    @property
    def stops(self) -> frozenset[int]:
        """Every id that ends a completion (`eos` and, for chat models, the end of a turn)."""
        ...

    def encode(self, text: str) -> list[int]:
        """Plain text, no special tokens added."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        ...

    def decode_many(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of every row."""
        ...

    def prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """The prompt ids: a conversation through the chat template with the assistant's header, or plain text."""
        ...

    def reply(self, reply: str | Message | Sequence[Message], *, after: int) -> list[int]:
        """The ids of a reply to an answer that ended with the id `after`, up to where the next answer begins."""
        ...

    def answer(self, before: Sequence[Message], answer: Message) -> list[int]:
        """The ids of an assistant's message after these, as the chat template writes it, with the end of the turn."""
        ...

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template itself writes definitions of tools, calls and their results."""
        ...

    def rewrites_history(self, *, tools: bool = False) -> str:
        """How a chat template changes what it wrote before when messages follow; empty if it does not.

        With `tools` the messages that follow are results of tools.
        """
        ...

    def save(self, directory: Path) -> None: ...
