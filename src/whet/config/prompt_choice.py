"""Sections of a recipe that choose prompts by how the policy does: curricula, and filtering by pass rate."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from whet.config.section import Positive, Section, Share


class CurriculumConfig(Section):
    """A difficulty curriculum: the task begins at its level, which rises with the pass rate of the rollouts."""

    shorthand: ClassVar[str] = "to_level"
    to_level: Positive  # the highest level
    promote_at: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of correct rollouts at which the level is raised
    window: Positive = 64  # of the newest so many rollouts at the level


class PassRateRange(Section):
    """Pass-rate filtering of stored prompts: in range is low < pass rate of the prompt's newest group < high."""

    low: Share = 0.0  # a prompt at or below it is skipped for a while
    high: Share = 1.0  # a prompt at or above it is skipped for a while
    rest_epochs: Positive = 1  # epochs in which it is skipped

    @model_validator(mode="after")
    def _ordered(self) -> PassRateRange:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        return self
