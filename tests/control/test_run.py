"""A run of loop control: its directory, its report with a picture, its packaged recipes."""

import re

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.control.small_runs import control_config, run_of
from whet.control.environments import make_environment
from whet.control.playing import gif
from whet.errors import UserError
from whet.recipe import Recipe, packaged_recipes, read_recipe
from whet.report.run.page import write_report
from whet.runs.layout import video_path
from whet.train.explain.environments import explain_control
from whet.train.explain.unused_keys import keys_without_effect

RECIPES = [name for name, text in packaged_recipes().items() if "loop: control" in text]
SMALL = ["steps=1", "eval.episodes=2", "track=[]", "save.every_steps=1"]


def test_a_run_has_a_report_with_a_picture_of_its_best_policy(tmp_path):
    config = control_config(
        "CartPole-v1",
        steps=2,
        environment={"name": "CartPole-v1", "max_steps": 12},
        rollout={"environments": 2, "length": 16},
        eval={"every_steps": 1, "episodes": 3},
    )
    run = run_of(config, tmp_path / "run")
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["eval/episodes"] == 3 and row["eval/reward"] == row["eval/episode_length"] for row in rows)
    assert rows[2]["tokens"] == 64
    with Image.open(video_path(run.path)) as video:
        assert video.n_frames > 1
    page = write_report(run.path).read_text("utf-8")
    assert re.search(r'<img alt="[^"]+" src="data:image/gif;base64,[A-Za-z0-9+/=]{1000,}">', page)
    assert "img-src data:" in page


def test_an_environment_that_draws_nothing_has_no_video(tmp_path):
    run = run_of(control_config("ChosenReward", steps=1), tmp_path / "run")
    assert run.finished
    assert not video_path(run.path).exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_packaged_recipe_trains_a_step(name, tmp_path):
    """With few steps in each copy; an environment whose package is missing is named with what to install."""
    written = yaml.safe_load(packaged_recipes()[name])
    small = [*SMALL, "rollout.length=4"] if written["rollout"].get("length", 1) else SMALL
    config = read_recipe(name, small).config
    try:
        make_environment(config.environment.name, config.environment.options)
    except UserError:
        with pytest.raises(UserError, match="pip install"):
            run_of(config, tmp_path / "run")
        return
    assert run_of(config, tmp_path / "run").metrics()[1]["grad_norm"] > 0


def test_explain_counts_actions_and_updates():
    found = explain_control("one", control_config("ChosenReward", steps=3))
    assert found["loss"]["surrogate"].startswith("clip: −min(ρA")
    assert found["one step"] == {
        "actions": "4 environments × 32 = 128",
        "updates": "4 epochs × 2 minibatches = 8 updates",
    }
    assert (found["schedule"]["steps"], found["schedule"]["actions"]) == ("3", "384")


def test_keys_without_effect_are_named():
    keys = {
        "algorithm": {"preset": "reinforce", "advantage": "to_go"},
        "rollout": {"length": 0},
        "critic": {"coefficient": 0.7},
        "policy": {"kind": "cnn", "heads": 2, "activation": "relu"},
        "normalize": {"clip": 5.0},
        "update": {"anneal_clip": True, "epochs": 1},
        "save": {"rollouts_every_steps": 2, "keep": 1},
        "eval": {"every_steps": 0, "episodes": 3},
    }
    recipe = Recipe(name="one", config=control_config("ChosenReward", **keys), written=keys)
    assert set(keys_without_effect(recipe)) == {
        *("critic.coefficient", "policy.heads", "policy.activation", "normalize.clip", "update.anneal_clip"),
        *("save.rollouts_every_steps", "eval.episodes"),
    }


def test_a_long_episode_is_shown_by_evenly_chosen_pictures():
    pictures = [np.full((4, 4, 3), shade % 256, np.uint8) for shade in range(400)]
    stream = gif(pictures)
    assert stream.startswith(b"GIF89a")
    assert len(stream) < 400 * 48


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({"algorithm": "remax"}, "asks for greedy"),
        ({"algorithm": {"preset": "ppo", "kl": {"coefficient": 0.1}}}, "a reference policy"),
        ({"algorithm": "gspo"}, "one ratio for a whole sequence"),
        ({"algorithm": "dapo"}, "an environment has none"),
        ({"algorithm": "reinforce"}, "needs whole episodes"),
        ({"algorithm": "grpo", "rollout": {"length": 0}}, "rollout.group above 1"),
        ({"rollout": {"group": 4}}, "whole episodes"),
        ({"rollout": {"length": 0}, "normalize": {"rewards": True}}, "fragments"),
        ({"early_stopping": {"kl": 1.0}}, "a reference policy"),
        ({"algorithm": {"preset": "ppo", "importance_correction": "token_truncate"}}, "samplers that differ"),
    ],
)
def test_what_cannot_be_is_refused(keys, refusal):
    with pytest.raises(ValueError, match=refusal):
        control_config("ChosenReward", **keys)
