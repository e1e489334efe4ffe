"""The command in this process, beside the library."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def command(whet: Callable[..., Any]) -> Callable[..., Any]:
    return whet
