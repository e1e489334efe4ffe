"""The whole way from weights: both libraries load one checkpoint, and losses and parameter gradients agree."""

import pytest

pytest.importorskip("trl", reason="trl is not installed: `make test-parity` has a venv with it")

import torch
from trl import RLOOConfig, RLOOTrainer

from tests.parity.ours import MAX_TOKENS, row
from tests.parity.theirs import trl_trainer
from whet.algorithms.table import token_loss
from whet.batching import collate, global_weights
from whet.distributed.world import World
from whet.models.load import load_model
from whet.models.logprobs import token_logprobs
from whet.records import Sampling

pytestmark = pytest.mark.parity

PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]
COMPLETIONS = [[13, 14, 15], [16, 17, 18, 19, 2], [20], [21, 22]]
ADVANTAGES = torch.tensor([1.0, -0.5, 0.75, -1.25])
SAMPLING = Sampling(max_tokens=MAX_TOKENS, temperature=0.7)
WAYS = {  # our preset → TRL's settings for the same loss
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "rloo": {"trainer": RLOOTrainer, "config": RLOOConfig, "beta": 0.0},
}


def theirs_padded(rows, side):
    """Ids and mask as TRL lays them out."""
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if side == "left" else slice(len(tokens))
        ids[index, place], mask[index, place] = torch.tensor(tokens), 1
    return ids, mask


def their_logprobs(trainer, prompts, completions):
    """(B, T) over the completions, from TRL's own forward pass."""
    (prompt, prompt_mask), (ids, mask) = theirs_padded(prompts, "left"), theirs_padded(completions, "right")
    inputs = torch.cat([prompt, ids], 1), torch.cat([prompt_mask, mask], 1)
    logprobs, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, *inputs, ids.shape[1], compute_entropy=True
    )
    return logprobs[mask.bool()].detach(), entropies[mask.bool()].detach()


def our_sequences():
    pairs = list(zip(PROMPTS, COMPLETIONS, strict=True))
    masks = [[False] * len(p) + [True] * len(c) for p, c in pairs]
    return collate([p + c for p, c in pairs], masks, torch.device("cpu"))


def our_logprobs(model, sequences):
    return token_logprobs(model, sequences.tokens, sequences.lengths, sequences.mask, SAMPLING)


def old_logprobs(model, sequences, drift):
    """An older policy, whose ratios are on both sides of the clips."""
    logprobs = our_logprobs(model, sequences)[0].detach()
    return logprobs + torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(3)) * drift * sequences.mask


def their_loss(trainer, old):
    (prompt, prompt_mask), (ids, mask) = theirs_padded(PROMPTS, "left"), theirs_padded(COMPLETIONS, "right")
    laid_out = torch.zeros(mask.shape).masked_scatter(mask.bool(), old)
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": prompt_mask,
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": ADVANTAGES,
        "old_per_token_logps": laid_out,
        "old_logps": laid_out.sum(1),
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in trainer.model.named_parameters()}


def our_loss(model, preset, old, sequences):
    logprobs, _ = our_logprobs(model, sequences)
    mask = sequences.mask
    supply = {
        "logprobs": logprobs,
        "logprobs_old": old,
        "advantages": ADVANTAGES[:, None] * mask,
        "mask": mask,
        "correction": mask.float(),
    }
    algorithm = row(preset)
    weights = global_weights(algorithm.weighting, mask, World.alone(), max_tokens=MAX_TOKENS)
    loss = (token_loss(algorithm, supply) * weights).sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("case", ["llama-untied", "qwen3"])
@pytest.mark.parametrize("preset", WAYS)
def test_parameter_gradients(checkpoints, case, preset):
    checkpoint = checkpoints(case)
    model, sequences = load_model(checkpoint), our_sequences()
    old = old_logprobs(model, sequences, drift=0.0 if preset == "rloo" else 0.2)
    trainer = trl_trainer(checkpoint, temperature=SAMPLING.temperature, **WAYS[preset])
    theirs, their_gradients = their_loss(trainer, old[sequences.mask])
    ours, our_gradients = our_loss(model, preset, old, sequences)
    if preset == "rloo":  # equal gradients on policy, another loss: see test_different_losses
        torch.testing.assert_close(theirs, -ADVANTAGES.mean(), rtol=1e-5, atol=1e-6)
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert our_gradients.keys() == their_gradients.keys()
    for name, gradient in their_gradients.items():
        scale = float(gradient.abs().max())
        assert scale > 0
        torch.testing.assert_close(our_gradients[name], gradient, rtol=0, atol=1e-5 * scale, msg=name)


def test_logprobs_and_entropies_at_a_temperature(checkpoints):
    """Prompts of unequal length: TRL pads them on the left, we pad nothing before a sequence."""
    checkpoint, sequences = checkpoints("llama-untied"), our_sequences()
    trainer = trl_trainer(checkpoint, temperature=SAMPLING.temperature)
    theirs = their_logprobs(trainer, PROMPTS, COMPLETIONS)
    ours = our_logprobs(load_model(checkpoint), sequences)
    for their, our in zip(theirs, ours, strict=True):
        torch.testing.assert_close(our[sequences.mask].detach(), their, rtol=1e-5, atol=1e-5)


def test_learned_positions_move_with_the_padding_in_trl(checkpoints):
    """GPT-2: TRL hands over no positions, so a prompt that is padded on the left is read at shifted ones.

    One sequence at a time nothing is padded, and TRL agrees with us; in a batch only the longest prompt does.
    """
    checkpoint, sequences = checkpoints("gpt2"), our_sequences()
    trainer = trl_trainer(checkpoint, temperature=SAMPLING.temperature)
    trainer.model.eval()  # GPT-2 has dropout, and training with it is another difference
    ours = our_logprobs(load_model(checkpoint), sequences)[0].detach()
    alone = [their_logprobs(trainer, [p], [c])[0] for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    torch.testing.assert_close(ours[sequences.mask], torch.cat(alone), rtol=1e-5, atol=1e-5)
    batched = their_logprobs(trainer, PROMPTS, COMPLETIONS)[0].split([len(c) for c in COMPLETIONS])
    wrong = [float((b - a).abs().max()) for b, a in zip(batched, alone, strict=True)]
    assert wrong[0] < 1e-5
    assert min(wrong[1:]) > 0.1
