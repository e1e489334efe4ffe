"""Trains packaged recipes of loop off_policy on several seeds, one after the other, and adds each result to a file.

    python -m studies.control.off_policy --recipes control-fetch-reach --seeds 0-2 --to FILE

What stands in the file is not trained again. Each run is evaluated before its first step and after its last one, on
100 starts that no training episode has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studies.control.run import results
from whet.cli.progress import SilentProgress
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.start import start_run

EPISODES = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipes", default="control-pendulum-sac,control-fetch-reach")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--steps", type=int, default=0, help="of the loop, in place of those of the recipe")
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    for name in asked.recipes.split(","):
        for seed in range(int(first), int(last or first) + 1):
            if (name, seed) not in {(row["recipe"], row["seed"]) for row in results(asked.to)}:
                row = trained(name, seed, asked.steps)
                with asked.to.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row) + "\n")


def trained(name: str, seed: int, steps: int = 0) -> dict[str, Any]:
    """The result of one run."""
    steps = steps or read_recipe(name).config.steps
    keys: dict[str, int | str] = {"seed": seed, "steps": steps, "eval.every_steps": steps, "save.every_steps": steps}
    keys |= {"eval.episodes": EPISODES, "track": "[]"}
    recipe = read_recipe(name, [f"{key}={value}" for key, value in keys.items()])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        start_run(recipe, path.parent, lambda *_: SilentProgress(), path=path)
        rows = RunDirectory.open(path, is_writer=False).metrics()
    measured = ("eval/reward", "eval/reward_low", "eval/reward_high", "eval/success")
    return {
        "recipe": name,
        "seed": seed,
        "steps": rows[-1]["tokens"],
        "before": {key.removeprefix("eval/"): rows[0][key] for key in measured if key in rows[0]},
        "after": {key.removeprefix("eval/"): rows[-1][key] for key in measured if key in rows[-1]},
        "curve": [[round(row["tokens"]), round(row["reward/mean"], 2)] for row in rows if "reward/mean" in row],
    }


if __name__ == "__main__":
    main()
