"""Schema of offloading: which models of an online run leave the GPU while others work."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from whet.config.section import Section

Offload = Literal["auto", "never", "always"]


class OffloadConfig(Section):
    """On a GPU: `always` keeps a model in the host's memory until it is used, `never` keeps it on the GPU.

    auto: offloaded only if together they would take most of the GPU's memory. It never changes a result. A plain value
    is that of all four.
    """

    reference: Offload = "auto"
    reward: Offload = "auto"  # the reward model
    critic: Offload = "auto"
    optimizer: Offload = "auto"  # the moments of policy and critic

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return dict.fromkeys(cls.model_fields, value) if isinstance(value, str) else value
