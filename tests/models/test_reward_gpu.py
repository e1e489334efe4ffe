"""Reward models on CUDA: bf16 passes, prompts shared or not, stay near fp32; the head is fp32 throughout."""

import pytest
import torch

from tests.models.places import last_places
from whet.models.load import new_model
from whet.models.reward.reward_model import new_reward_model, pack_through
from whet.models.reward.scoring import Scorer
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import character_tokenizer, with_padding

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LETTERS = "abcdefghij"
BF16 = 0.05  # of scores of about 1: eight bits of mantissa through four blocks


def scorer(device, settings, **options):
    tokenizer, pad = with_padding(character_tokenizer(LETTERS))
    policy = new_model("llama", vocab_size=11, layers=4, heads=4, kv_heads=2, width=128, context=512, seed=0)
    model = new_reward_model(policy, settings, seed=1, pad=pad)
    with torch.no_grad():
        model.head.weight.mul_(10)
    return Scorer(model.to(device), tokenizer, **options)


def texts():
    draws = torch.Generator().manual_seed(0)

    def word(length):
        return "".join(LETTERS[i] for i in torch.randint(0, 10, (length,), generator=draws).tolist())

    asked = [word(5 + 40 * index) for index in range(5)]
    return [asked[index % 5] for index in range(20)], [word(1 + 9 * index) for index in range(20)]


@pytest.mark.parametrize(
    "settings", [RewardSettings(kind="preference"), RewardSettings(kind="process", classes=3, separator="j")]
)
def test_scores_on_cuda_are_those_of_a_cpu(settings):
    expected = torch.tensor(scorer("cpu", settings).score(*texts()))
    for micro_batch_tokens in (None, 300):
        found = torch.tensor(scorer("cuda", settings, micro_batch_tokens=micro_batch_tokens).score(*texts()))
        torch.testing.assert_close(found, expected, atol=BF16, rtol=0)


def test_scores_and_gradients_are_fp32_under_autocast():
    model = scorer("cuda", RewardSettings(kind="preference")).model
    tokens = torch.randint(1, 11, (6, 40), device="cuda")
    lengths = torch.tensor([40, 3, 17, 1, 25, 40], device="cuda")
    places = last_places(lengths, 40)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model.scores(tokens, lengths, places, pack_through(tokens, places))
    assert scores.dtype is torch.float32
    assert len(set(scores.tolist())) == 6  # bf16 would have rounded some of them together
    scores.sum().backward()
    assert model.head.weight.grad.dtype is torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
