"""What a recipe may say: presets become cells, numbers are numbers, and nonsense is refused with its reason."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from whet.algorithms.cells import name, options
from whet.algorithms.table import ALGORITHMS, CELLS, WEIGHTINGS
from whet.config import AlgorithmBase, AlgorithmConfig, OfflineConfig, OnlineConfig

MODEL = {"new": {"layers": 1, "heads": 2, "width": 8}}
MINIMAL: dict[str, Any] = {"steps": 3, "model": MODEL, "task": "sorting", "algorithm": "grpo"}


def online(**changes: Any) -> OnlineConfig:
    return OnlineConfig.model_validate({**MINIMAL, **changes})


def algorithm_of(**changes: Any) -> AlgorithmBase:
    algorithm: AlgorithmBase = online(**changes).algorithm
    return algorithm


def reason(make: Any) -> str:
    with pytest.raises(ValidationError) as refusal:
        make()
    return str(refusal.value.errors()[0]["msg"])


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_a_preset_is_its_row_of_the_table(preset: str) -> None:
    config = algorithm_of(algorithm=preset, rollout={"group": 4})
    row = ALGORITHMS[preset]
    assert row.cells.keys() == CELLS.keys()
    for kind, cell in row.cells.items():
        assert dict(config)[kind] == name(cell)
        assert config.options_of(name(cell)) == options(cell)
        assert options(config.cell(kind)) == options(cell)
    assert (config.kl.coefficient, config.kl.place) == (row.kl_coefficient, row.kl_place)
    assert config.kl.estimator == name(row.kl)


def test_one_option_of_a_preset_changes_and_its_neighbours_stay() -> None:
    config = algorithm_of(algorithm={"preset": "grpo", "clip": {"high": 0.28}})
    assert config.options_of("clip") == {"low": 0.2, "high": 0.28}
    assert config.advantage == "standardize"
    assert config.kl.coefficient == 0


def test_a_cell_of_a_preset_is_replaced_by_name() -> None:
    config = algorithm_of(algorithm={"preset": "grpo", "weighting": "token_mean"})
    assert (config.preset, config.surrogate, config.weighting) == ("grpo", "clip", "token_mean")


def test_without_a_preset_every_cell_must_be_named() -> None:
    assert reason(lambda: online(algorithm={"advantage": "raw", "surrogate": "clip"})) == "Field required"
    cells = {"advantage": "raw", "surrogate": "reinforce", "weighting": "token_mean"}
    assert algorithm_of(algorithm=cells).preset == "custom"


def test_every_option_of_every_cell_has_a_section() -> None:
    fields = AlgorithmConfig.model_fields
    for cell in (cell for table in CELLS.values() for cell in table.values()):
        assert (name(cell) in fields) == bool(options(cell))


@pytest.mark.parametrize("advantage", ["center", "leave_one_out", "standardize"])
def test_a_group_of_one_has_nothing_to_be_compared_with(advantage: str) -> None:
    algorithm = {"preset": "grpo", "advantage": advantage}
    told = reason(lambda: online(algorithm=algorithm, rollout={"group": 1}))
    assert "rollout.group is 1" in told
    assert "set rollout.group to 2 or more" in told
    assert online(algorithm={"preset": "grpo", "advantage": "raw"}, rollout={"group": 1}).rollout.group == 1


@pytest.mark.parametrize("update", [{"epochs": 2}, {"minibatches": 2}])
def test_a_surrogate_without_a_ratio_serves_one_update(update: dict[str, int]) -> None:
    assert "2 updates per rollout with surrogate 'reinforce'" in reason(lambda: online(algorithm="rloo", update=update))
    assert algorithm_of(algorithm="grpo", update=update).surrogate == "clip"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"update": {"minibatches": 17}}, "update.minibatches 17 is more than rollout.prompts 16"),
        ({"model": {}}, "give either path"),
        ({"model": {"path": "x", **MODEL}}, "give either path"),
        ({"model": {"new": {"width": 10, "heads": 4}}}, "width 10 is not a multiple of heads 4"),
        (
            {"algorithm": "gpro"},
            "unknown preset 'gpro'; did you mean 'gspo'",
        ),
        (
            {"algorithm": {"preset": "grpo", "surrogate": "clp"}},
            "unknown surrogate 'clp'; did you mean 'clip'",
        ),
        (
            {"algorithm": {"preset": "grpo", "kl": {"estimator": "k4"}}},
            "unknown name 'k4'; did you mean 'k3'?",
        ),
        ({"eval": {"samples": 2, "ks": [4]}}, "pass@4 needs at least 4 samples, not 2"),
        ({"reward": {"memory_limit_gb": 0.01}}, "greater than or equal to 0.1"),
        ({"reward": {"environment": ["A=1"]}}, "environment lists names of variables and 'A=1' is none"),
        ({"reward": {"overlong_penalty": 1e16}}, "less than or equal to 1000000000000000"),
        ({"reward": {"length_penalty": 1e10}}, "less than or equal to 1000000000"),
        ({"reward": {"clip": [-1e300, 1e300]}}, "no reward is beyond ±1e+15"),
        ({"seed": 2**63}, "less than"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"steps": 0}, "greater than 0"),
        ({"optimizer": {"lr": float("nan")}}, "finite"),
        ({"task": {"name": "sorting", "level": float("inf")}}, "an option is neither text nor a finite number"),
        ({"task": {"name": "sorting", "level": b"\xff"}}, "an option is neither text nor a finite number"),
    ],
)
def test_nonsense_is_refused_with_its_reason(changes: dict[str, Any], told: str) -> None:
    assert told in reason(lambda: online(**changes))


@pytest.mark.parametrize("section", ["optimizer", "rollout", "update", "eval", "save", "engine", "reward", "critic"])
def test_no_section_takes_a_key_that_it_does_not_know(section: str) -> None:
    assert "Extra inputs are not permitted" in reason(lambda: online(**{section: {"colour": 1}}))


@pytest.mark.parametrize("truth", [True, False])
def test_true_is_not_one(truth: bool) -> None:
    sections = {"optimizer": "lr", "rollout": "top_k", "update": "target_kl", "reward": "memory_limit_gb"}
    for changes in ({"steps": truth}, *({section: {key: truth}} for section, key in sections.items())):
        assert "must be a number" in reason(lambda changes=changes: online(**changes))
    assert online(model={**MODEL, "gradient_checkpointing": truth}).model.gradient_checkpointing is truth


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(ValidationError):
        online().rollout.group = 1


def test_evaluation_samples_as_training_does_but_for_the_length() -> None:
    rollout = {"temperature": 0.7, "top_k": 5, "max_tokens": 9}
    sampling = online(rollout=rollout, eval={"max_tokens": 30}).eval_sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.7, 5, 30)


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "estimator": "k1"}}}, "expected gradient of zero"),
        (
            {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1, "place": "reward"}}},
            "only k1 in the reward has the gradient of the KL, not k3",
        ),
        (
            {"algorithm": {"preset": "grpo", "kl": {"coefficient": 0.1}}, "rollout": {"top_p": 0.9}},
            "lose different tokens",
        ),
        ({"rollout": {"max_tokens": 1024}}, "raise eval.max_tokens too"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        online(**sections)
    online(algorithm={"preset": "rloo", "kl": {"coefficient": 0.1, "place": "reward", "estimator": "k1"}})


def test_short_spellings_mean_the_long_ones() -> None:
    offline = {"loop": "offline", "steps": 1, "model": "some/model", "task": "sorting"}
    short = OfflineConfig.model_validate(offline)
    assert short == OfflineConfig.model_validate(
        {**offline, "model": {"path": "some/model"}, "task": {"name": "sorting"}}
    )
    functions = online(reward={"functions": ["a:f", {"use": "b:g", "weight": 2}]}).reward.plain()[0]
    assert functions == [("a:f", 1.0), ("b:g", 2.0)]


@settings(deadline=None)
@given(
    low=st.floats(0, 1),
    high=st.floats(0, 10),
    coefficient=st.floats(0, 1),
    estimator=st.sampled_from(["k2", "k3"]),
    weighting=st.sampled_from(sorted(WEIGHTINGS)),
)
def test_reading_a_resolved_algorithm_again_changes_nothing(
    low: float, high: float, coefficient: float, estimator: str, weighting: str
) -> None:
    written = {
        "preset": "dr_grpo",
        "weighting": weighting,
        "clip": {"low": low, "high": high},
        "kl": {"coefficient": coefficient, "estimator": estimator},
    }
    once = AlgorithmConfig.model_validate(written)
    assert once.options_of("clip") == {"low": low, "high": high}
    assert AlgorithmConfig.model_validate(once.model_dump()) == once
