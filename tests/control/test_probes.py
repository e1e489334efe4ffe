"""Each probe environment is solved by the algorithms: one fault each would show."""

import pytest
import torch

from tests.control.small_runs import control_config, learned

SIDES = torch.tensor([[-1.0], [1.0]])


@pytest.mark.parametrize(
    ("probe", "rows", "expected"),
    [
        ("ConstantReward", [[0.0]], [1.0]),
        ("ObservedReward", [[-1.0], [1.0]], [-1.0, 1.0]),
        ("DelayedReward", [[0.0], [1.0]], [0.5, 1.0]),
        ("CutReward", [[0.0]], [2.0]),  # 1 / (1 − γ), though every episode is one step long
    ],
)
def test_values(probe, rows, expected):
    policy = learned(control_config(probe)).policy
    with torch.no_grad():
        assert policy.values(torch.tensor(rows)).tolist() == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    ("algorithm", "rollout"),
    [
        ({"preset": "ppo"}, {"environments": 4, "length": 32}),
        ({"preset": "ppo", "surrogate": "reinforce", "scaling": "unscaled"}, {"environments": 4, "length": 32}),
        ({"preset": "reinforce", "advantage": "to_go"}, {"environments": 64, "length": 0}),
        ({"preset": "reinforce", "advantage": "gae", "gae": {"lam": 1.0}}, {"environments": 64, "length": 0}),
        ({"preset": "grpo"}, {"environments": 8, "length": 0, "group": 8}),
        ({"preset": "rloo"}, {"environments": 8, "length": 0, "group": 8}),
    ],
    ids=["ppo", "a2c", "reinforce", "reinforce with a critic", "grpo", "rloo"],
)
def test_actions_that_depend_on_observations(algorithm, rollout):
    is_clipped = algorithm["preset"] in ("ppo", "grpo") and "surrogate" not in algorithm
    update = {"epochs": 4, "minibatch": 64} if is_clipped else {}
    policy = learned(control_config("MatchedReward", algorithm=algorithm, rollout=rollout, update=update)).policy
    with torch.no_grad():
        chances = policy.action_parameters(SIDES).softmax(dim=1)
    assert chances[0, 0] > 0.9
    assert chances[1, 1] > 0.9


def test_the_better_action():
    policy = learned(control_config("ChosenReward", steps=20)).policy
    with torch.no_grad():
        chances = policy.action_parameters(SIDES).softmax(dim=1)
    assert (chances[:, 1] > 0.9).all()


@pytest.mark.parametrize("policy", [{}, {"squash": True, "state_std": True}], ids=["plain", "squashed"])
def test_a_continuous_action_that_depends_on_the_observation(policy):
    config = control_config("AimedReward", steps=60, policy={"widths": [16], "log_std": -0.5, **policy})
    found = learned(config).policy
    with torch.no_grad():
        actions = found.distribution.mode(found.action_parameters(SIDES))
    taken = found.distribution.for_environment(actions.numpy())
    assert [float(one[0]) for one in taken] == pytest.approx([-1.0, 1.0], abs=0.3)
