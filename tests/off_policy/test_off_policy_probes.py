"""Each probe environment is solved by SAC and TD3: one fault each would show."""

import numpy as np
import pytest
import torch

from tests.off_policy.small_learners import REACH, SAC, TD3, learned, off_policy_config
from whet.train.control.evaluation import Evaluation

BOTH = pytest.mark.parametrize("algorithm", [SAC, TD3], ids=["sac", "td3"])


@BOTH
@pytest.mark.parametrize(
    ("probe", "rows", "expected"),
    [
        ("ConstantReward", [[0.0]], [1.0]),
        ("ObservedReward", [[-1.0], [1.0]], [-1.0, 1.0]),
        ("DelayedReward", [[0.0], [1.0]], [0.5, 1.0]),
        ("CutReward", [[0.0]], [2.0]),  # 1 / (1 − γ), though every episode is one step long
    ],
)
def test_values(algorithm, probe, rows, expected):
    learner = learned(off_policy_config(probe, algorithm=algorithm))
    rows = torch.tensor(rows)
    with torch.no_grad():
        values = learner.critics.critics(rows, torch.zeros(len(rows), 1))
    for twin in values:
        assert twin.tolist() == pytest.approx(expected, abs=0.15)


@BOTH
def test_an_action_that_depends_on_the_observation(algorithm):
    """Bounds are ±2, so the action 1 is 0.5 of what critics read."""
    policy = learned(off_policy_config("AimedReward", algorithm=algorithm, rollout={"length": 600})).policy
    with torch.no_grad():
        chosen = policy.distribution.mode(policy.action_parameters(torch.tensor([[-1.0], [1.0]])))
    taken = policy.distribution.for_environment(chosen.numpy())
    assert [float(one[0]) for one in taken] == pytest.approx([-1.0, 1.0], abs=0.25)


@pytest.mark.parametrize(
    ("algorithm", "copies", "normalize"), [("sac", 1, True), ("td3", 2, False)], ids=["sac", "td3, two copies"]
)
def test_goals_are_reached_in_hindsight(algorithm, copies, normalize):
    """A sparse reward; a random walk of ten steps seldom ends at the goal."""
    config = off_policy_config(
        "Reach",
        environment=REACH,
        algorithm={"preset": algorithm, "gamma": 0.9, "tau": 0.02},
        replay={"size": 10_000, "learning_starts": 200, "hindsight": {"goals": 4}},
        rollout={"environments": copies, "length": 1000 // copies},
        update={"batch_size": 64, "gradient_steps": copies},
        normalize={"observations": normalize},
        optimizer={"lr": 3e-3},
        steps=3,
        eval={"episodes": 60},
    )
    learner = learned(config)
    assert Evaluation(config, learner.policy)()["eval/success"] > 0.9
    assert np.isfinite(learner.experience.metrics()["reward/mean"])
