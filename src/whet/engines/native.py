"""The in-process engine: samples with the trainer's own weights, so nothing is copied and nothing can be stale.

Each prompt is read once for its whole group, every sequence keeps its own random stream, and finished sequences
leave the batch. Knows nothing about rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whet.batching import pad
from whet.engines.shapes import is_served
from whet.errors import UserError
from whet.models.decoder import Decoder
from whet.models.logprobs import log_distribution
from whet.models.precision import autocast
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Finish, Prompt, Sampling
from whet.streams import stream_key, uniform

if TYPE_CHECKING:
    from whet.engines.cuda import CudaSampler

OnToken = Callable[[int, int, int], None]  # prompt, sample, token: told of every token as it is sampled
TOKENS_PER_CHARACTER = 4  # a character is at most four bytes, and a token at least one


@dataclass(slots=True)
class _Sequence:
    """One completion in the making."""

    prompt: int
    sample: int
    key: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


class NativeEngine:
    """Samples from a policy in this process."""

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Tokenizer,
        *,
        max_sequences: int = 256,
        device: torch.device | None = None,
        on_token: OnToken | None = None,
    ) -> None:
        self.policy, self.tokenizer = policy, tokenizer
        self.on_token = on_token
        self.max_sequences = max_sequences
        self.device = device or next(policy.parameters()).device
        self.version = 0
        self._sampler: CudaSampler | None = None

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """From now on sample with these weights: they are the trainer's own, so there is nothing to copy."""
        self.policy, self.version = policy, version

    def close(self) -> None:
        """Nothing to release."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        self._check(prompts)
        if self._is_fast(sampling):
            return self._generate_fast(prompts, sampling, count)
        sequences = [
            _Sequence(i, j, stream_key((*p.stream, j)), min(sampling.max_tokens, self.policy.context - len(p.tokens)))
            for i, p in enumerate(prompts)
            for j in range(count)
        ]
        with autocast(self.device):
            for wave in _waves(sequences, self.max_sequences, count):
                self._complete(prompts, wave, sampling)
        done = [self._completion(sequence, sampling) for sequence in sequences]
        return [done[i * count : (i + 1) * count] for i in range(len(prompts))]

    def _is_fast(self, sampling: Sampling) -> bool:
        """Whether the graphs of `whet.engines.cuda` can do it: our decoder on a GPU, nothing cut off, no strings."""
        plain = not (sampling.top_k or sampling.top_p < 1 or sampling.min_p or sampling.stop)
        ours = isinstance(self.policy, Decoder) and is_served(self.policy.config)
        return self.device.type == "cuda" and plain and ours and self.on_token is None

    def _generate_fast(self, prompts: Sequence[Prompt], sampling: Sampling, count: int) -> list[list[Completion]]:
        from whet.engines.cuda import CudaSampler  # triton comes with CUDA builds of torch only

        assert isinstance(self.policy, Decoder)
        if self._sampler is None or self._sampler.policy is not self.policy:
            self._sampler = CudaSampler(self.policy, self.tokenizer.stops, max_slots=self.max_sequences)
        drawn = self._sampler.sample(prompts, sampling, count=count)
        done = [
            Completion(
                tokens=tuple(one.tokens),
                logprobs=tuple(one.logprobs),
                text=self.tokenizer.decode(one.tokens),
                finish="stop" if one.tokens[-1] in self.tokenizer.stops else "length",
            )
            for one in drawn
        ]
        return [done[i * count : (i + 1) * count] for i in range(len(prompts))]

    def _check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if not prompt.tokens:
                raise UserError("a prompt is empty: the model needs at least one token to continue")
            if len(prompt.tokens) >= self.policy.context:
                raise UserError(
                    f"a prompt has {len(prompt.tokens)} tokens and the model's context is {self.policy.context}: "
                    "shorten the prompt or use a model with a longer context"
                )

    def _complete(self, prompts: Sequence[Prompt], wave: list[_Sequence], sampling: Sampling) -> None:
        """Samples every sequence of one wave to its end."""
        owners = list(dict.fromkeys(sequence.prompt for sequence in wave))
        tokens = pad([prompts[owner].tokens for owner in owners], torch.int64).to(self.device)
        lengths = torch.tensor([len(prompts[owner].tokens) for owner in owners], device=self.device)
        states, cache = self.policy.begin(tokens, lengths, room=max(sequence.limit for sequence in wave))
        fan_out = torch.tensor([owners.index(sequence.prompt) for sequence in wave], device=self.device)
        cache.select(fan_out)
        states = states[fan_out]
        live = wave
        keys = torch.tensor([sequence.key for sequence in live], device=self.device)
        position = 0
        while True:
            logits = self.policy.head(states)
            chosen, logprobs = draw(logits, sampling, keys, torch.full_like(keys, position))
            self._append(live, chosen.tolist(), logprobs.tolist(), sampling)
            position += 1
            rows = [row for row, sequence in enumerate(live) if sequence.finish is None]
            if not rows:
                return
            if len(rows) < len(live):
                keep = torch.tensor(rows, device=self.device)
                cache.select(keep)
                live, keys, chosen = [live[row] for row in rows], keys[keep], chosen[keep]
            states = self.policy.extend(chosen, cache)

    def _append(self, live: list[_Sequence], tokens: list[int], logprobs: list[float], sampling: Sampling) -> None:
        for sequence, token, logprob in zip(live, tokens, logprobs, strict=True):
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            if self.on_token is not None:
                self.on_token(sequence.prompt, sequence.sample, token)
            if token in self.tokenizer.stops or (sampling.stop and self._stopped(sequence.tokens, sampling.stop)):
                sequence.finish = "stop"
            elif len(sequence.tokens) >= sequence.limit:
                sequence.finish = "length"

    def _stopped(self, tokens: list[int], stop: tuple[str, ...]) -> bool:
        window = TOKENS_PER_CHARACTER * max(len(text) for text in stop) + 1
        tail = self.tokenizer.decode(tokens[-window:])
        return any(text in tail for text in stop)

    def _completion(self, sequence: _Sequence, sampling: Sampling) -> Completion:
        text = self.tokenizer.decode(sequence.tokens)
        ends = [text.index(stop) + len(stop) for stop in sampling.stop if stop in text]
        assert sequence.finish is not None
        return Completion(
            tokens=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            text=text[: min(ends)] if ends else text,
            finish=sequence.finish,
        )


def draw(logits: Tensor, sampling: Sampling, keys: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row of (N, V) logits, and its log-prob under the distribution that it was drawn from."""
    if sampling.temperature == 0:
        chosen = logits.argmax(dim=-1)
        return chosen, torch.zeros(chosen.shape, device=logits.device)
    distribution = log_distribution(logits, sampling)
    # Inverse transform in fp64: one random number a token, and the sum over a large vocabulary keeps its digits.
    cumulative = distribution.double().exp().cumsum(dim=-1)
    target = uniform(keys, positions)[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    return chosen[:, 0], distribution.gather(-1, chosen)[:, 0]


def _waves(sequences: list[_Sequence], size: int, count: int) -> list[list[_Sequence]]:
    """Pieces of at most `size` sequences that keep the groups of `count` whole, so each prompt is read once."""
    step = max(1, size // count) * count
    return [sequences[start : start + step] for start in range(0, len(sequences), step)]
