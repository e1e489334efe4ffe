"""The engine of bidirectional models: completions and infillings by iterative unmasking.

A text is read as the beginning of a window as long as the model's context, as in training; what it does not hold, and
what nobody asks for, is masked. There is no log-prob of a completion, only a bound on it: they are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from whet.batching import pad
from whet.engines.denoising.unmasking import ORDERS, Unmasking, fill
from whet.engines.engine_protocol import (
    OnGroup,
    OnToken,
    above_coldest,
    token_limit,
    up_to_stop,
    within_context,
    within_vocabulary,
)
from whet.errors import UserError
from whet.models.layers.decoder_config import autocast
from whet.models.masked_logprobs import mask_id
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.streams import stream_key

CPU_TOKENS, CUDA_TOKENS = 16_384, 262_144  # of a forward pass
USUAL = Unmasking()


class DenoisingEngine:
    """Samples from a bidirectional policy in this process."""

    is_exact = False  # there are no log-probs

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Tokenizer,
        *,
        how: Unmasking = USUAL,
        device: torch.device | None = None,
        on_token: OnToken | None = None,
    ) -> None:
        if how.order not in ORDERS:
            raise UserError(f"order is {how.order!r}: use {' or '.join(ORDERS)}")
        if how.steps is not None and how.steps < 1:
            raise UserError(f"steps is {how.steps}: unmasking takes at least one")
        self.policy, self.tokenizer, self.how, self.on_token = policy, tokenizer, how, on_token
        self.device = device or next(policy.parameters()).device

    def revealing(self, how: Unmasking) -> DenoisingEngine:
        """The same engine with another order or number of steps."""
        return DenoisingEngine(self.policy, self.tokenizer, how=how, device=self.device, on_token=self.on_token)

    def sync(self, policy: CausalLM, *, version: int) -> None:  # noqa: ARG002
        """Samples with these weights from now on; they are the trainer's own, so nothing is copied."""
        self.policy = policy

    def close(self) -> None:
        """Nothing to release."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        count: int = 1,
        on_group: OnGroup | None = None,  # noqa: ARG002 (all completions are there at once)
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        prompts = within_context(prompts, self.policy.context)
        within_vocabulary(prompts, mask_id(self.policy))
        limits = [token_limit(prompt, sampling, self.policy.context) for prompt in prompts]
        texts = [[*prompt.tokens, *([None] * limit)] for prompt, limit in zip(prompts, limits, strict=True)]
        filled = self.infill(texts, [prompt.stream for prompt in prompts], sampling, count=count)
        return [
            [
                self._completion(ids[len(prompt.tokens) :], sampling, at=(index, sample))
                for sample, ids in enumerate(own)
            ]
            for index, (prompt, own) in enumerate(zip(prompts, filled, strict=True))
        ]

    def infill(
        self,
        texts: Sequence[Sequence[int | None]],
        streams: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        count: int = 1,
    ) -> list[list[list[int]]]:
        """`count` versions of each text with an id for every None; the ids that are given stay."""
        above_coldest(sampling)
        if sampling.has_memory:
            raise UserError("min_tokens and repetition_penalty need an order from left to right: leave them out")
        longest = max(map(len, texts), default=0)
        if longest > self.policy.context:
            raise UserError(
                f"a text of {longest} tokens exceeds the model's context of {self.policy.context}: shorten it"
            )
        keys = [stream_key((*stream, sample)) for stream in streams for sample in range(count)]
        repeated = [text for text in texts for _ in range(count)]
        most = CUDA_TOKENS if self.device.type == "cuda" else CPU_TOKENS
        size = max(1, most // self.policy.context)
        found: list[list[int]] = []
        for start in range(0, len(repeated), size):
            found += self._filled(repeated[start : start + size], keys[start : start + size], sampling)
        return [found[start : start + count] for start in range(0, len(found), count)]

    def _filled(
        self, texts: Sequence[Sequence[int | None]], keys: Sequence[int], sampling: Sampling
    ) -> list[list[int]]:
        mask = mask_id(self.policy)
        known = pad([[mask if one is None else one for one in text] for text in texts], torch.int64)
        tokens = torch.full((len(texts), self.policy.context), mask)
        inside = torch.arange(known.shape[1]) < torch.tensor([len(text) for text in texts])[:, None]
        tokens[:, : known.shape[1]] = torch.where(inside, known, mask)
        wanted = torch.zeros_like(tokens, dtype=torch.bool)
        wanted[:, : known.shape[1]] = inside & (known == mask)
        named: Tensor = torch.tensor(keys, dtype=torch.int64, device=self.device)
        with autocast(self.device):
            filled = fill(self.policy, tokens.to(self.device), wanted.to(self.device), named, sampling, self.how)
        return [ids[: len(text)] for ids, text in zip(filled.tokens.tolist(), texts, strict=True)]

    def _completion(self, ids: Sequence[int], sampling: Sampling, *, at: tuple[int, int]) -> Completion:
        """The tokens up to the first that ends a completion, or with which a stop string is complete."""
        ends = [place + 1 for place, token in enumerate(ids) if token in self.tokenizer.stops]
        if sampling.stop:
            texts = self.tokenizer.decode_many(list(accumulate([[one] for one in ids])))
            ends += [place + 1 for place, text in enumerate(texts) if any(stop in text for stop in sampling.stop)]
        kept = tuple(ids[: min(ends, default=len(ids))])
        if self.on_token is not None:
            for token in kept:
                self.on_token(*at, token)
        return Completion(
            tokens=kept,
            logprobs=(math.nan,) * len(kept),
            text=up_to_stop(self.tokenizer.decode(kept), sampling.stop),
            finish="stop" if ends else "length",
        )
