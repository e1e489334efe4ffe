"""Schema of offloading: where the models of an online run are while others work."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from whet.config.section import Section

Place = Literal["auto", "device", "host"]


class PlacementConfig(Section):
    """On a GPU: always there, or in the host's memory until it is their turn. It never changes a result.

    auto: on the GPU, unless together they would take most of its memory. A plain value is that of all four.
    """

    reference: Place = "auto"
    reward: Place = "auto"  # the reward model
    critic: Place = "auto"
    optimizer: Place = "auto"  # the moments of policy and critic

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, str) else value
