"""Where the log-probs at the start of a step come from: every source gives the same update, and none goes unchecked."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.contracts.additive import Scene as Noisy
from tests.contracts.additive import annotated, distance, flat, learner_of, shaken
from tests.contracts.additive import config_of as config_named
from tests.train.scenes import config_of
from whet.algorithms.table import ALGORITHMS
from whet.config import OnlineConfig
from whet.models.logprobs import read_tokens
from whet.records import Batch
from whet.rollout import Group
from whet.train.online import old_logprobs as frozen_module
from whet.train.online import update as update_module
from whet.train.online.update import update
from whet.train.setup.chosen_algorithm import Old, build_algorithm, old_source

MISMATCH = {"mismatch/mean", "mismatch/max", "mismatch/kl"}
ONE_UPDATE = [  # names of tests.contracts.additive.VARIANTS: what "own" is for
    *(name for name, row in ALGORITHMS.items() if not (row.needs_values or row.needs_reference)),
    "grpo, entropy",
    "token mean",
    "truncated left out",
]
COMPARED = [
    *("ppo", "ppo, kl in the reward", "grpo, k3 in the loss", "rloo, kl in the reward", "grpo, sequence_mask"),
    "online_dpo",
]


def exact_groups(scene: Noisy) -> list[Group]:
    """The scene's rollouts with the log-probs that its policy gives them: a sampler that is the policy."""
    groups = []
    for group in scene.groups:
        exact = []
        for rollout in group:
            tokens, mask = torch.tensor([rollout.tokens]), torch.tensor([rollout.mask])
            sampling = config_named(scene.name).rollout.sampling
            with torch.no_grad():
                reading = read_tokens(scene.policy, tokens, torch.tensor([tokens.shape[1]]), mask, sampling)
            exact.append(replace(rollout, logprobs=tuple(reading.logprobs[0].tolist())))
        groups.append(exact)
    return groups


def followed(scene: Noisy, groups: list[Group], old: Old) -> tuple[list[Tensor], dict[str, float], Batch]:
    """The gradient of one update, everything that is logged, and the batch."""
    learner = replace(learner_of(scene.policy, scene.name, padding_free=True), old=old)
    if learner.critic is not None and learner.critic.trunk is not None:
        learner.critic.trunk.load_state_dict(shaken(scene.policy, seed=8).state_dict())
    scene.policy.zero_grad()
    batch, metrics = annotated(learner, groups)
    both = metrics | update(learner, batch, step=1)
    return flat(learner), both, batch


@pytest.mark.parametrize(
    ("name", "old"), [*((name, "own") for name in ONE_UPDATE), *((name, "sampled") for name in ONE_UPDATE + COMPARED)]
)
def test_every_source_gives_the_same_update(name: str, old: Old) -> None:
    scene = Noisy(name)
    groups = exact_groups(scene)
    wanted, logged, _ = followed(scene, groups, "read")
    found, also, batch = followed(scene, groups, old)
    assert float(wanted[0].norm()) > 1e-3
    assert distance(wanted, found) < 1e-5
    assert also.keys() == logged.keys()
    assert also.keys() >= MISMATCH
    assert also["mismatch/max"] < 1e-5
    for key, value in logged.items():
        assert also[key] == pytest.approx(value, rel=1e-4, abs=1e-5), key
    assert (old == "own") is (batch.logprobs_old is None)


def test_a_source_that_is_not_the_policy_changes_the_update() -> None:
    """The comparison above can fail: with the noisy sampler's log-probs the ratios are not 1."""
    scene = Noisy("grpo")
    wanted, _, _ = followed(scene, scene.groups, "read")
    found, logged, _ = followed(scene, scene.groups, "sampled")
    assert distance(wanted, found) > 1e-2
    assert logged["mismatch/mean"] > 0.1


def test_no_second_pass_where_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: dict[str, int] = {"annotate": 0, "update": 0}

    def counted(where: str, *given: Any, **more: Any) -> Any:
        passes[where] += 1
        return read_tokens(*given, **more)

    monkeypatch.setattr(frozen_module, "read_tokens", partial(counted, "annotate"))
    monkeypatch.setattr(update_module, "read_tokens", partial(counted, "update"))
    for old, count in (("own", 0), ("sampled", 0), ("read", 1)):
        passes.update(annotate=0, update=0)
        followed(Noisy("grpo"), exact_groups(Noisy("grpo")), old)  # type: ignore[arg-type]
        assert passes == {"annotate": count, "update": 1}
    passes.update(annotate=0)
    followed(Noisy("grpo, k3 in the loss"), exact_groups(Noisy("grpo, k3 in the loss")), "sampled")
    assert passes["annotate"] == 1  # of the reference


def rare(rewards: Tensor, logprobs_old: Tensor) -> Tensor:
    """An advantage that asks for old log-probs, but for no reference."""
    return rewards * -logprobs_old.sum(dim=1).view(rewards.shape)


PLAIN: dict[str, Any] = {"preset": "grpo"}
KL = {**PLAIN, "kl": {"coefficient": 0.1}}
OWN = {**PLAIN, "advantage": f"{__name__}:rare"}
FLOOR = {**PLAIN, "entropy": {"floor": 1.0, "floor_coefficient": 0.5}}


@pytest.mark.parametrize(
    ("algorithm", "settings", "not_exact", "exact"),
    [
        (PLAIN, {}, "own", "sampled"),
        (PLAIN, {"epochs": 2}, "read", "sampled"),
        (PLAIN, {"minibatches": 2}, "read", "sampled"),
        (PLAIN, {"target_kl": 0.1}, "read", "sampled"),
        (PLAIN, {"mismatch_limit": 9.0, "padding_free": False, "micro_batch_tokens": 7}, "own", "sampled"),
        (KL, {}, "read", "sampled"),
        ({**PLAIN, "importance_correction": "token_mask"}, {}, "read", "sampled"),
        ({**PLAIN, "importance_correction": "uncorrected"}, {}, "own", "sampled"),
        ({**PLAIN, "entropy": {"coefficient": 0.1}}, {}, "own", "sampled"),
        ({**PLAIN, "entropy": {"floor": 1.0, "floor_coefficient": 0.0}}, {}, "own", "sampled"),
        (FLOOR, {}, "read", "read"),
        ({"preset": "ppo"}, {}, "read", "sampled"),
        ({"preset": "online_dpo"}, {}, "read", "sampled"),
        (OWN, {}, "read", "sampled"),
        ({"preset": "ppo"}, {"shared": True}, "read", "read"),
        ({"preset": "grpo"}, {"shared": True}, "own", "sampled"),  # no critic: what it would share does not matter
    ],
    ids=str,
)
def test_the_cheapest_source_that_is_enough(
    algorithm: dict[str, Any], settings: dict[str, Any], not_exact: Old, exact: Old
) -> None:
    given = dict(settings)
    sections = {"critic": {"model": "shared"}} if given.pop("shared", False) else {}
    once = {"epochs": 1, "minibatches": 1, **given}
    config: OnlineConfig = config_of(algorithm, sections=sections, **once)
    built = build_algorithm(config.algorithm)
    assert old_source(built, config, is_exact=False) == not_exact
    assert old_source(built, config, is_exact=True) == exact
