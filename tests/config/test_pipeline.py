"""A pipeline is checked as a whole before anything runs: every stage, every reference, every name."""

import pytest
import yaml

from whet.config.pipeline import references, resolve_references
from whet.errors import UserError
from whet.recipe import Pipeline, dump, is_pipeline, parse_yaml, read_any, read_recipe, validate, validate_pipeline

PIPELINE = """
loop: pipeline
seed: 4
shared:
  task: {name: sorting, level: 1}
  optimizer: {lr: 2e-3, warmup_steps: 1}
  track: []
  rollout: {prompts: 2, group: 2, max_tokens: 3}
stages:
  sft: {loop: offline, objective: sft, steps: 2, batch_size: 4, model: {new: {layers: 1, heads: 2, width: 16}}}
  pairs: {loop: collect, model: "@sft", select: pairs, steps: 1}
  reward: {loop: offline, objective: bradley_terry, steps: 2, batch_size: 4, model: "@sft", data: "@pairs", seed: 9}
methods:
  grpo: {algorithm: grpo, steps: 2, model: "@sft", reward: {model: "@reward"}}
  dpo: {loop: offline, objective: dpo, steps: 2, batch_size: 4, model: "@sft", data: "@pairs", optimizer: {lr: 1e-4}}
compare: {start: "@sft", reward: "@reward", prompts: 8}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "rlhf.yaml"
    path.write_text(PIPELINE)
    return str(path)


def read(recipe, *overrides) -> Pipeline:
    found = read_any(recipe, overrides)
    assert isinstance(found, Pipeline)
    return found


def refusal(recipe, *overrides) -> str:
    with pytest.raises(UserError) as error:
        read_any(recipe, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_run_has_what_is_shared_and_wins_over_it(recipe):
    config = read(recipe).config
    assert [stage.loop for stage in config.stages.values()] == ["offline", "collect", "offline"]
    assert config.stages["sft"].task.options == {"level": 1}
    assert config.stages["sft"].optimizer.lr == 2e-3
    # Key by key: what the method does not say is still the shared one's.
    assert (config.methods["dpo"].optimizer.lr, config.methods["dpo"].optimizer.warmup_steps) == (1e-4, 1)
    # The offline loop has no rollouts, the others have the shared ones.
    assert config.methods["grpo"].rollout.max_tokens == config.stages["pairs"].rollout.max_tokens == 3
    assert [config.stages[name].seed for name in ("sft", "pairs", "reward")] == [4, 4, 9]
    assert config.stages["reward"].data.path == "@pairs"


def test_a_section_that_names_its_own_thing_takes_nothing_of_the_shared_one(recipe):
    config = read(recipe, "stages.sft.task=arithmetic").config
    assert config.stages["sft"].task.model_dump() == {"name": "arithmetic"}
    assert read(recipe, "stages.sft.task.level=3").config.stages["sft"].task.options == {"level": 3}
    # A shared model from scratch, and a stage that starts from another one.
    config = read(recipe, "shared.model.new.width=32", "stages.sft.model={gradient_checkpointing: true}").config
    assert config.stages["sft"].model.new.width == 32
    assert config.stages["sft"].model.gradient_checkpointing
    assert config.stages["pairs"].model.new is None


def test_the_saved_config_is_the_config(recipe):
    config = read(recipe, "seeds=[0,3]").config
    saved = dump(config)
    assert validate_pipeline(parse_yaml(saved, where="saved"), where="saved") == config
    assert yaml.safe_load(saved)["methods"]["grpo"]["reward"]["model"]["path"] == "@reward"
    assert yaml.safe_load(saved)["shared"] == yaml.safe_load(PIPELINE)["shared"] | {
        "optimizer": {"lr": 2e-3, "warmup_steps": 1}
    }


def test_overrides_reach_into_runs_with_the_short_keys(recipe):
    config = read(recipe, "stages.sft.steps=10", "methods.grpo.lr=5e-6", "shared.task.level=2", "seed=8").config
    assert config.stages["sft"].steps == 10
    assert config.methods["grpo"].optimizer.lr == 5e-6
    assert config.methods["dpo"].optimizer.lr == 1e-4
    assert {stage.task.options["level"] for stage in config.stages.values()} == {2}
    assert [config.stages["sft"].seed, config.stages["reward"].seed] == [8, 9]


def test_a_named_optimizer_keeps_the_shared_rate(recipe):
    config = read(recipe, "shared.optimizer=lion", "stages.sft.optimizer=muon").config
    assert [config.stages[name].optimizer.name for name in ("sft", "reward")] == ["muon", "lion"]
    assert (config.stages["sft"].optimizer.lr, config.methods["dpo"].optimizer.name) == (2e-3, "lion")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.reward.optimizer.lr=-1", "stages.reward.optimizer.lr must be greater than 0, not -1"),
        ("stages.reward.optimizer.lrr=1", "unknown key 'stages.reward.optimizer.lrr'; did you mean 'lr'?"),
        ("methods.grpo.stepz=1", "unknown key 'methods.grpo.stepz'; did you mean 'steps'? (valid here: steps, "),
        ("methods.grpo.rollout.group=1", "methods.grpo: rollout.group is 1 and advantage 'standardize'"),
        ("stages.sft.loop=onlin", "unknown loop of stages.sft: 'onlin'; did you mean 'online'?"),
        ("stages.sft.loop=pipeline", "unknown loop of stages.sft: 'pipeline'"),
        ("stages.sft=3", "stages.sft must be a section with keys of its own, not 3"),
        ("stages=3", "stages must be a section with keys of its own, not 3"),
        ("stages.pears.steps=1", "stages has no 'pears'; did you mean 'pairs'?"),
        ("steps=3", "unknown key 'steps'; did you mean 'stages'?"),
        ("shared.optimiser.lr=1", "unknown key of shared 'optimiser'; did you mean 'optimizer'?"),
        ("shared.cold_start.stepz=1", "unknown key 'methods.grpo.cold_start.stepz'; did you mean 'steps'?"),
        ("seeds=[1,1]", "seeds [1, 1]: each seed once"),
        ("compare.promts=3", "unknown key 'compare.promts'; did you mean 'prompts'?"),
    ],
)
def test_a_wrong_key_is_named_with_its_dotted_path(recipe, override, message):
    assert message in refusal(recipe, override)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("stages.reward.model", "@sfft", "path is '@sfft' and no earlier stage is called 'sfft'; did you mean '@sft'?"),
        ("stages.pairs.reward.model", "@reward", "path is '@reward' and no earlier stage is called 'reward' (sft)"),
        ("stages.pairs.model", "@pairs", "path is '@pairs' and no earlier stage is called 'pairs' (sft)"),
        ("methods.grpo.model", "@dpo", "path is '@dpo' and no earlier stage is called 'dpo'"),
        (
            "methods.grpo.reward.functions",
            "['@mine/a.py']",
            "0.use is '@mine/a.py' and no earlier stage is called 'mine'",
        ),
    ],
)
def test_a_reference_must_name_a_stage_that_comes_before(recipe, key, text, message):
    assert f"{key}.{message}" in refusal(recipe, f"{key}={text}")


def test_what_is_compared_must_be_there(recipe):
    message = refusal(recipe, "compare.judge=@judge")
    assert "compare.judge is '@judge' and no earlier stage is called 'judge' (sft, pairs, reward)" in message


def test_a_circle_has_a_stage_that_comes_later(recipe):
    circle = ["stages.sft.model={path: '@more'}", "stages.more={loop: offline, steps: 1, model: '@sft'}"]
    assert "stages.sft.model.path is '@more' and no earlier stage is called 'more'" in refusal(recipe, *circle)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("methods.grpo.model=@pairs", "'@pairs', which makes rows and not a model"),
        ("methods.grpo.reward.model=@sft", "'@sft', which makes a model and not a reward model"),
        ("methods.dpo.data=@sft", "'@sft', which makes a model and not rows"),
        ("compare.start=@reward", "'@reward', which makes a reward model and not a model"),
        (
            "methods.more={loop: collect, model: '@sft', steps: 1}",
            "methods.more makes rows and a method trains a model",
        ),
        ("methods.dpo.task=arithmetic", "compare needs methods that all have the same task"),
        ("methods={}", "compare needs methods that all have the same task"),
    ],
)
def test_a_stage_is_used_for_what_it_makes(recipe, override, message):
    assert message in refusal(recipe, override)


def test_a_place_inside_a_stage_may_be_anything(recipe):
    config = read(recipe, "methods.dpo.data=@pairs/rows.jsonl").config
    assert config.methods["dpo"].data.path == "@pairs/rows.jsonl"


@pytest.mark.parametrize("name", ["a b", "../out", "a/b", ".", "-x", "_x", "ä", "a.b", ""])
def test_names_are_fit_for_directories(recipe, name):
    written = yaml.safe_load(PIPELINE)
    written["methods"] |= {name: written["methods"]["grpo"]}
    with pytest.raises(UserError, match=r"methods\.?.*must have letters, digits, - and _ only"):
        validate_pipeline(written, where="x")


def test_a_shared_key_that_nothing_takes_is_refused(recipe):
    assert "unknown key of shared 'critic' (known: steps, seed" in refusal(
        recipe, "shared.critic.lr=1", "methods.grpo={loop: offline, steps: 1, model: '@sft'}"
    )


def test_nothing_to_train_is_refused():
    with pytest.raises(UserError, match="nothing to train"):
        validate_pipeline({"loop": "pipeline"}, where="x")


def test_a_pipeline_is_no_recipe_of_one_run(recipe):
    assert is_pipeline(recipe)
    assert not is_pipeline("grpo-sorting")
    with pytest.raises(UserError, match="is a pipeline of several runs"):
        read_recipe(recipe)
    with pytest.raises(UserError, match="a pipeline of several runs, and this needs one run"):
        validate(yaml.safe_load(PIPELINE), where="x")


def test_references_are_whole_texts_anywhere():
    values = {"a": ["@sft", {"b": "@sft/best_model"}], "c": "mail@sft", "d": "@", "e": "@ sft", "f": 3, "g": None}
    assert references(values) == {"sft"}
    assert resolve_references(values, lambda name: f"/runs/{name}") == {
        "a": ["/runs/sft", {"b": "/runs/sft/best_model"}],
        **{"c": "mail@sft", "d": "@", "e": "@ sft", "f": 3, "g": None},
    }
