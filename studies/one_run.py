"""One `whet train` of a study in a process of its own, and what is committed of it: numbers, no text of data."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.gather import entry
from whet.runs.directory import RunDirectory

CURVES = ("eval/accuracy", "reward/mean")
SAID = 2000  # characters of a failed run's log


def trained(recipe: str, keys: Sequence[str], told: Sequence[str], out: Path) -> dict[str, Any]:
    """Trains; the command as a reader would type it (with `told` for `keys`), evaluations and curves, or the failure.

    The log is beside `out`.
    """
    log = out.with_name(f"{out.name}.log")  # with_suffix would cut "lr-0.001"
    started = time.time()
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, "-m", "whet", "train", recipe, *keys, "--out", str(out)],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    found: dict[str, Any] = {"command": " ".join(["whet", "train", recipe, *told])}
    if code != 0:
        return {**found, "failed": log.read_text("utf-8", "replace")[-SAID:]}
    run = RunDirectory.open(out, is_writer=False)
    rows = run.metrics()
    curves = {key: [[row["step"], row[key]] for row in rows if key in row] for key in CURVES}
    return {**found, "minutes": (time.time() - started) / 60, **entry(run), "curves": curves}
