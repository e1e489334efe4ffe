"""The in-process engine: samples with the trainer's own weights, so they cannot be stale.

Each prompt is prefilled once for its whole group, every sequence has its own random stream, and finished sequences
leave the batch. Knows nothing about rewards.

Tokens are drawn by inverse transform sampling. `_draw_exactly` is the definition: the first token whose cumulative
probability, summed in fp64 over the fp32 log-probs of `log_distribution`, exceeds a uniform random number. `draw` finds
the same token from fp32 probabilities, and falls back to the definition for rows that rounding could decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whet.batching import pad
from whet.engines.engine_protocol import (
    OnGroup,
    OnToken,
    above_coldest,
    token_limit,
    up_to_stop,
    within_context,
    within_vocabulary,
)
from whet.engines.native.slots import Drawn, Finished, say_fewer
from whet.engines.rounds import Reply, in_rounds
from whet.models.decoder.decoder import Decoder
from whet.models.layers.decoder_config import autocast, has_plain_products, is_served, reaches_all
from whet.models.logprobs import Past, check_logprobs, doubt, log_distribution, remembered
from whet.models.memory_errors import NoRoomToSample, shortage
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Completion, Prompt, Sampling
from whet.streams import stream_key, uniform

if TYPE_CHECKING:
    from whet.engines.native.conversing_sampler import ConversingSampler


PLAIN_SEQUENCES, CUDA_SEQUENCES = 256, 1024  # default of max_sequences; CUDA graphs take as many of them as fit
LOOK = 16  # tokens between checks that log-probs are finite, each of which waits for the device
TOKENS_PER_CHARACTER = 4  # at most: a character has up to four bytes, a token at least one


class NativeEngine:
    """Samples from a policy in this process."""

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Tokenizer,
        *,
        max_sequences: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.bfloat16,
        on_token: OnToken | None = None,
        keeps_conversations: bool = False,
    ) -> None:
        """`dtype`: of matrix products on a GPU (a CPU computes in fp32). `max_sequences`: batch size.

        `keeps_conversations`: whether KV caches are kept between turns where CUDA graphs sample. Off, because it was
        tried with plain torch operations on a CPU only, not with the kernels of a GPU.
        """
        self.policy, self.tokenizer = policy, tokenizer
        self.on_token, self.keeps_conversations = on_token, keeps_conversations
        self.max_sequences, self.dtype = max_sequences, dtype
        self.device = device or next(policy.parameters()).device
        self.version = 0
        self._sampler: ConversingSampler | None = None

    @property
    def is_exact(self) -> bool:
        """True for our decoder on a CPU, where sampler and trainer both compute in fp32."""
        return self.device.type == "cpu" and isinstance(self.policy, Decoder)

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of each stage of the last call; empty unless CUDA graphs sampled."""
        return dict(self._sampler.timings) if self._sampler is not None else {}

    def sync(self, policy: CausalLM, *, version: int) -> None:
        """Samples with these weights from now on; they are the trainer's own, so nothing is copied."""
        self.policy, self.version = policy, version

    def close(self) -> None:
        """Nothing to release."""

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, count: int = 1, on_group: OnGroup | None = None
    ) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        above_coldest(sampling)
        sampling = sampling.ended_by(self.tokenizer.stops)
        prompts = self._checked(prompts)
        finished = None
        if on_group is not None:
            finished = Finished(count, lambda prompt, some: on_group(prompt, self._completed(some, sampling)))
        if self._is_fast(sampling, self._longest(sampling, prompts)):
            drawn = self._sample_fast(prompts, sampling, count, finished)
        else:
            try:
                with autocast(self.device):
                    drawn = self._sample_plainly(prompts, sampling, count, finished)
            finally:
                if isinstance(self.policy, Decoder):
                    self.policy.model.joined.release(list(self.policy.model.layers))
        done = self._completed(drawn, sampling)
        return [done[i * count : (i + 1) * count] for i in range(len(prompts))]

    def converse(
        self, prompts: Sequence[Prompt], sampling: Sampling, reply: Reply, *, count: int = 1, overlaps: bool = False
    ) -> None:
        """Conversations that keep their KV caches between turns, if asked to and CUDA graphs sample; else in rounds."""
        above_coldest(sampling)
        whole = sampling.ended_by(self.tokenizer.stops)
        if not (self.keeps_conversations and self._is_fast(whole, self.policy.context)):
            in_rounds(self, prompts, sampling, reply, count=count)
            return

        def answer(ended: Mapping[int, Drawn]) -> dict[int, Prompt]:
            written = self._completed(list(ended.values()), whole)
            going = reply(dict(zip(ended, written, strict=True)))
            return dict(zip(going, self._checked(list(going.values())), strict=True))

        self._fast_sampler().converse(self._checked(prompts), whole, answer, count=count, overlaps=overlaps)

    def _checked(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        limited = within_context(prompts, self.policy.context)
        within_vocabulary(limited, self.policy.vocab_size)
        return limited

    def _completed(self, drawn: Sequence[Drawn], sampling: Sampling) -> list[Completion]:
        texts = self.tokenizer.decode_many([one.tokens for one in drawn])
        return [
            Completion(
                tokens=tuple(one.tokens),
                logprobs=tuple(one.logprobs),
                text=up_to_stop(text, sampling.stop),
                finish="stop" if one.is_stopped else "length",
            )
            for one, text in zip(drawn, texts, strict=True)
        ]

    def _is_fast(self, sampling: Sampling, longest: int) -> bool:
        """Whether CUDA graphs can sample it: a served decoder on a GPU, no top-k, top-p, min-p or stop strings.

        A sequence that may outgrow a sliding window is sampled by the plain loop.
        """
        plain = sampling.is_whole and not sampling.stop
        ours = (
            isinstance(self.policy, Decoder)
            and is_served(self.policy.config)
            and has_plain_products(self.policy.model.layers)
            and self.policy.head_weight is not None
            and reaches_all(self.policy.config, longest)
        )
        return self.device.type == "cuda" and plain and ours and self.on_token is None

    def _longest(self, sampling: Sampling, prompts: Sequence[Prompt]) -> int:
        """The most tokens that a prompt and its completion may have."""
        context = self.policy.context
        return max((len(one.tokens) + token_limit(one, sampling, context) for one in prompts), default=0)

    def _sample_fast(
        self, prompts: Sequence[Prompt], sampling: Sampling, count: int, finished: Finished | None
    ) -> list[Drawn]:
        return self._fast_sampler().sample(prompts, sampling, count=count, finished=finished)

    def _fast_sampler(self) -> ConversingSampler:
        from whet.engines.native import decode_kernels  # imports Triton, which only CUDA builds of torch have
        from whet.engines.native.conversing_sampler import ConversingSampler

        assert isinstance(self.policy, Decoder)
        if self._sampler is None or self._sampler.policy is not self.policy:
            slots = self.max_sequences or CUDA_SEQUENCES
            self._sampler = ConversingSampler(
                self.policy, self.tokenizer.stops, max_slots=slots, ops=decode_kernels, dtype=self.dtype
            )
        return self._sampler

    def _sample_plainly(
        self, prompts: Sequence[Prompt], sampling: Sampling, count: int, finished: Finished | None
    ) -> list[Drawn]:
        """Batch after batch; whenever memory runs out the batch begins again with half of its prompts."""
        # Whole groups: a prompt is prefilled once.
        size = first = min(len(prompts), max(1, (self.max_sequences or PLAIN_SEQUENCES) // count))
        drawn: list[Drawn] = []

        def extend() -> None:
            drawn.extend(self._sample(prompts[start : start + size], sampling, count, finished, first=start))

        while (start := len(drawn) // count) < len(prompts):
            short = shortage(extend)
            if not short:
                continue
            torch.cuda.empty_cache()
            size = min(size, len(prompts) - start)
            if size == 1 or self.on_token is not None:  # what `on_token` has heard cannot be taken back
                raise NoRoomToSample(short)
            size //= 2
        if size != first:
            self.max_sequences = size * count
            say_fewer(self.max_sequences, first * count)
        return drawn if finished is None else finished.as_told(drawn)

    def _sample(
        self, prompts: Sequence[Prompt], sampling: Sampling, count: int, finished: Finished | None, *, first: int
    ) -> list[Drawn]:
        """Samples every sequence of one batch to its end; `first` is the index of its first prompt."""
        tokens = pad([prompt.tokens for prompt in prompts], torch.int64).to(self.device)
        lengths = torch.tensor([len(prompt.tokens) for prompt in prompts], device=self.device)
        limits = torch.tensor(
            [token_limit(prompt, sampling, self.policy.context) for prompt in prompts], device=self.device
        )
        names = [stream_key((*prompt.stream, sample)) for prompt in prompts for sample in range(count)]
        keys = torch.tensor(names, device=self.device)
        states, cache = self.policy.begin(tokens, lengths, room=int(limits.max()))
        fan_out = torch.arange(len(prompts), device=self.device).repeat_interleave(count)
        cache.select(fan_out)
        states, limits = states[fan_out], limits[fan_out]
        asked = _unpadded(tokens, lengths)[fan_out]  # (B, P): the prompt of each sequence
        out = torch.zeros(len(keys), int(limits.max()), dtype=torch.int64, device=self.device)  # (B, room) tokens
        out_logprobs = torch.zeros(out.shape, device=self.device)
        lengths = torch.zeros_like(keys)  # (B,): of the completions
        is_ended = torch.zeros_like(keys, dtype=torch.bool)  # (B,): by a stop token or string, not by the limit
        stops = torch.tensor(sorted(self.tokenizer.stops), device=self.device)
        live = torch.arange(len(keys), device=self.device)  # (rows,): which sequence each remaining row is
        for position in range(out.shape[1]):
            positions = torch.full_like(keys, position)
            past = _past(asked, out, live, positions) if sampling.has_memory else None
            chosen, logprobs = draw(self.policy.head(states), sampling, keys, positions, past)
            if position == 0:
                logprobs = logprobs + doubt(self.policy.head_weight)
            out[live, position], out_logprobs[live, position] = chosen, logprobs
            may_look = self.device.type == "cpu" or position % LOOK == 0
            if may_look and not bool(logprobs.isfinite().all()):
                lengths[live] = position + 1  # `check_logprobs` raises the error
                break
            is_stopped = (chosen[:, None] == stops).any(dim=-1)
            if self.on_token is not None or sampling.stop:
                is_stopped |= self._heard(out[live, : position + 1].tolist(), live.tolist(), sampling, count, first)
            is_done = is_stopped | (limits == position + 1)
            if bool(is_done.any()):
                lengths[live[is_done]] = position + 1
                is_ended[live] = is_stopped
                if finished is not None:
                    finished.add(first * count, _ended(live[is_done], out, out_logprobs, is_ended, position + 1))
                rows = _closed_up(is_done)
                if not len(rows):
                    break
                cache.select(rows)
                live, keys, limits, chosen = live[rows], keys[rows], limits[rows], chosen[rows]
            states = self.policy.extend(chosen, cache)
        sampled = zip(out.tolist(), out_logprobs.tolist(), lengths.tolist(), is_ended.tolist(), strict=True)
        drawn = [Drawn(ids[:length], values[:length], ended) for ids, values, length, ended in sampled]
        for row, one in enumerate(drawn):
            check_logprobs(one.logprobs, self.policy, prompt=first + row // count)
        return drawn

    def _heard(self, tokens: list[list[int]], live: list[int], sampling: Sampling, count: int, first: int) -> Tensor:
        """Calls `on_token` for the newest token of each live sequence; (rows,) whether a stop string has appeared."""
        if self.on_token is not None:
            for row, sequence in zip(tokens, live, strict=True):
                self.on_token(first + sequence // count, sequence % count, row[-1])
        if not sampling.stop:
            return torch.zeros(len(live), dtype=torch.bool, device=self.device)
        window = TOKENS_PER_CHARACTER * max(len(text) for text in sampling.stop) + 1
        tails = self.tokenizer.decode_many([row[-window:] for row in tokens])
        return torch.tensor([any(text in tail for text in sampling.stop) for tail in tails], device=self.device)


def _ended(rows: Tensor, out: Tensor, logprobs: Tensor, is_ended: Tensor, length: int) -> dict[int, Drawn]:
    """Sequence → completion, of those that end with this length."""
    found = zip(out[rows, :length].tolist(), logprobs[rows, :length].tolist(), is_ended[rows].tolist(), strict=True)
    return {row: Drawn(*one) for row, one in zip(rows.tolist(), found, strict=True)}


def _unpadded(tokens: Tensor, lengths: Tensor) -> Tensor:
    """(B, P) ids with −1 in the padding."""
    return tokens.masked_fill(torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None], -1)


def _past(asked: Tensor, out: Tensor, live: Tensor, positions: Tensor) -> Past:
    """What the live sequences have before this position, the same for all of them."""
    written = out[live, : int(positions[0])]
    return Past(positions=positions, tokens=torch.cat([asked[live], written], dim=1))


def _closed_up(is_done: Tensor) -> Tensor:
    """Indices of the rows that continue; the last ones fill the gaps of finished rows, so that few rows move."""
    going = ~is_done
    count = int(going.sum())
    rows = torch.arange(count, device=is_done.device)
    rows[is_done[:count]] = going[count:].nonzero()[:, 0] + count
    return rows


BLOCK = 256  # tokens per block in the first of two searches
QUICK_FROM = 4096  # vocabulary size below which the definition is as fast
# Bound on the error of a cumulative fp32 probability. Each log-prob is rounded by at most |log p| · 2⁻²⁴, which adds
# up to at most (entropy + a few) · 2⁻²⁴ < 2e-6 for 2¹⁸ tokens; exp and the sums add less.
DOUBT = 5e-6


def draw(
    logits: Tensor, sampling: Sampling, keys: Tensor, positions: Tensor, past: Past | None = None
) -> tuple[Tensor, Tensor]:
    """Samples one token per row of (N, V) logits; returns (N,) tokens and their log-probs under that distribution.

    The log-prob is NaN if a logit is NaN or +inf, or if all are −inf; some −inf among finite ones are fine.
    """
    if past is not None:
        logits = remembered(logits, sampling, past)
    if sampling.temperature == 0:
        chosen = logits.argmax(dim=-1)
        highest = logits.gather(-1, chosen[:, None])[:, 0].float()
        return chosen, highest - highest  # 0, or NaN if the highest is not finite: argmax prefers NaN
    numbers = uniform(keys, positions)
    if not sampling.is_whole or logits.device.type != "cpu" or logits.shape[-1] < QUICK_FROM:
        return _draw_exactly(log_distribution(logits, sampling), numbers)
    scaled = logits.float() if sampling.temperature == 1 else logits.float() / sampling.temperature
    probabilities = scaled.softmax(dim=-1)
    chosen, is_doubtful, total = _draw_quickly(probabilities, numbers)
    if bool(is_doubtful.any()):
        rows = is_doubtful.nonzero()[:, 0]
        chosen[rows], _ = _draw_exactly(log_distribution(logits[rows], sampling), numbers[rows])
    # Divided by their exact sum: over a large vocabulary the sum within torch's softmax is off by up to 1e-5.
    return chosen, (probabilities.gather(-1, chosen[:, None])[:, 0] / total).log().float()


def _draw_exactly(distribution: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: (N, V) log-probs, (N,) numbers in [0, 1) → tokens and their log-probs."""
    cumulative = distribution.double().exp().cumsum(dim=-1)
    target = numbers[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=distribution.shape[-1] - 1)
    return chosen[:, 0], distribution.gather(-1, chosen)[:, 0]


def _draw_quickly(probabilities: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, V) fp32 probabilities → (N,) tokens, whether rounding could have decided them, and (N,) sums of rows."""
    vocabulary = probabilities.shape[-1]
    whole = vocabulary // BLOCK * BLOCK
    sums = probabilities[:, :whole].reshape(len(probabilities), whole // BLOCK, BLOCK).sum(dim=-1).double()
    rest = probabilities[:, whole:].sum(dim=-1, keepdim=True).double()
    edges = torch.cat((torch.zeros_like(rest), sums, rest), dim=-1).cumsum(dim=-1)  # before each block; total
    target = numbers[:, None] * edges[:, -1:]
    block = torch.searchsorted(edges, target, right=True).clamp(max=edges.shape[-1] - 1) - 1
    places = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, places.clamp(max=vocabulary - 1)).double().masked_fill(places >= vocabulary, 0.0)
    cumulative = torch.cat((edges.gather(-1, block), inside), dim=-1).cumsum(dim=-1)
    index = torch.searchsorted(cumulative, target, right=True).clamp(min=1, max=BLOCK)
    below, above = cumulative.gather(-1, index - 1), cumulative.gather(-1, index)
    doubt = DOUBT * edges[:, -1:]
    is_doubtful = ~((target - below >= doubt) & (above - target >= doubt))  # True for NaN too
    return places.gather(-1, index - 1)[:, 0], is_doubtful[:, 0], edges[:, -1]
