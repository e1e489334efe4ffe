"""Weights that were handed over are proved: honest hosts pass, and every kind of stale one is named."""

import pytest
import torch

from tests.engines.hosts import CopyHost, KeepsOld, Lying, OtherDistribution, SkipsALayer
from tests.small import small_model
from whet.engines.vllm.weight_proof import CANARY_SAMPLING, canary_prompts, hand_over
from whet.errors import RunFailed
from whet.records import Prompt, Sampling


def moved(policy, by=1e-6):
    """One step of training, far too small for any log-prob to show."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by)


def give(host, policy):
    hand_over(host, policy, torch.float32, canary_prompts(policy.vocab_size, policy.context))


def test_an_honest_host_samples_with_the_weights():
    policy, tokenizer = small_model()
    host = CopyHost(policy, tokenizer)
    give(host, policy)
    assert host.calls == ["checksums", "take", "checksums", "forget", "sample"]
    prompt = Prompt(tokens=tuple(tokenizer.encode("12+")), stream=(1,))
    first = host.sample([prompt], Sampling(max_tokens=9), 1)
    moved(policy, 0.05)
    give(host, policy)
    assert host.sample([prompt], Sampling(max_tokens=9), 1) != first


def test_weights_that_are_there_are_not_sent_again_but_proved_again():
    policy, tokenizer = small_model()
    host = CopyHost(policy, tokenizer)
    give(host, policy)
    host.calls.clear()
    give(host, policy)
    assert host.calls == ["checksums", "forget", "sample"]
    moved(policy)
    host.calls.clear()
    give(host, policy)
    assert "take" in host.calls


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        (SkipsALayer, r"stale weights: 'model.layers.1.mlp.down_proj.weight' is not the policy's"),
        (KeepsOld, r"stale weights: 'lm_head.weight' and \d+ more"),
        (Lying, r"canary prompt differ from the trainer's by .* nats a token \(at most 0.001 in float32\)"),
        (OtherDistribution, "canary prompt differ"),
    ],
)
def test_every_stale_host_is_caught_at_the_first_hand_over(host, sentence):
    policy, tokenizer = small_model()
    with pytest.raises(RunFailed, match=sentence):
        give(host(policy, tokenizer), policy)


@pytest.mark.parametrize("fault", ["layers.1.mlp.down_proj", "layers.0.input_layernorm", "embed_tokens", "."])
def test_a_step_that_no_logprob_shows_is_still_required(fault):
    policy, tokenizer = small_model()
    host = CopyHost(policy, tokenizer)
    give(host, policy)
    host.skipped = fault
    moved(policy)
    with pytest.raises(RunFailed, match="stale weights"):
        give(host, policy)


def test_canaries_fit_any_context_and_vocabulary():
    for vocab, context in [(3, 10), (22, 64), (50000, 4096)]:
        prompts = canary_prompts(vocab, context)
        assert len(prompts) == 2
        for prompt in prompts:
            assert 1 <= len(prompt.tokens) <= context - CANARY_SAMPLING.max_tokens
            assert all(0 <= token < vocab for token in prompt.tokens)
