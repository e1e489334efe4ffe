"""Parts of a decoder's shape: scaled rotary positions, latent attention, experts; and the error for a wrong field."""

import math
from dataclasses import dataclass
from typing import Literal

from whet.errors import UserError

LARGEST_LATENT = 2**16  # ranks and head widths of latent attention
LARGEST_EXPERTS = 2**16  # of one layer
LARGEST_WIDTH = 2**22  # of an MLP


class WrongField(UserError):
    """An impossible value of a field of DecoderConfig; `field` lets a caller name the key of its file instead."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Scaling of rotary frequencies, which extends the context of a trained model."""

    kind: Literal["linear", "llama3"]
    factor: float  # frequencies are divided by it
    low_frequency_factor: float = 1.0  # llama3: wavelengths above original_context / this get the full factor
    high_frequency_factor: float = 4.0  # llama3: wavelengths below original_context / this are unchanged
    original_context: int = 8192  # llama3: the context before scaling

    def __post_init__(self) -> None:
        """Refuses kinds that the decoder does not implement."""
        if self.kind not in ("linear", "llama3"):
            raise UserError(f"rope scaling {self.kind!r} is not supported: use 'linear' or 'llama3'")
        factors = (self.factor, self.low_frequency_factor, self.high_frequency_factor)
        is_ordered = self.factor > 0 and self.high_frequency_factor > self.low_frequency_factor
        if not (all(map(math.isfinite, factors)) and is_ordered and self.original_context >= 1):
            raise UserError(
                f"{self} is impossible: it needs finite factors, the first above 0 and the high above the low one, "
                "and an original context above 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentShape:
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434 §2.1): the widths of a head and of the latents.

    Keys and values of all heads are products of one latent vector per token; positions are in a separate rotary part of
    queries and keys, whose key is shared by the heads.
    """

    q_rank: int | None  # of the queries' latent; None: queries are projected from the hidden state directly
    kv_rank: int  # of the latent of keys and values, which is cached
    nope_dim: int  # of a head's queries and keys without positions
    rope_dim: int  # of a head's rotary queries, and of the shared rotary key, which is cached
    value_dim: int  # of a head's values
    interleaved: bool = True  # rotary pairs are (2i, 2i + 1); else (i, i + rope_dim / 2)

    def __post_init__(self) -> None:
        """Refuses widths that cannot be built."""
        for name in ("kv_rank", "nope_dim", "rope_dim", "value_dim", *(() if self.q_rank is None else ("q_rank",))):
            check_count(name, getattr(self, name), LARGEST_LATENT)
        if self.rope_dim % 2:
            raise WrongField("rope_dim", f"is {self.rope_dim}: rotary positions need an even one")

    @property
    def head_dim(self) -> int:
        """The width of a head's queries and keys."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Numbers per token and layer in the cache."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertShape:
    """A mixture of experts in place of the MLP: softmax routing of every token to the likeliest few, none shared."""

    count: int  # experts of a layer
    per_token: int  # experts that read a token
    expert_width: int  # of the hidden layer of one expert
    renormalised: bool = False  # the weights of a token's experts are divided by their sum
    dense_layers: tuple[int, ...] = ()  # layers with a plain MLP, of width mlp_width

    def __post_init__(self) -> None:
        """Refuses what cannot be built."""
        check_count("count", self.count, LARGEST_EXPERTS)
        check_count("expert_width", self.expert_width, LARGEST_WIDTH)
        check_count("per_token", self.per_token, self.count)


def check_count(name: str, value: object, most: int) -> None:
    """Refuses all but whole numbers from 1 to `most`."""
    if type(value) is not int or value < 1:
        raise WrongField(name, f"is {_short(value)}: expected a whole number above 0")
    if value > most:
        raise WrongField(name, f"is {_short(value)}: expected at most {most}")


def _short(value: object) -> str:
    """repr for a message, shortened: a number of a file may have thousands of digits."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"
