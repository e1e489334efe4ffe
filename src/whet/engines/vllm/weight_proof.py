"""Weight synchronisation with vLLM, and the verification that it samples with the new weights.

Two checks that complement each other. Checksums compare every bit of every weight, however small the update. The canary
compares log-probs of sampled tokens with the trainer's, so it also detects errors outside the weights: a head tied to
the wrong matrix, log-probs of another distribution.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from whet.engines.check_engine import differences
from whet.engines.vllm.weights import policy_checksums, require_equal, stored_weights
from whet.errors import RunFailed
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling

# Mean difference in nats a token: far above rounding differences, far below the effect of a missing layer.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
CANARY_LENGTH = 144  # more than one block of vLLM's prefix cache (16 on a GPU, 128 on a CPU)
# Not temperature 1, at which raw and sampling log-probs would be the same.
CANARY_SAMPLING = Sampling(max_tokens=8, temperature=0.7)


class Host(Protocol):
    """A running vLLM, in this process or behind a URL."""

    def take(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Replaces the weights."""
        ...

    def checksums(self) -> dict[str, str]:
        """Checksums of its weights."""
        ...

    def forget(self) -> None:
        """Drops caches that were computed with other weights."""
        ...

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling, count: int) -> list[list[Completion]]:
        """`count` completions of each prompt, in order."""
        ...


def hand_over(host: Host, policy: CausalLM, dtype: torch.dtype, canaries: Sequence[Prompt]) -> None:
    """Sends the policy's weights to vLLM unless it has them, and verifies; RunFailed names the check that failed."""
    expected = policy_checksums(policy, dtype)
    if host.checksums() != expected:
        host.take(stored_weights(policy, dtype))
        require_equal(expected, host.checksums())
    host.forget()  # always: an interrupted run may have left a cache of older weights
    require_canary(host, policy, dtype, canaries)


def require_canary(host: Host, policy: CausalLM, dtype: torch.dtype, canaries: Sequence[Prompt]) -> None:
    """Raises RunFailed if log-probs of sampled canary tokens differ from the policy's."""
    answers = host.sample(canaries, CANARY_SAMPLING, 1)
    apart = float(differences(policy, canaries, answers, CANARY_SAMPLING).mean())
    if not apart <= TOLERANCE[dtype]:
        raise RunFailed(
            f"vLLM does not sample from the policy: its log-probs of a canary prompt differ from the trainer's by "
            f"{apart:.3g} nats a token (at most {TOLERANCE[dtype]:g} in {str(dtype).removeprefix('torch.')})"
        )


def canary_prompts(vocab_size: int, context: int) -> list[Prompt]:
    """Two prompts of different lengths with ids from all over the vocabulary."""
    room = max(1, context - CANARY_SAMPLING.max_tokens)
    lengths = (min(CANARY_LENGTH, room), min(CANARY_LENGTH // 8, room))
    return [
        Prompt(tokens=tuple((7 * place + 11 * row) % vocab_size for place in range(length)), stream=(row,))
        for row, length in enumerate(lengths)
    ]
