"""Seconds of a GRPO step whose reward waits, as one that asks a judge does: `python -m bench.reward_workers`.

The reward sleeps for each completion. More workers divide that time; shares that are scored as soon as they are sampled
hide the rest behind the sampling of the others. Prints the median of the steps after the first.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from whet.cli.progress import SilentProgress
from whet.recipe import read_recipe
from whet.train.start import start_run

REWARD = """
import time
def judge(completions, **columns):
    time.sleep({seconds} * len(completions))
    return [float(len(set(text))) for text in completions]
"""
RECIPE = """
steps: 4
model: {new: {family: llama, layers: 2, heads: 4, width: 64, context: 160}}
task: {name: sorting, level: 1}
algorithm: grpo
rollout: {prompts: 32, group: 8, max_tokens: 128}
engine: {max_sequences: 64}
eval: {every_steps: 0}
save: {every_steps: 100}
track: []
device: cpu
"""
CASES: dict[str, list[str]] = {
    "1 worker": [],
    "1 worker, 4 prompts a call": ["reward.prompts_per_call=4"],
    "4 workers": ["reward.workers=4"],
    "4 workers, 4 prompts a call": ["reward.workers=4", "reward.prompts_per_call=4"],
}


def measured(directory: Path, overrides: list[str]) -> dict[str, float]:
    functions = f"reward.functions=[{directory}/rewards.py:judge]"
    recipe = read_recipe(str(directory / "recipe.yaml"), [functions, *overrides])
    run = start_run(recipe, directory / "runs", lambda _config, _run: SilentProgress())
    rows = [json.loads(line) for line in (run / "timings.jsonl").read_text("utf-8").splitlines()][1:]
    return {name: statistics.median(row[f"seconds/{name}"] for row in rows) for name in ("rollout", "score", "step")}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "rewards.py").write_text(REWARD.format(seconds=seconds), encoding="utf-8")
        (directory / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        for case, overrides in CASES.items():
            times = measured(directory, overrides)
            print(case, *(f"{key} {value:.2f} s" for key, value in times.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
