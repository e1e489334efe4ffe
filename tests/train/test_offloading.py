"""Offloaded models: the same bytes after every move, who can wait, and who has to."""

import copy

import pytest
import torch

from tests.small import small_model
from whet.config import OnlineConfig
from whet.config.parts import OffloadConfig
from whet.distributed.world import World
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.scoring import Scorer
from whet.models.reward.settings import RewardSettings
from whet.tasks.grading.graders import DirectGrader
from whet.tasks.procedural import Sorting
from whet.train.online.learner import build_learner, offload_candidates
from whet.train.setup.build import build_parts
from whet.train.setup.offload_choice import to_offload
from whet.train.setup.offloading import moments, present_in, weights
from whet.train.setup.reward_grader import ModelGrader

CPU = torch.device("cpu")


def pointers(model):
    return [parameter.data_ptr() for parameter in model.parameters()]


def test_a_frozen_model_waits_in_one_copy_and_comes_back_as_it_was():
    model, _ = small_model(layers=1)
    before = copy.deepcopy(model.state_dict())
    offloaded_model = weights(model, is_frozen=True, device=CPU)
    at_home = pointers(model)
    with offloaded_model:
        for parameter in model.parameters():
            parameter.data = parameter.data + 1  # as if it were a copy on the device
        assert not set(pointers(model)) & set(at_home)
    assert pointers(model) == at_home  # what was done to the copy is dropped with it
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_learns_is_written_back():
    model, _ = small_model(layers=1)
    offloaded_model = weights(model, is_frozen=False, device=CPU)
    before = copy.deepcopy(model.state_dict())
    with offloaded_model:
        for parameter in model.parameters():
            parameter.data = parameter.data + 1
    assert all(torch.equal(tensor, before[name] + 1) for name, tensor in model.state_dict().items())


def test_nested_visits_are_one():
    model, _ = small_model(layers=1)
    present = present_in({"critic": weights(model, is_frozen=False, device=CPU)})
    with present("critic"):
        here = pointers(model)
        with present("critic"), present("reference"):  # what is not offloaded is always there
            assert pointers(model) == here
        assert pointers(model) == here
    assert pointers(model) != here


def test_a_visit_ends_when_it_fails():
    model, _ = small_model(layers=1)
    present = present_in({"reward": weights(model, is_frozen=True, device=CPU)})
    at_home = pointers(model)

    def fail():
        with present("reward"):
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pointers(model) == at_home


def test_copies_that_a_pass_leaves_behind_do_not_stay():
    model, _ = small_model("llama", layers=1)
    with weights(model, is_frozen=True, device=CPU):
        model.model.joined.refreshed(model.model.layers, torch.float32)
        assert model.model.joined._copies
    assert not model.model.joined._copies


def test_training_with_guests_is_training_without():
    """Moments exist from the first step on, and are listed anew at every move."""

    def trained(with_guests):
        model, _ = small_model(layers=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        found = {"critic": weights(model, is_frozen=False, device=CPU), "optimizer": moments([optimizer], CPU)}
        present = present_in(found if with_guests else {})
        tokens = torch.tensor([[1, 2, 3, 4]])
        for _ in range(3):
            with present("critic"), present("optimizer"):
                optimizer.zero_grad()
                model.head(model.hidden(tokens, torch.tensor([4]))).logsumexp(-1).sum().backward()
                optimizer.step()
        return model.state_dict()

    plain, moved = trained(False), trained(True)
    assert all(torch.equal(tensor, moved[name]) for name, tensor in plain.items())


SIZES = {"reference": 4, "reward": 4, "critic": 4, "optimizer": 16}


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (70, set()),  # 12 + 28 = 40 are less than 42
        (65, {"reward"}),  # 40 > 39, 36 are not
        (58, {"reward", "reference"}),  # 36 > 34.8, 32 are not
        (50, {"reward", "reference", "optimizer"}),  # 32 > 30, 16 are not
        (20, {"reward", "reference", "optimizer", "critic"}),  # 12 must fit, or nothing does
    ],
)
def test_frozen_models_wait_first_and_only_as_many_as_must(memory, expected):
    assert to_offload(OffloadConfig().model_dump(), SIZES, resident=12, memory=memory) == expected


def test_who_is_told_to_wait_or_to_stay_does():
    told = OffloadConfig(critic="always", reward="never")
    assert to_offload(told.model_dump(), SIZES, resident=12, memory=1000) == {"critic"}
    assert to_offload(told.model_dump(), SIZES, resident=12, memory=10) == {"critic", "reference", "optimizer"}
    always = OffloadConfig.model_validate("always").model_dump()
    assert to_offload(always, {"reference": 4}, resident=1, memory=100) == {"reference"}


def learner_of(**settings):
    config = OnlineConfig.model_validate(
        {
            "steps": 4,
            "model": {"new": {"layers": 1, "heads": 2, "width": 8, "context": 16}},
            "task": {"name": "sorting", "level": 1},
            "rollout": {"max_tokens": 6},
            "eval": {"max_tokens": 6},
            "device": "cpu",
            **settings,
        }
    )
    world = World.alone()
    return build_learner(build_parts(config, world), config, world)


@pytest.fixture(scope="module")
def plain():
    return DirectGrader(Sorting(level=1))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"algorithm": "grpo"}, {}),
        ({"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}}, {"reference": True}),
        ({"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "sync"}}}, {"reference": False}),
        ({"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "uniform"}}}, {}),
        ({"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "reference": "bigram"}}}, {}),
        ({"algorithm": "ppo"}, {"critic": False}),
        ({"algorithm": "ppo", "critic": {"model": "shared"}}, {}),
    ],
    ids=str,
)
def test_only_models_of_their_own_can_wait(settings, expected, plain):
    found = offload_candidates(learner_of(**settings), plain)
    assert {name: is_frozen for name, (_, is_frozen) in found.items()} == expected


def test_a_reward_model_can_wait(plain):
    policy, tokenizer = small_model(layers=1)
    model = new_reward_model(policy, RewardSettings(kind="preference"), seed=0)
    grader = ModelGrader(plain, Scorer(model, tokenizer), weight=1.0, has_functions=False, is_graded=True)
    assert offload_candidates(learner_of(algorithm="grpo"), grader)["reward"] == (model, True)


def test_moments_are_restored_where_the_critic_works_and_not_where_it_waits():
    learner = learner_of(algorithm="ppo")
    critic = learner.critic
    critic.device = torch.device("meta")  # stands for a GPU: the weights are on the host
    tensors = {f"weight/{name}": tensor.detach() for name, tensor in critic.named_parameters()}
    for name, tensor in critic.named_parameters():
        tensors |= {f"{moment}/{name}": torch.zeros_like(tensor) for moment in ("exp_avg", "exp_avg_sq")}
        tensors[f"step/{name}"] = torch.tensor(1.0)
    critic.restore({}, tensors)
    devices = {value.device.type for state in critic.optimizer.state.values() for value in state.values()}
    assert devices == {"meta"}
    assert {parameter.device.type for parameter in critic.parameters()} == {"cpu"}
