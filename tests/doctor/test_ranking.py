"""From alarms to causes: votes by place and level, settings that are far from usual, causes that are ruled out."""

import shlex

import pytest

from whet.doctor.causes import CAUSES
from whet.doctor.diagnosis import NEXT, PASSED, ranked
from whet.doctor.findings import Finding
from whet.doctor.plain_words import written
from whet.doctor.settings import Settings, kind_of
from whet.recipe import read_recipe
from whet.train.explain.recipe_keys import recipe_keys

USUAL = {"model": {"new": {"family": "gpt2"}}, "optimizer": {"lr": 1e-3}}


def alarm(*causes, level="warning", **more):
    return Finding(rule="r", level=level, sentence="s", causes=causes, **more)


def votes(*findings, config=None):
    settings = Settings(config=USUAL | (config or {}))
    return {cause.name: cause.votes for cause in ranked(findings, settings)}


def test_the_first_cause_of_an_alarm_gets_more_votes_than_the_next():
    found = votes(alarm("stale-sampler", "leaked-evaluation", "critic-not-learning"))
    assert found == pytest.approx({"stale-sampler": 1, "leaked-evaluation": NEXT, "critic-not-learning": NEXT**2})
    assert list(found) == ["stale-sampler", "leaked-evaluation", "critic-not-learning"]


def test_alarms_add_up_and_critical_ones_count_double():
    both = votes(alarm("stale-sampler", "leaked-evaluation"), alarm("leaked-evaluation", level="critical"))
    assert both == pytest.approx({"leaked-evaluation": 2 + NEXT, "stale-sampler": 1})
    passed = votes(alarm("stale-sampler", until=7), alarm("leaked-evaluation"))
    assert passed["stale-sampler"] == PASSED


def test_notes_alone_have_no_cause():
    assert votes(alarm("stale-sampler", level="note")) == {}
    assert votes() == {}


def test_a_setting_far_from_usual_is_suspected_first():
    fall = alarm("wrong-sign", "learning-rate-too-high")
    high = votes(fall, config={"optimizer": {"lr": 3e-2}})
    assert next(iter(high)) == "learning-rate-too-high"
    own = votes(fall, config={"algorithm": {"surrogate": "cells.py:mine"}})
    assert next(iter(own)) == "wrong-sign"


def test_what_the_settings_exclude_is_no_cause():
    assert "kl-coefficient-too-high" not in votes(alarm("kl-coefficient-too-high", "noisy-reward"))
    assert "target-kl-too-small" not in votes(alarm("target-kl-too-small", "noisy-reward"))
    assert "too-many-updates" not in votes(alarm("too-many-updates", "noisy-reward"))
    twice = {"update": {"epochs": 2, "minibatches": 1}}
    assert "too-many-updates" in votes(alarm("too-many-updates", "noisy-reward"), config=twice)


def test_an_own_reward_is_replaced_rather_than_penalised():
    """With the task's own reward a penalty on repetition or length is no longer needed."""
    for cause, key in [("reward-pays-repetition", "repetition_penalty"), ("reward-pays-length", "length_penalty")]:
        own, none = (Settings(config={"reward": {"functions": some}}) for some in (["mine.py:f"], []))
        assert [change.key for change in CAUSES[cause].changes(own)] == ["reward.functions"]
        assert [change.key for change in CAUSES[cause].changes(none)] == [f"reward.{key}"]


def test_room_for_a_whole_answer_is_room_in_evaluation_too():
    def keys(config):
        return {change.key: change.value for change in CAUSES["max-tokens-too-small"].changes(Settings(config=config))}

    assert keys({"rollout": {"max_tokens": 4}}) == {"rollout.max_tokens": 16}
    assert keys({"rollout": {"max_tokens": 4}, "eval": {"max_tokens": 16}}) == {"rollout.max_tokens": 16}
    assert keys({"rollout": {"max_tokens": 4}, "eval": {"max_tokens": 8}}) == {
        "rollout.max_tokens": 16,
        "eval.max_tokens": 16,
    }


def test_prompts_that_are_too_hard_are_made_easier_where_a_key_can():
    def keys(config):
        return {change.key: change.value for change in CAUSES["prompts-too-hard"].changes(Settings(config=config))}

    assert keys({"task": {"level": 4}, "cold_start": {"steps": 0}}) == {"cold_start.steps": 30, "task.level": 2}
    assert keys({"task": {"level": 4}, "cold_start": {"steps": 16}}) == {"task.level": 2}
    assert keys({"task": {"name": "maths"}, "rollout": {"group": 8}}) == {"rollout.group": 16}


SETTINGS = [
    {},
    {"optimizer": {"lr": 1.0}},
    {"optimizer": {"lr": 1e-9}, "algorithm": {"clip": {"low": 1e-4, "high": 1e-4}}},
    {"algorithm": {"surrogate": "a.py:f", "kl": {"coefficient": 5.0, "reference": "frozen", "estimator": "a.py:g"}}},
    {"reward": {"functions": [{"use": "a.py:f"}]}, "rollout": {"temperature": 0.1, "max_tokens": 4, "group": 4}},
    {"update": {"epochs": 16, "minibatches": 8, "target_kl": 1e-5}, "critic": {"lr": 0.0}, "objective": {"beta": 1e-3}},
    {"algorithm": {"entropy": {"coefficient": 1.0, "floor": 1.0}}, "steps": 3, "epochs": 8},
]


@pytest.mark.parametrize("name", CAUSES)
def test_changes_name_keys_that_recipes_have(name):
    known = {row.key for row in recipe_keys()}
    for config in SETTINGS:
        settings = Settings(config=USUAL | config)
        assert CAUSES[name].suspicion(settings) >= 0
        for change in CAUSES[name].changes(settings):
            assert change.key in known or change.key.startswith(("algorithm.clip", "objective.beta")), change.key


def test_the_advised_learning_rate_is_the_usual_one_of_such_a_model():
    def advised(config, name="learning-rate-too-high", **more):
        (change,) = CAUSES[name].changes(Settings(config=config, **more))
        return change.value

    assert advised({"model": {"new": {}}, "optimizer": {"lr": 3e-2}}) == 1e-3
    assert advised({"model": {"path": "m"}, "optimizer": {"lr": 1e-3}}) == 1e-6
    assert advised({"model": {"path": "m"}, "optimizer": {"lr": 2e-6}}) == 4e-7  # not far: a fifth
    assert advised({"model": {"path": "m", "lora": {"rank": 8}}, "optimizer": {"lr": 1e-3}}) == 1e-5
    assert advised({"model": {"path": "m"}, "optimizer": {"lr": 1e-1}}, parameters=1000) == 1e-3
    assert advised({"model": {"path": "m"}, "optimizer": {"lr": 1e-9}}, "learning-rate-too-low") == 1e-6
    assert advised({"optimizer": {"lr": 1e-3}, "model": {"path": "m"}}, kind="preference") == 1e-6


def test_what_a_run_trains_is_told_by_its_metrics():
    assert kind_of({"loss", "reward/mean"}) == "online"
    assert kind_of({"loss", "rewards/margin"}) == "preference"
    assert kind_of({"loss", "score/mean"}) == "reward"
    assert kind_of({"loss"}) == "sft"


PREFERENCE_ROWS = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "d", "chosen": "e", "rejected": "f"}\n'
ADVISED = [
    *(("grpo-sorting", "online", ()), ("ppo-sorting", "online", ()), ("grpo-hanoi", "online", ())),
    ("toy-sorting", "online", ("algorithm.preset=maxrl",)),
    ("toy-sorting", "online", ("algorithm.preset=online_dpo",)),
    ("grpo-sorting", "online", ("update.epochs=16", "update.target_kl=1e-5", "algorithm.kl.coefficient=5")),
    ("grpo-sorting", "online", ("algorithm.clip.low=1e-3", "rollout.temperature=0.1", "eval.max_tokens=7")),
    ("grpo-sorting", "online", ("algorithm.entropy.coefficient=0.1", "reward.functions=[r.py:f]")),
    ("grpo", "online", ("model=.", "data=rows.jsonl", "reward.functions=[r.py:f]")),
    ("sft-arithmetic", "sft", ()),
    ("dpo", "preference", ("model=.", "data=rows.jsonl", "objective.beta=1e-3")),
    ("reward-model", "reward", ("model=.", "data=rows.jsonl")),
]


@pytest.mark.parametrize(("recipe", "kind", "keys"), ADVISED)
def test_what_is_advised_is_taken_by_the_recipe(tmp_path, monkeypatch, recipe, kind, keys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.py").write_text("def f(completions, **_):\n    return [0.0 for _ in completions]\n")
    (tmp_path / "rows.jsonl").write_text(PREFERENCE_ROWS)
    config = read_recipe(recipe, keys).config.model_dump(mode="json")
    for parameters in (0, 10**9):
        settings = Settings(config=config, kind=kind, parameters=parameters)
        found = ranked([alarm(*CAUSES)], settings)
        assert sum(bool(cause.changes) for cause in found) >= 3
        for cause in found:
            read_recipe(recipe, [*keys, *(shlex.split(written(change))[0] for change in cause.changes)])
