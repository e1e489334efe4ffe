"""What a recipe may say about learning from rows, making rows and ending early; every refusal names its key."""

from typing import Any

import pytest
from pydantic import ValidationError

from whet.algorithms.cells import options
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS
from whet.algorithms.table import OBJECTIVES, Objective
from whet.config import DataConfig, ObjectiveConfig, OfflineConfig, OnlineConfig
from whet.config.loops import CollectConfig
from whet.config.objective import objective_row
from whet.errors import UserError
from whet.recipe import dump, parse_yaml, validate

OFFLINE: dict[str, Any] = {"loop": "offline", "steps": 2, "model": "some/model", "data": "no-such-file.jsonl"}
COLLECT: dict[str, Any] = {"loop": "collect", "steps": 2, "model": "some/model", "task": "sorting"}
ONLINE: dict[str, Any] = {"steps": 3, "model": "some/model", "task": "sorting", "algorithm": "grpo"}


def offline(**changes: Any) -> OfflineConfig:
    return OfflineConfig.model_validate({**OFFLINE, **changes})


def refused(base: dict[str, Any], without: str = "", **changes: Any) -> str:
    """The one line that a recipe is refused with."""
    written = {key: value for key, value in {**base, **changes}.items() if key != without}
    with pytest.raises(UserError) as error:
        validate(written, where="r.yaml")
    told = str(error.value)
    assert "\n" not in told
    assert told.startswith("r.yaml: ")
    return told.removeprefix("r.yaml: ")


def loss_of(config: OfflineConfig) -> Any:
    return objective_row(config.objective).loss


def test_every_row_of_the_tables_is_an_objective() -> None:
    for name, row in {**OBJECTIVES, **PREFERENCES, **REWARDS}.items():
        assert objective_row(ObjectiveConfig(name=name)) == row
        has_text = isinstance(row, Objective) and row.reads == "text"
        task = {"task": {"name": "corpus", "path": "no-such-file.txt"}, "data": None} if has_text else {}
        assert offline(objective=name, **task).objective.options == {}


def test_options_are_bound_to_the_loss() -> None:
    config = offline(objective={"name": "cdpo", "beta": 0.3})
    assert options(loss_of(config)) == {**options(PREFERENCES["cdpo"].loss), "beta": 0.3}
    assert offline(objective={"name": "dpo", "beta": 1}).objective.options == {"beta": 1}  # a whole number is a number
    strict = offline(objective={"name": "bradley_terry", "use_margins": True})
    assert options(loss_of(strict))["use_margins"] is True


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"objective": "dpp"}, "unknown objective 'dpp'; did you mean 'dpo'?"),
        ({"objective": "mlm"}, "unknown objective 'mlm'; did you mean 'masked_lm'?"),
        (
            {"objective": {"name": "dpo", "bet": 0.1}},
            "objective 'dpo' has no option 'bet'; did you mean 'beta'? (its options are beta)",
        ),
        ({"objective": {"name": "dpo", "beta": "0.1"}}, "objective 'dpo': beta is '0.1' and must be a float"),
        ({"objective": {"name": "dpo", "beta": True}}, "objective 'dpo': beta is True and must be a float"),
        ({"objective": {"name": "dpo", "beta": -0.1}}, "objective.beta is -0.1 and must be a number from 0 on"),
        (
            {"objective": {"name": "dpo", "beta": float("nan")}},
            "beta is nan and must be a finite number",
        ),
        ({"objective": {"name": "dpo", "beta": 0.0}}, "objective.beta is 0: it must be above 0"),
        ({"objective": {"name": "cdpo", "smoothing": 0.5}}, "objective.smoothing is 0.5: it must be below 0.5"),
        (
            {"objective": {"name": "bradley_terry", "use_margins": 1}},
            "use_margins is 1 and must be a bool",
        ),
        ({"objective": "bradley_terry", "reference": "m"}, "'bradley_terry' compares with no reference: leave refer"),
        ({"objective": "simpo", "reference": "m"}, "'simpo' compares with no reference: leave reference out"),
        ({"objective": "sft", "reference": "m"}, "'sft' compares with no reference: leave reference out"),
        ({"objective": "dpo", "data": {}}, "data: give either path (a file, a folder, a name on the hub) or sets"),
        ({"objective": "dpo", "data": {"path": "x", "pats": 1}}, "data.pats"),
        ({"objective": "dpo", "data": {"path": "x", "held_out_share": 1.5}}, "data.held_out_share"),
        ({"objective": "dpo", "data": {"path": "x", "ties": "maybe"}}, "data.ties"),
        ({"objective": "process", "reward_head": {"classes": 4}}, "reward_head.classes"),
        ({"early_stopping": {"patience": -1}}, "early_stopping.patience"),
        ({"early_stopping": {"kl": 0}}, "early_stopping.kl"),
        (
            {"early_stopping": {"metric": "reward/mean"}},
            "early_stopping.metric: 'reward/mean' is not measured by evaluations",
        ),
    ],
)
def test_a_refusal_names_its_key(changes: dict[str, Any], told: str) -> None:
    assert told in refused(OFFLINE, **changes)


@pytest.mark.parametrize("objective", ["dpo", "kto", "bradley_terry", "process"])
def test_what_learns_from_data_asks_for_it(objective: str) -> None:
    told = refused(OFFLINE, without="data", objective=objective, task="sorting")
    assert f"objective '{objective}' learns from data: set data, e.g. data: pairs.jsonl" in told
    assert "nothing to learn from: name data, e.g. data: pairs" in refused(OFFLINE, without="data", objective=objective)


def test_supervised_learning_needs_a_task_or_data() -> None:
    assert "name data, e.g. data: pairs.jsonl, or a task that has answers" in refused(OFFLINE, without="data")
    assert "data must be a section with keys of its own" in refused(OFFLINE, data=7)
    assert offline(task="sorting").task.name == "sorting"


def test_the_prompts_of_the_data_are_the_task_unless_one_is_named() -> None:
    assert offline().task.name == "data"
    assert offline().task.options == {"path": "no-such-file.jsonl"}
    told = offline(data={"path": "a/b", "split": "test", "chat": True, "held_out_share": 0.2, "max_tokens": 9})
    assert told.task.options == {"path": "a/b", "split": "test", "chat": True, "held_out_share": 0.2}
    assert offline(data=DataConfig(path="a/b", chat=True)).task.options == {"path": "a/b", "chat": True}
    assert offline(task={"name": "sorting", "level": 2}).task.options == {"level": 2}


@pytest.mark.parametrize(
    "written",
    [
        {**OFFLINE, "objective": {"name": "dpo", "beta": 0.2}, "reference": "ref", "early_stopping": {"patience": 2}},
        {**OFFLINE, "objective": {"name": "process"}, "reward_head": {"classes": 2, "separator": "\n\n"}},
        {**COLLECT, "select": "best_overall", "keep": 0.1, "reward": {"model": {"path": "rm", "weight": 0.5}}},
        {**ONLINE, "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}, "early_stopping": {"kl": 8.0}},
    ],
)
def test_a_saved_config_reads_as_the_same(written: dict[str, Any]) -> None:
    config = validate(written, where="here")
    assert validate(parse_yaml(dump(config), where="there"), where="there") == config


def collect(**changes: Any) -> CollectConfig:
    return CollectConfig.model_validate({**COLLECT, **changes})


def test_short_spellings_of_collecting() -> None:
    config = collect(reward={"model": "rm"})
    assert (config.model.path, config.task.name, config.select) == ("some/model", "sorting", "pairs")
    assert config.reward.model is not None
    assert (config.reward.model.path, config.reward.model.weight) == ("rm", 1.0)


@pytest.mark.parametrize("select", ["pairs", "extremes"])
def test_a_pair_takes_two_completions(select: str) -> None:
    told = refused(COLLECT, select=select, rollout={"group": 1})
    assert f"select is {select}, which needs two completions of a prompt: raise rollout.group" in told
    assert collect(select="best", rollout={"group": 1}).rollout.group == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"select": "worst"}, "select"),
        ({"keep": 0}, "keep"),
        ({"keep": 1.5}, "keep"),
        ({"gap": -0.1}, "gap"),
        ({"optimizer": {"lr": 1}}, "optimizer"),
        ({"rollout": {"top_p": 0.5, "min_p": 0.1}, "engine": {"name": "vllm"}}, "rollout.top_p and rollout.min_p"),
    ],
)
def test_a_refusal_of_collecting_names_its_key(changes: dict[str, Any], key: str) -> None:
    assert key in refused(COLLECT, **changes)


def test_a_kl_budget_needs_a_reference() -> None:
    told = refused(ONLINE, early_stopping={"kl": 5.0})
    assert "early_stopping.kl is set and the algorithm has no reference model" in told
    assert "algorithm.kl.coefficient" in told
    kept = OnlineConfig.model_validate(
        {**ONLINE, "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}, "early_stopping": {"kl": 5.0}}
    )
    assert kept.early_stopping.kl == 5.0


def test_configs_do_not_change_after_they_were_checked() -> None:
    with pytest.raises(ValidationError):
        collect().select = "best"
