"""Online DPO is a row of the policy-gradient table: its only update follows the gradient of the DPO loss itself."""

import pytest
import torch
from torch import Tensor

from tests.contracts.additive import (
    GROUP,
    PROMPTS,
    VARIANTS,
    Scene,
    annotated,
    config_of,
    distance,
    flat,
    learner_of,
)
from whet.algorithms.preference.losses import dpo
from whet.config import OnlineConfig
from whet.models.protocol import CausalLM
from whet.records import Rollout
from whet.train.online.update import update

SILENT = 2  # the group of equal rewards
TEMPERATURE = config_of("online_dpo").rollout.temperature


def logprob(model: CausalLM, rollout: Rollout) -> Tensor:
    """log π of a whole completion as it was sampled, from the logits of a plain pass over this rollout alone."""
    tokens = torch.tensor([rollout.tokens])
    logits = model.head(model.hidden(tokens, torch.tensor([tokens.shape[1]])))[0, :-1]
    chosen = (logits / TEMPERATURE).log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    return chosen[torch.tensor(rollout.mask[1:])].sum()


def dpo_gradient(scene: Scene, reference: CausalLM, beta: float) -> Tensor:
    """Of the mean over groups, by autograd; the pairs are chosen here."""
    losses = []
    for group in scene.groups:
        ranked = sorted(group, key=lambda rollout: rollout.score.reward)
        pair = (ranked[-1], ranked[0])
        if pair[0].score.reward > pair[1].score.reward:
            ours, theirs = ([logprob(model, rollout) for rollout in pair] for model in (scene.policy, reference))
            losses.append(dpo(*ours, *(x.detach() for x in theirs), beta=beta))
    assert len(losses) == PROMPTS - 1
    found = torch.autograd.grad(torch.stack(losses).sum() / PROMPTS, list(scene.policy.parameters()))
    return torch.cat([piece.reshape(-1) for piece in found])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_one_step_follows_the_gradient_of_dpo(beta: float, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"preset": "online_dpo", "best_over_worst": {"beta": beta}}
    monkeypatch.setitem(VARIANTS, "online_dpo", chosen)
    scene = Scene("online_dpo")
    learner = learner_of(scene.policy, "online_dpo", padding_free=packed)
    assert learner.reference is not None
    scene.policy.zero_grad()
    batch, metrics = annotated(learner, scene.groups)
    update(learner, batch, step=1)
    wanted = dpo_gradient(scene, learner.reference.model, beta)
    assert float(wanted.norm()) > 1e-2
    assert distance([wanted], flat(learner)) < 1e-5
    assert metrics["kl"] > 0, "how far the policy is from the reference is logged without a KL in the loss"
    advantages = batch.advantages.view(PROMPTS, GROUP, -1)
    assert not advantages[SILENT].any()
    pushed = advantages.abs().amax(dim=2)
    # σ(−d) differs between pairs: with one half everywhere this would be REINFORCE on ±1
    assert len({round(float(size), 4) for size in pushed.amax(dim=1)}) == PROMPTS


def test_a_wrong_size_of_the_push_is_caught() -> None:
    scene = Scene("online_dpo")
    learner = learner_of(scene.policy, "online_dpo")
    assert learner.reference is not None
    wanted = dpo_gradient(scene, learner.reference.model, beta=0.2)
    scene.policy.zero_grad()
    update(learner, annotated(learner, scene.groups)[0], step=1)
    assert distance([wanted], flat(learner)) > 1e-2


@pytest.mark.parametrize(
    ("algorithm", "rollout", "update_settings", "why"),
    [
        ({}, {"group": 1}, {}, "advantage 'best_over_worst' compares the rollouts of a group"),
        ({}, {}, {"epochs": 2}, "surrogate 'reinforce', which has no ratio"),
        ({"kl": {"coefficient": 0.1}}, {}, {}, "advantage 'best_over_worst' compares with the reference itself"),
        ({}, {"top_p": 0.9}, {}, "policy and reference lose different tokens"),
    ],
)
def test_what_would_be_no_dpo_is_refused(algorithm, rollout, update_settings, why) -> None:
    written = config_of("online_dpo").model_dump()
    written["algorithm"] = {"preset": "online_dpo", **algorithm}
    written["rollout"] |= rollout
    written["update"] |= update_settings
    with pytest.raises(ValueError, match=why):
        OnlineConfig.model_validate(written)
