"""Differences between an engine's log-probs and the trainer's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whet.batching import collate
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import token_logprobs
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling


@torch.no_grad()
def differences(
    policy: CausalLM, prompts: Sequence[Prompt], groups: Sequence[Sequence[Completion]], sampling: Sampling
) -> Tensor:
    """|log-prob of the engine − log-prob of the policy| of every sampled token, (N,), on the CPU."""
    device = next(policy.parameters()).device
    pairs = [(prompt.tokens, c) for prompt, group in zip(prompts, groups, strict=True) for c in group]
    masks = [(False,) * len(prompt) + (True,) * len(c.tokens) for prompt, c in pairs]
    s = collate([prompt + c.tokens for prompt, c in pairs], masks, device)
    with autocast(device):
        logprobs, _ = token_logprobs(policy, s.tokens, s.lengths, s.mask, sampling)
    sampled = torch.tensor([logprob for _, c in pairs for logprob in c.logprobs])
    return (logprobs[s.mask].cpu() - sampled).abs()
