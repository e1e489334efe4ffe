"""Every kind of loss that the table can be asked for, and one gradient of each: what the additivity tests compare."""

import copy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from tests.contracts.command import online
from tests.small import small_model
from whet.algorithms.table import ALGORITHMS, CORRECTIONS
from whet.config import OnlineConfig
from whet.distributed.world import World
from whet.engines.native.native_engine import NativeEngine
from whet.records import Batch, Example, Score, Sequences
from whet.rollout import Group, grade, sample, tokenize_prompts
from whet.tasks.grading.graders import InOneCall
from whet.train.online.annotate import annotate
from whet.train.online.critic import Critic
from whet.train.online.learner import ControllerState, Learner
from whet.train.online.reference import Reference
from whet.train.online.sampling import SampledGroups
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import build_algorithm
from whet.train.setup.token_grader import TokenGrader

ALONE = World.alone()
PROMPTS, GROUP = 5, 3
KL_PAID = {"coefficient": 0.3, "estimator": "k1", "place": "reward"}
SPREAD = {  # so that some are dropped and some are not
    "token_mask": {"low": 0.85, "high": 1.2},
    "sequence_mask": {"low": 0.7, "high": 1.4},
    "geometric_mask": {"low": 0.9, "high": 1.1},
}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"preset": name} for name in ALGORITHMS},
    **{
        f"grpo, {estimator} in the loss": {"preset": "grpo", "kl": {"coefficient": 0.3, "estimator": estimator}}
        for estimator in ("k2", "k3", "unbiased")
    },
    "rloo, kl in the reward": {"preset": "rloo", "kl": KL_PAID},
    "reinforce_pp, kl in the reward": {"preset": "reinforce_pp", "kl": KL_PAID, "to_go": {"gamma": 0.9}},
    "ppo, kl in the reward": {"preset": "ppo", "kl": KL_PAID},
    "ppo, shared": {"preset": "ppo"},
    "grpo, entropy": {"preset": "grpo", "entropy": {"coefficient": 0.1}},
    "grpo, entropy floor": {"preset": "grpo", "entropy": {"floor": 3.0, "floor_coefficient": 0.2}},
    **{
        f"grpo, {name}": {"preset": "grpo", "importance_correction": name}
        | ({name: SPREAD[name]} if name in SPREAD else {})
        for name in CORRECTIONS
        if name != "uncorrected"
    },
    "gspo, sequence_truncate": {"preset": "gspo", "importance_correction": "sequence_truncate"},
    "center, whiten": {"preset": "dr_grpo", "scaling": "whiten"},
    "center, batch_deviation": {"preset": "dr_grpo", "scaling": "batch_deviation"},
    "token mean": {"preset": "grpo", "weighting": "token_mean"},
    "truncated left out": {"preset": "grpo", "weighting": "token_mean"},
    "rloo, kl in the reward, truncated left out": {"preset": "rloo", "kl": KL_PAID},
    "ppo, bootstrap": {"preset": "ppo"},
    "dual clip": {"preset": "grpo", "surrogate": "dual_clip"},
    "over_average": {"preset": "reinforce", "advantage": "over_average"},
    "ppo, dense": {"preset": "ppo", "kl": KL_PAID},
    "to_go_leave_one_out, dense": {"preset": "grpo", "advantage": "to_go_leave_one_out", "scaling": "whiten"},
    "to_go_leave_one_out, dense, truncated left out": {"preset": "dr_grpo", "advantage": "to_go_leave_one_out"},
}
DENSE = {"tokens": {"mode": "plusminus", "partial_logprob": 0.1}}


def config_of(name: str, micro_batch_tokens: int = 10**6, *, padding_free: bool = False) -> OnlineConfig:
    written = online("unused", algorithm=VARIANTS[name])
    written["rollout"] |= {"prompts": PROMPTS, "group": GROUP, "max_tokens": 9, "mask_truncated": "truncated" in name}
    written["eval"] |= {"max_tokens": 9}
    written["update"] = {
        "micro_batch_tokens": micro_batch_tokens,
        "padding_free": padding_free,
        "max_grad_norm": 1e9,
        "mismatch_limit": 10.0,
    }
    written["critic"] = {"model": "shared" if "shared" in name else "separate", "clip": 0.1}
    written["critic"]["bootstrap_truncated"] = "bootstrap" in name
    written["reward"] = DENSE if "dense" in name else {}
    return OnlineConfig.model_validate(written)


class Marks(InOneCall):
    """Rewards that differ between the rollouts of a group, but for the third, whose are equal."""

    def grade(self, examples: Any, texts: Any, sampled: Any = None) -> list[Score]:
        size = len(texts) // PROMPTS
        return [Score(reward=0.5 if i // size == 2 else (7 * i % 11) / 10, parts={}) for i in range(len(texts))]

    def close(self) -> None:
        """Owns nothing."""


def rollouts(policy: Any, tokenizer: Any, config: OnlineConfig) -> list[Group]:
    """Groups whose log-probs are those of a sampler that is not quite the policy."""
    words = ["ab>", "cde>", "f>", "12+34=", "gh>"]
    examples = [Example(id=word, prompt=word, answer=3 * word) for word in words]
    prompts = tokenize_prompts(examples, tokenizer, stream=(1,))
    greedy = build_algorithm(config.algorithm).needs_greedy
    samples = sample(NativeEngine(policy, tokenizer), prompts, config.rollout.sampling, group=GROUP, greedy=greedy)
    tokens = config.reward.tokens
    grader = Marks() if tokens is None else TokenGrader(tokenizer=tokenizer, settings=tokens, horizon=9)
    groups = grade(grader, examples, samples, version=0)
    lengths = {sum(rollout.mask) for group in groups for rollout in group}
    assert len(lengths) >= 3  # equal lengths would hide a wrong weight
    noise = torch.randn(10_000, generator=torch.Generator().manual_seed(4)).tolist()
    return [
        [
            replace(
                r, logprobs=tuple(x + 0.2 * noise.pop() if m else x for x, m in zip(r.logprobs, r.mask, strict=True))
            )
            for r in group
        ]
        for group in groups
    ]


def learner_of(policy: Any, name: str, world: World = ALONE, **settings: Any) -> Learner:
    """Nothing moves in it: the gradients of the real `update` stay to be looked at."""
    config = config_of(name, **settings)
    algorithm = build_algorithm(config.algorithm)
    critic = Critic(policy, config) if algorithm.needs_values else None
    if critic is not None:
        critic.settings = critic.settings.model_copy(update={"lr": 0.0})
        with torch.no_grad():
            generator = torch.Generator().manual_seed(6)
            critic.head.weight.copy_(torch.randn(critic.head.weight.shape, generator=generator) * 0.3)
    return Learner(
        policy=policy,
        optimizer=torch.optim.SGD(policy.parameters(), lr=0.0),
        algorithm=algorithm,
        reference=Reference(small_model(seed=1, sharp=6.0, layers=1)[0]) if algorithm.needs_reference else None,
        critic=critic,
        config=config,
        world=world,
    )


def annotated(learner: Learner, groups: list[Group]) -> tuple[Batch, dict[str, float]]:
    """The batch of this rank's share of the groups."""
    sampled_groups = SampledGroups(learner.config.rollout, learner.algorithm, learner.world)
    sampled_groups.add(learner.world.shard(groups))
    memory = ControllerState(kl_coefficient=learner.config.algorithm.kl.coefficient, history=[0.2, 0.6])
    batch, _, metrics = annotate(learner, sampled_groups, memory.step_settings(learner.config, tokens=0))
    return batch, metrics


class Scene:
    """Rollouts of a policy, and the policy after it has moved away from them, so that ratios differ from 1."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.policy, self.tokenizer = small_model(sharp=6.0, layers=1)
        self.groups = rollouts(self.policy, self.tokenizer, config_of(name))
        self.moved = shaken(self.policy)

    def batch(self, world: World = ALONE, **settings: Any) -> Batch:
        return annotated(learner_of(self.policy, self.name, world, **settings), self.groups)[0]

    def gradient(self, batch: Batch, world: World = ALONE, **settings: Any) -> list[Tensor]:
        """What one update of policy and critic would follow."""
        policy = copy.deepcopy(self.moved) if world.size > 1 else self.moved
        learner = learner_of(policy, self.name, world, **settings)
        if learner.critic is not None and learner.critic.trunk is not None:
            learner.critic.trunk.load_state_dict(shaken(self.policy, seed=8).state_dict())
        update(learner, batch, step=1)
        return flat(learner)


def shaken(policy: Any, seed: int = 0) -> Any:
    moved, generator = copy.deepcopy(policy), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return moved


def flat(learner: Learner) -> list[Tensor]:
    """The gradient of the policy and, where there is one, that of the critic."""
    pieces = [torch.cat([p.grad.reshape(-1).clone() for p in learner.policy.parameters()])]
    if learner.critic is not None:
        grads = [p.grad for p in learner.critic.parameters()]
        pieces.append(torch.cat([grad.reshape(-1).clone() for grad in grads if grad is not None]))
    return pieces


def distance(one: list[Tensor], two: list[Tensor]) -> float:
    """How far apart, relative to the length of the first: the worse of policy and critic."""
    return max(float((a - b).norm() / a.norm()) for a, b in zip(one, two, strict=True))


def arrays(batch: Batch) -> dict[str, Tensor]:
    """The (B, T) tensors of a batch."""
    found = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor) and value.dim() == 2}


def widened(batch: Batch, columns: int) -> Batch:
    """The same batch with more padding, and junk in it."""

    def more(tensor: Tensor, junk: float) -> Tensor:
        return torch.cat([tensor, torch.full((len(tensor), columns), junk).to(tensor.dtype)], dim=1)

    s = batch.sequences
    sequences = Sequences(tokens=more(s.tokens, 7), mask=more(s.mask, 0), lengths=s.lengths)
    return replace(batch, sequences=sequences, **{name: more(array, 3) for name, array in arrays(batch).items()})


def take_untrimmed(batch: Batch, rows: Tensor) -> Batch:
    """A `take_batch` that keeps the padding that no row needs."""
    s = batch.sequences
    sequences = Sequences(tokens=s.tokens[rows], mask=s.mask[rows], lengths=s.lengths[rows])
    few = {name: array[rows] for name, array in arrays(batch).items()}
    return replace(batch, sequences=sequences, prompts=batch.prompts[rows], **few)
