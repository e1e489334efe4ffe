"""Conversations in slots by the real kernels: in fp32 those of the plain path, in bf16 with the trainer's log-probs."""

import pytest
import torch

from tests.engines.test_conversing import TEMPERATURE, Talks, in_slots, prompts, same, turn_by_turn
from tests.small import small_model
from whet.models.layers.decoder_config import autocast

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
WIDTH = 64  # four heads of 16, the narrowest that the kernels take


@pytest.mark.parametrize("overlaps", [False, True])
def test_in_fp32_conversations_are_those_of_the_plain_path(overlaps):
    from whet.engines.native import decode_kernels

    model, tokenizer = small_model(sharp=4.0, width=WIDTH)
    plain, fast = Talks(prompts(), 4), Talks(prompts(), 4)
    turn_by_turn(model, tokenizer, plain, prompts(), count=4)
    in_slots(model.cuda(), tokenizer, fast, prompts(), count=4, slots=6, overlaps=overlaps, ops=decode_kernels)
    same(fast, plain)


def test_in_bf16_log_probs_of_later_turns_are_those_of_the_trainer():
    from whet.engines.native import decode_kernels

    model, tokenizer = small_model(sharp=2.0, width=WIDTH)
    model, talks = model.cuda(), Talks(prompts(), 4)
    in_slots(model, tokenizer, talks, prompts(), count=4, slots=6, ops=decode_kernels, dtype=torch.bfloat16)
    gaps = []
    for number, turns in talks.turns.items():
        if len(turns) < 2:
            continue
        text, (ids, said) = talks.texts[number], turns[-1]
        whole = torch.tensor([[*text, *ids]], device="cuda")
        with torch.no_grad(), autocast(whole.device):
            logits = model(whole, torch.tensor([whole.shape[1]], device="cuda")).float() / TEMPERATURE
        chosen = torch.tensor(ids, device="cuda")[:, None]
        found = logits.log_softmax(dim=-1)[0, len(text) - 1 : -1].gather(-1, chosen)[:, 0]
        gaps.append((found.cpu() - torch.tensor(said)).abs())
    assert len(gaps) > 5
    assert torch.cat(gaps).mean() < 0.02
