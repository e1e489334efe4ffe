"""A run of loop off_policy: its directory, recipes, what explain says, and what is refused."""

import gymnasium as gym
import pytest
from gymnasium.spaces import Box

from tests.control.small_runs import PROBES
from tests.off_policy.small_learners import REACH, SAC, TD3, built, learned, off_policy_config, run_of
from whet.errors import RunFailed, UserError
from whet.recipe import Recipe, packaged_recipes, read_recipe
from whet.train.explain.environments import explain_off_policy
from whet.train.explain.unused_keys import keys_without_effect

RECIPES = [name for name, text in packaged_recipes().items() if "loop: off_policy" in text]
HINDSIGHT = {"size": 1000, "learning_starts": 20, "hindsight": {"goals": 4}}


def test_a_run_has_metrics_an_evaluation_and_a_best_policy(tmp_path):
    config = off_policy_config(
        "Pendulum-v1",
        steps=2,
        rollout={"length": 40},
        replay={"learning_starts": 50},
        environment={"name": "Pendulum-v1", "max_steps": 30},
        eval={"every_steps": 1, "episodes": 3},
    )
    run = run_of(config, tmp_path / "run")
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["eval/episodes"] == 3 for row in rows)
    assert "updates" not in rows[1]  # random actions so far
    assert (rows[2]["updates"], rows[2]["tokens"], rows[2]["replay/transitions"]) == (30, 80, 80)
    assert run.best_model() is not None


@pytest.mark.parametrize("name", RECIPES)
def test_a_packaged_recipe_trains_a_step(name, tmp_path):
    small = ["steps=1", "rollout.length=60", "replay.learning_starts=55", "eval.episodes=2", "track=[]"]
    config = read_recipe(name, small).config
    try:
        gym.make(config.environment.name)
    except (gym.error.Error, ImportError):
        with pytest.raises(UserError, match=r"pip install|module"):
            run_of(config, tmp_path / "run")
        return
    assert run_of(config, tmp_path / "run").metrics()[1]["updates"] == 5


def test_an_evaluation_says_how_often_a_goal_is_reached(tmp_path):
    config = off_policy_config(
        "Reach", environment=REACH, replay=HINDSIGHT, rollout={"length": 30}, eval={"every_steps": 1, "episodes": 4}
    )
    assert 0 <= run_of(config, tmp_path / "run").metrics()[1]["eval/success"] <= 1


def test_explain_has_formulas_and_counts():
    replay = {"size": 500, "hindsight": {"goals": 4}}
    found = explain_off_policy("one", off_policy_config("Reach", algorithm={"preset": "sac"}, steps=3, replay=replay))
    assert found["loss"]["target"].startswith("y = r + γ(1 − d)(min_i")
    assert found["one step"]["updates"] == "1 after every 1 environment steps = 400, 64 transitions each"
    assert found["replay buffer"]["hindsight"].startswith("4 of 5 transitions")
    assert found["schedule"]["actions"] == "1,200"
    fixed = explain_off_policy("one", off_policy_config("Reach", algorithm=SAC))
    assert fixed["loss"]["entropy coefficient"] == "0.001, fixed"


@pytest.mark.parametrize(
    ("algorithm", "unused"),
    [
        ({"preset": "sac", "policy_delay": 3}, {"algorithm.policy_delay"}),
        ({"preset": "sac", "entropy_coefficient": 0.1, "target_entropy": -2.0}, {"algorithm.target_entropy"}),
        ({"preset": "td3", "entropy_coefficient": 0.1, "action_noise": 0.2}, {"algorithm.entropy_coefficient"}),
    ],
)
def test_keys_without_effect_are_named(algorithm, unused):
    keys = {"algorithm": algorithm, "normalize": {"clip": 5.0}}
    recipe = Recipe(name="one", config=off_policy_config("AimedReward", **keys), written=keys)
    assert set(keys_without_effect(recipe)) == {*unused, "normalize.clip"}


def test_defaults_are_those_of_stable_baselines3():
    sac, td3 = (off_policy_config("Pendulum-v1", algorithm=name, optimizer={}) for name in ("sac", "td3"))
    assert (sac.optimizer.lr, td3.optimizer.lr, sac.optimizer.beta2) == (3e-4, 1e-3, 0.999)
    assert (sac.algorithm.gamma, sac.algorithm.tau, sac.algorithm.entropy_coefficient) == (0.99, 0.005, "auto")
    assert (td3.algorithm.policy_delay, td3.algorithm.target_noise, td3.algorithm.target_noise_clip) == (2, 0.2, 0.5)
    read = read_recipe("control-pendulum-sac").config
    assert (read.replay.size, read.replay.learning_starts, read.update.batch_size) == (1_000_000, 100, 256)


def test_a_step_is_repeated_by_its_number():
    config = off_policy_config("AimedReward", algorithm=TD3, rollout={"length": 90})
    one, two = (learned(config).policy.state_dict() for _ in range(2))
    assert all(one[name].equal(two[name]) for name in one)


class Unbounded(gym.Env):
    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(-float("inf"), float("inf"), (1,))


@pytest.mark.parametrize(
    ("environment", "keys", "refusal"),
    [
        ("CartPole-v1", {}, "sac is for actions that are numbers between bounds .* use loop control"),
        ("CartPole-v1", {"algorithm": "td3"}, "td3 is for actions that are numbers"),
        ({"name": f"{__file__}:Unbounded"}, {}, "have none .*give them bounds"),
        ("Pendulum-v1", {"replay": HINDSIGHT}, "needs observations that are a Dict with achieved_goal"),
    ],
)
def test_environments_that_do_not_fit_are_refused(environment, keys, refusal):
    with pytest.raises(UserError, match=refusal):
        built(off_policy_config("-", environment=environment, **keys))


@pytest.mark.parametrize(
    ("option", "refusal"), [("wrong", "would be of another task"), ("single", "one reward for each")]
)
def test_a_compute_reward_that_is_not_that_of_the_steps_ends_the_run(option, refusal):
    config = off_policy_config("Reach", environment={**REACH, option: True}, replay=HINDSIGHT)
    with pytest.raises(RunFailed, match=refusal):
        learned(config)


def test_an_environment_whose_goal_has_another_shape_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    lines = (
        f"import sys; sys.path.insert(0, {str(PROBES.rpartition('/')[0])!r})",
        "from gymnasium import spaces",
        "from probes import Reach",
        "class Other(Reach):",
        "    def __init__(self):",
        "        super().__init__()",
        "        parts = {**self.observation_space.spaces, 'desired_goal': spaces.Box(-1, 1, (3,))}",
        "        self.observation_space = spaces.Dict(parts)",
    )
    file.write_text("\n".join(lines))
    with pytest.raises(UserError, match="boxes of one shape"):
        built(off_policy_config("-", environment={"name": f"{file}:Other"}, replay=HINDSIGHT))


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({"normalize": {"rewards": True}}, "another scale"),
        ({"early_stopping": {"kl": 1.0}}, "a reference policy"),
        ({"replay": {"size": 3}, "rollout": {"environments": 4}}, "no room for a step"),
        ({"algorithm": "dqn"}, "sac"),
        ({"replay": {"hindsight": {"strategy": "episode"}}}, "future"),
    ],
)
def test_what_cannot_be_is_refused(keys, refusal):
    with pytest.raises(ValueError, match=refusal):
        off_policy_config("AimedReward", **keys)
