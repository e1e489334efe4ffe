"""Where the real data sets lie on machines that have them; tests that need one skip where it is absent."""

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


def real(name: str) -> str:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not on this machine")
    return str(path)
