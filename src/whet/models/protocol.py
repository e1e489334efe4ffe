"""The protocols of language models and tokenisers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from whet.models.layers.packing import Packing
from whet.records import Message


class Cache(Protocol):
    """The keys and values of the sequences that a model is extending, one row each."""

    def select(self, rows: Tensor) -> None:
        """Row i becomes the old row rows[i]: repeats fan a prompt out to its samples, omissions drop the finished."""
        ...


class CausalLM(Protocol):
    """A decoder. Sequences are right-padded; what stands in the padding never changes what stands before it."""

    gradient_checkpointing: bool  # keep a block's input only and compute it again in the backward pass

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
        """→ (N, D): as `hidden`, without padding, and shared prompts once."""
        ...

    @property
    def head_weight(self) -> Tensor | None:
        """(V, D), where the head is the product with it and nothing else."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V) logits."""
        ...

    def begin(self, tokens: Tensor, lengths: Tensor, *, room: int) -> tuple[Tensor, Cache]:
        """Reads prompts; returns the (B, D) state of each last token, and a cache with room for `room` more."""
        ...

    def extend(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Appends one (B,) token to every row of the cache; returns (B, D)."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def save(self, directory: Path) -> None:
        """config.json and model.safetensors as `AutoModelForCausalLM.from_pretrained` reads them."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Ids that end a sequence are real tokens; padding is not an id, it is a length."""

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
        """The ids that a policy is asked to continue: a chat template with the assistant's header, or plain text."""
        ...

    def save(self, directory: Path) -> None: ...
