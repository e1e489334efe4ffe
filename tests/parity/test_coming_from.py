"""docs/coming-from.md has a row for every setting of TRL, and none for settings that TRL does not have."""

import dataclasses

import pytest
from transformers import TrainingArguments

from tests.config.coming_from import TEXT, rows

trl = pytest.importorskip("trl")
pytestmark = pytest.mark.parity
INHERITED = {field.name for field in dataclasses.fields(TrainingArguments)}


@pytest.mark.parametrize("config", ["GRPOConfig", "DPOConfig", "SFTConfig", "RewardConfig"])
def test_every_field_of_trl_has_a_row(config: str) -> None:
    fields = {field.name for field in dataclasses.fields(getattr(trl, config))} - INHERITED
    tables = [row for row in rows() if row.section == config]
    named = {name for row in tables for name in row.names}
    assert fields - named == set()
    values = {"sigmoid", "grpo"}  # the tables below list values of loss_type
    first = next((i for i, row in enumerate(tables) if values & set(row.names) or "(default)" in row.elsewhere), None)
    gone = {name for row in tables[:first] for name in row.names} - fields
    assert gone <= {"margin"}  # a column of the data


def test_every_common_row_is_a_training_argument() -> None:
    named = {name for row in rows() if row.section == "TrainingArguments" for name in row.names}
    # Of older versions, a callback, and an argument of the trainer itself.
    assert named - INHERITED == {"warmup_ratio", "EarlyStoppingCallback", "eval_dataset"}


def test_the_defaults_of_trl_that_the_page_states() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(trl.GRPOConfig)}
    stated = {
        "learning_rate": 1e-6,
        "lr_scheduler_type": "linear",
        "adam_beta2": 0.999,
        "weight_decay": 0.0,
        "seed": 42,
    }
    stated |= {"loss_type": "dapo", "epsilon": 0.2, "use_bias_correction_kl": True, "max_completion_length": 512}
    stated |= {"vllm_importance_sampling_correction": True, "gradient_checkpointing": True, "eval_strategy": "no"}
    assert {name: defaults[name] for name in stated} == stated
    rates = [
        next(field.default for field in dataclasses.fields(config) if field.name == "learning_rate")
        for config in (trl.DPOConfig, trl.SFTConfig, trl.RewardConfig)
    ]
    assert rates == [1e-6, 2e-5, 1e-4]


def test_the_page_names_the_version_that_is_compared_with() -> None:
    assert f"TRL {trl.__version__}" in TEXT
