"""Trains both sides in turn, one process at a time with one thread, and adds each result to a file.

    python -m studies.control.run --peer PYTHON --environments CartPole-v1 --seeds 0-9 --to FILE

PYTHON is an interpreter with stable-baselines3. What stands in the file is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="", help="an interpreter with stable-baselines3; without it only whet trains")
    parser.add_argument("--environments", default="CartPole-v1")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--steps", default="", help="rollouts, in place of those of the case")
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    done = {(row["side"], row["environment"], row["seed"]) for row in results(asked.to)}
    for environment in asked.environments.split(","):
        for seed in range(int(first), int(last or first) + 1):
            for side, python in (("whet", sys.executable), ("sb3", asked.peer)):
                if python and (side, environment, seed) not in done:
                    trained(side, python, [environment, str(seed), *filter(None, [asked.steps])], asked.to)


def trained(side: str, python: str, words: list[str], file: Path) -> None:
    """Trains, and appends the result."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [python, "-m", f"studies.control.side_{side}", *words]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    with file.open("a", encoding="utf-8") as lines:
        lines.write(done.stdout.strip().splitlines()[-1] + "\n")


def results(file: Path) -> list[dict[str, Any]]:
    """All results so far."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
