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
    assert named - INHERITED == {"warmup_ratio", "EarlyStoppingCallback"}  # of older versions, and no argument


def test_the_page_names_the_version_that_is_compared_with() -> None:
    assert f"TRL {trl.__version__}" in TEXT
