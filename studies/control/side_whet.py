"""One training of whet, in a process of its own: `python -m studies.control.side_whet ENVIRONMENT SEED [STEPS]`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from studies.control.cases import recipe
from whet.cli.progress import SilentProgress
from whet.recipe import Recipe, validate
from whet.runs.directory import RunDirectory
from whet.train.start import start_run


class Clock(SilentProgress):
    """Processor and wall-clock seconds at the end of every step."""

    def __init__(self) -> None:
        self.processor: list[float] = []
        self.wall: list[float] = []

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:  # noqa: ARG002
        self.processor.append(time.process_time())
        self.wall.append(time.perf_counter())


def main(environment: str, seed: str, steps: str = "") -> None:
    written, clock = recipe(environment, int(seed), int(steps) if steps else None), Clock()
    config = validate(written, where=environment)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        start_run(Recipe(name=environment, config=config, written=written), path.parent, lambda *_: clock, path=path)
        rows = RunDirectory.open(path, is_writer=False).metrics()
    curve = [[round(row["tokens"]), round(row["reward/mean"], 2)] for row in rows if "reward/mean" in row]
    # Without the first step, and without the last, whose time has the evaluation in it.
    count = curve[-2][0] - curve[0][0]
    result = {
        "side": "whet",
        "environment": environment,
        "seed": int(seed),
        "steps": rows[-1]["tokens"],
        "held_out": rows[-1]["eval/reward"],
        "processor_rate": count / (clock.processor[-2] - clock.processor[0]),
        "wall_rate": count / (clock.wall[-2] - clock.wall[0]),
        "curve": curve[:: max(1, len(curve) // 40)],
    }
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
