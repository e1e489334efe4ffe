"""Updates with a critic, with an entropy bonus, and updates that stop when the policy has moved far."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from tests.contracts import additive
from tests.small import small_model
from tests.train.scenes import FLAT, Table, annotated, config_of, groups_of, learner_of, prepared
from whet.batching import collate
from whet.config import OnlineConfig
from whet.models.foreign import ForeignLM
from whet.records import Batch
from whet.train.online import update as update_module
from whet.train.online.critic import Critic, state_width
from whet.train.online.learner import Learner
from whet.train.online.update import update
from whet.train.optimizers.optimizer import make_optimizer

LR = 1e-2
PPO: dict[str, Any] = {"preset": "ppo"}
BEFORE = [before for tokens in FLAT for before in tokens[:-1]]  # the token before each of the seven choices


def ppo(*, critic: dict[str, Any] | None = None, **settings: Any) -> OnlineConfig:
    optimizer = {"lr": LR, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0.0}
    return config_of(PPO, sections={"critic": critic or {}, "optimizer": optimizer}, **settings)


def alive(policy: Any, config: OnlineConfig) -> Learner:
    """A learner that really moves."""
    return learner_of(policy, config, optimizer=make_optimizer(policy, config.optimizer))


def weights(module: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def decoder_scene(model: str, warmup_steps: int) -> tuple[Learner, Batch]:
    """PPO on a real decoder, whose trunk has weights that a shared critic could pull at."""
    scene = additive.Scene("ppo, shared" if model == "shared" else "ppo")
    learner = additive.learner_of(scene.policy, scene.name)
    config = ppo(critic={"model": model, "warmup_steps": warmup_steps}, epochs=2, mismatch_limit=10.0)
    config = config.model_copy(update={"rollout": learner.config.rollout})
    learner = alive(scene.policy, config)
    return learner, additive.annotated(learner, scene.groups)[0]


@pytest.mark.parametrize("model", ["separate", "shared"])
def test_while_the_critic_warms_up_the_policy_does_not_move_a_bit(model: str) -> None:
    learner, batch = decoder_scene(model, warmup_steps=2)
    assert learner.critic is not None
    before = weights(learner.policy)
    for step in (1, 2):
        critic = weights(learner.critic)
        said = update(learner, batch, step=step)
        assert same(before, weights(learner.policy))
        assert not same(critic, weights(learner.critic))
        assert "grad_norm" not in said
        assert said["critic/grad_norm"] > 0
    said = update(learner, batch, step=3)
    assert not same(before, weights(learner.policy))
    assert said["grad_norm"] > 0


@pytest.mark.parametrize("weighting", ["sequence_mean", "sequence_sum", "budget_mean"])
def test_the_bonus_is_the_mean_entropy_of_a_token_however_the_policy_is_weighed(weighting: str) -> None:
    """The seven choices of the scene count alike, though their sequences are of one to three tokens."""
    policy = Table()
    algorithm = {"preset": "grpo", "weighting": weighting, "entropy": {"coefficient": 0.2}}
    config = config_of(algorithm)
    batch, _ = prepared(policy, config)
    batch.advantages.zero_()
    update(learner_of(policy, config), batch, step=1)
    logits = policy.logits.detach().double().requires_grad_()
    spread = torch.distributions.Categorical(logits=logits[BEFORE]).entropy().mean()
    (slope,) = torch.autograd.grad(spread, logits)
    assert policy.logits.grad is not None
    assert torch.allclose(policy.logits.grad.double(), -0.2 * slope, atol=1e-6)


def test_values_after_the_cut_do_not_depend_on_what_is_read_together() -> None:
    """Rollouts of several prompts, some of which were cut off: in passes of any size, with prompts shared or not."""
    scene = additive.Scene("ppo, bootstrap")
    groups = [[replace(r, finish="length" if (g + i) % 2 else "stop") for i, r in enumerate(group)]
              for g, group in enumerate(scene.groups)]  # fmt: skip
    found = []
    for settings in (
        {"padding_free": False},
        {"padding_free": True},
        {"padding_free": True, "micro_batch_tokens": 24},
        {"micro_batch_tokens": 1},
    ):
        batch, _ = additive.annotated(additive.learner_of(scene.policy, scene.name, **settings), groups)
        assert batch.targets is not None
        found.append(batch.targets)
    assert all(torch.allclose(found[0], other, atol=1e-4) for other in found[1:])


@pytest.mark.parametrize("family", ["gpt2", "llama", "transformers"])
@pytest.mark.parametrize("model", ["separate", "shared"])
def test_the_value_after_rollouts_of_which_one_fills_the_context(model: str, family: str) -> None:
    """It is that of the last state, read without one token more than the model can hold."""
    policy: Any
    if family == "transformers":
        shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 6, "vocab_size": 8}
        policy = ForeignLM(GPT2LMHeadModel(GPT2Config(**shape)).eval())
    else:
        policy, _ = small_model(family, context=6, layers=1)
    critic = Critic(policy, ppo(critic={"model": model}))
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, 32))
    masks = [[False, False, True, True, True, True], [False, False, True, True]]
    s = collate([[5, 3, 1, 2, 4, 6], [5, 3, 7, 1]], masks, torch.device("cpu"))
    with torch.no_grad():
        found = critic.values_after(policy, s, torch.tensor([0, 0]))
        states = policy.hidden(s.tokens, s.lengths)
        assert found.tolist() == pytest.approx(critic.head(states[[0, 1], [5, 3]]).tolist(), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("model", ["separate", "shared"])
def test_values_by_a_pass_of_their_own_are_those_of_the_trunk_and_pull_at_no_policy(model: str) -> None:
    """A separate trunk has moved since it was copied; a shared one is the policy's, to be read but not to be taught."""
    policy, _ = small_model(layers=1)
    critic = Critic(policy, ppo(critic={"model": model}))
    with torch.no_grad():
        critic.head.weight.copy_(torch.linspace(-1, 1, 32))
    trunk = policy
    if critic.trunk is not None:
        critic.trunk.load_state_dict(additive.shaken(policy).state_dict())
        trunk = critic.trunk
    s = collate([[5, 3, 1, 2, 4]], [[False, False, True, True, True]], torch.device("cpu"))
    found = critic.values(policy, s, None)
    with torch.no_grad():
        wanted = critic.head(trunk.hidden(s.tokens, s.lengths))[0, 1:4]
    assert found[0].tolist() == pytest.approx([0, 0, *wanted.tolist()], rel=1e-4, abs=1e-5)
    found.sum().backward()
    assert critic.head.weight.grad is not None
    assert all(parameter.grad is None for parameter in policy.parameters())
    pulled = [] if critic.trunk is None else [p.grad for p in critic.trunk.parameters() if p.grad is not None]
    assert bool(pulled) == (model == "separate")


def test_the_width_of_a_state_is_asked_with_one_token_and_without_a_graph() -> None:
    class Strict(Table):
        def hidden(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            assert tokens.dtype == lengths.dtype == torch.int64
            assert len(tokens) == len(lengths) == 1 <= int(lengths) <= tokens.shape[1]
            assert not torch.is_grad_enabled()
            return super().hidden(tokens, lengths)

    assert state_width(Strict()) == 4  # type: ignore[arg-type]


def test_a_shared_trunk_learns_from_the_critic_too() -> None:
    """Without advantages the policy has no reason to move but its critic; a separate one does not reach it."""
    for model, moves in (("shared", True), ("separate", False)):
        learner, batch = decoder_scene(model, warmup_steps=0)
        assert learner.critic is not None
        with torch.no_grad():
            learner.critic.head.weight.fill_(0.1)
        batch.advantages.zero_()
        said = update(learner, batch, step=1)
        assert (said["grad_norm"] > 1e-6) == moves


def test_a_separate_critic_trains_its_trunk_but_not_a_head_that_predicts_no_tokens() -> None:
    learner, _ = decoder_scene("separate", warmup_steps=0)
    assert learner.critic is not None
    trained = {name for name, parameter in learner.critic.named_parameters() if parameter.requires_grad}
    assert {"head.weight", "head.bias", "trunk.model.embed_tokens.weight"} <= trained
    assert "trunk.lm_head.weight" not in trained
    assert state_width(learner.policy) == 32 == len(learner.critic.head.weight)


@pytest.mark.parametrize(("rate", "expected"), [(None, LR), (0.05, 0.05)])
def test_the_critic_has_its_own_rate_on_the_policys_schedule(rate: float | None, expected: float) -> None:
    """The first step of Adam has the size of the rate."""
    policy = Table()
    learner = alive(policy, ppo(critic={"lr": rate, "clip": 0.0}))
    batch, _, _ = annotated(learner, groups_of(policy))
    assert learner.critic is not None
    bias, logits = float(learner.critic.head.bias.detach()), policy.logits.detach().clone()
    update(learner, batch, step=1)
    assert abs(float(learner.critic.head.bias.detach()) - bias) == pytest.approx(expected, rel=1e-3)
    assert float((policy.logits.detach() - logits).abs().max()) == pytest.approx(LR, rel=1e-3)
    linear = config_of(PPO, sections={"critic": {"lr": 0.05}, "optimizer": {"lr": LR, "schedule": "linear"}})
    critic = Critic(policy, linear)
    critic.set_rate(31)  # of 60 steps after 3 of warm-up
    assert critic.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * (1 - 27 / 57))
    follower = learner_of(policy, linear)
    assert follower.critic is not None
    update(follower, batch, step=31)
    assert follower.critic.optimizer.param_groups[0]["lr"] == critic.optimizer.param_groups[0]["lr"]


def test_the_gradient_and_the_loss_of_the_critic_by_hand() -> None:
    """½·coefficient·mean (V − G)², V = w[token before] + b: its gradient is the mean of V − G where it applies."""
    policy, config = Table(), ppo(critic={"clip": 0.0, "coefficient": 0.3})
    learner = learner_of(policy, config)
    assert learner.critic is not None
    batch, _, _ = annotated(learner, groups_of(policy))
    assert batch.targets is not None
    targets = batch.targets[batch.sequences.mask].tolist()
    learner.critic.settings = learner.critic.settings.model_copy(update={"lr": 0.0})
    said = update(learner, batch, step=1)
    assert said["critic/loss"] == pytest.approx(sum(t * t for t in targets) / 2 / 7, rel=1e-5)  # every V is still 0
    grad = [-0.3 * sum(t for t, b in zip(targets, BEFORE, strict=True) if b == token) / 7 for token in range(4)]
    assert learner.critic.head.weight.grad is not None
    assert learner.critic.head.bias.grad is not None
    assert learner.critic.head.weight.grad.tolist() == pytest.approx(grad, abs=1e-6)
    assert float(learner.critic.head.bias.grad) == pytest.approx(-0.3 * sum(targets) / 7, rel=1e-5)


def test_values_that_left_the_clip_are_counted() -> None:
    """Tokens 0 and 1 are now worth 0.3 more than at the start of the step, 2 and 3 only 0.1 more."""
    policy = Table()
    for clip, expected in ((0.2, 5 / 7), (0.0, 0.0)):  # 5 of the 7 choices follow a 0 or a 1; without a clip, none
        learner = learner_of(policy, ppo(critic={"clip": clip}))
        assert learner.critic is not None
        batch, _, _ = annotated(learner, groups_of(policy))
        with torch.no_grad():
            learner.critic.head.weight.add_(torch.tensor([0.3, 0.3, 0.1, 0.1]))
        assert update(learner, batch, step=1)["critic/clip_fraction"] == pytest.approx(expected)


def test_the_loss_of_values_that_left_the_clip_by_hand() -> None:
    """Token 0 is worth ½ less than at the start of the step, beyond the clip; token 1 ¼ more, which is at the clip."""
    policy = Table()
    learner = learner_of(policy, ppo(critic={"clip": 0.25}))
    assert learner.critic is not None
    before, change = torch.tensor([0.5, -0.5, 0.25, 1.0]), torch.tensor([-0.5, 0.25, 0.125, 0.0])
    with torch.no_grad():
        learner.critic.head.weight.copy_(before)
    batch, _, _ = annotated(learner, groups_of(policy))
    assert batch.targets is not None
    with torch.no_grad():
        learner.critic.head.weight.add_(change)
    said = update(learner, batch, step=1)
    losses = []
    for target, token in zip(batch.targets[batch.sequences.mask].tolist(), BEFORE, strict=True):
        old, new = float(before[token]), float(before[token] + change[token])
        held = min(max(new, old - 0.25), old + 0.25)
        losses.append(max((new - target) ** 2, (held - target) ** 2) / 2)
    assert said["critic/loss"] == pytest.approx(sum(losses) / 7, rel=1e-5)
    assert said["critic/clip_fraction"] == pytest.approx(2 / 7)


def test_while_the_critic_warms_up_the_loss_is_the_critics_and_the_policy_has_no_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = Table()
    critic = {"coefficient": 0.3, "warmup_steps": 1, "clip": 0.0}
    learner = learner_of(policy, config_of({**PPO, "scaling": "unscaled"}, sections={"critic": critic}))
    batch, _, _ = annotated(learner, groups_of(policy))
    graphs = []
    original = update_module.read_tokens

    def noted(*given: Any, **more: Any) -> Any:
        reading = original(*given, **more)
        graphs.append(reading.logprobs.requires_grad)
        return reading

    monkeypatch.setattr(update_module, "read_tokens", noted)
    said = update(learner, batch, step=1)
    assert said["loss"] == pytest.approx(0.3 * said["critic/loss"], rel=1e-5)
    later = update(learner, batch, step=2)
    assert later["loss"] != pytest.approx(0.3 * later["critic/loss"], rel=0.1)
    assert graphs == [False, True]


def test_a_policy_that_is_too_far_takes_no_step() -> None:
    policy = Table()
    learner = alive(policy, ppo(target_kl=0.01, epochs=2))
    assert learner.critic is not None
    batch, _, _ = annotated(learner, groups_of(policy))
    with torch.no_grad():
        policy.logits.mul_(1.5)
    before = [*weights(policy), *weights(learner.critic)]
    said = update(learner, batch, step=1)
    assert said["approx_kl"] > 0.01
    assert said["updates"] == said["grad_norm"] == said["critic/grad_norm"] == 0
    assert same(before, [*weights(policy), *weights(learner.critic)])
    assert not learner.optimizer.state


def test_updates_end_where_the_limit_is_passed() -> None:
    """The first update of a step is always near; the rate is so high that the second is not."""
    outcomes = {}
    for limit, epochs in ((None, 1), (1e-3, 4), (None, 4), (50.0, 4)):
        policy = Table()
        config = config_of({"preset": "grpo"}, target_kl=limit, epochs=epochs)
        batch, _ = prepared(policy, config)
        learner = learner_of(policy, config, optimizer=torch.optim.SGD(policy.parameters(), lr=3.0))
        outcomes[limit, epochs] = (update(learner, batch, step=1)["updates"], policy.logits.detach().clone())
    assert [updates for updates, _ in outcomes.values()] == [1, 1, 4, 4]
    one, stopped, four, near = (moved for _, moved in outcomes.values())
    assert torch.equal(one, stopped)
    assert torch.equal(four, near)
    assert not torch.equal(one, four)


def entropy_of(logits: Tensor) -> float:
    """The mean entropy of the seven choices, in double precision."""
    p = logits.double().softmax(-1)
    return float(-(p * p.log()).sum(-1)[BEFORE].mean())


def test_the_bonus_pulls_towards_entropy() -> None:
    """Its gradient is −coefficient · dH/dθ, by central differences; a step along it raises the entropy."""
    policy = Table()
    config = config_of({"preset": "dapo", "dynamic_sampling": "keep_all", "entropy": {"coefficient": 0.2}})
    batch, _ = prepared(policy, config)
    batch.advantages.zero_()
    before = policy.logits.detach().clone()
    update(learner_of(policy, config), batch, step=1)
    assert policy.logits.grad is not None
    for place in [(0, 1), (1, 2), (2, 0), (3, 3)]:
        up, down = (before.double().clone() for _ in range(2))
        up[place] += 1e-4
        down[place] -= 1e-4
        slope = (entropy_of(up) - entropy_of(down)) / 2e-4
        assert float(policy.logits.grad[place]) == pytest.approx(-0.2 * slope, abs=1e-6)
    update(learner_of(policy, config, optimizer=torch.optim.SGD(policy.parameters(), lr=1.0)), batch, step=1)
    assert entropy_of(policy.logits.detach()) > entropy_of(before) + 1e-3
    without = config_of({"preset": "dapo", "dynamic_sampling": "keep_all"})
    batch, _ = prepared(policy, without)
    batch.advantages.zero_()
    update(learner_of(policy, without), batch, step=1)
    assert not policy.logits.grad.any()


def test_a_critic_survives_the_disk_bit_for_bit() -> None:
    policy, config = Table(), ppo()
    learner = alive(policy, config)
    batch, _, _ = annotated(learner, groups_of(policy))
    update(learner, batch, step=1)
    assert learner.critic is not None
    again = Critic(Table(seed=9), config)
    assert not any(tensor.requires_grad for tensor in learner.critic.tensors().values())
    assert {"weight/head.weight", "exp_avg/head.weight"} <= learner.critic.tensors().keys()  # as checkpoints name them
    again.restore(learner.critic.numbers(), copy.deepcopy(learner.critic.tensors()))
    for critic in (learner.critic, again):
        critic.set_rate(2)
        critic.zero_grad()
        (critic.head.weight.sum() * math.pi + critic.head.bias).backward()
        critic.optimizer.step()
    assert same(weights(learner.critic), weights(again))
