"""The loops that one run can have, and the one key that a plain value of a section stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from whet.config import OfflineConfig, OnlineConfig
from whet.config.collecting import CollectConfig

Training = OnlineConfig | OfflineConfig
Config = Training | CollectConfig
LOOPS: dict[str, type[Config]] = {"online": OnlineConfig, "offline": OfflineConfig, "collect": CollectConfig}
WHOLE = {"algorithm": "preset", "model": "path", "task": "name", "objective": "name", "data": "path"}


def loop_of(value: Any) -> str:
    """The loop of a run that is written down, or that was read already."""
    if isinstance(value, Config):
        return value.loop
    return str(value.get("loop", "online")) if isinstance(value, Mapping) else "online"


AnyConfig = Annotated[
    Annotated[OnlineConfig, Tag("online")]
    | Annotated[OfflineConfig, Tag("offline")]
    | Annotated[CollectConfig, Tag("collect")],
    Discriminator(loop_of),
]
