"""Trains chat models on verifiable tasks and writes what is committed of the runs: numbers, and no text of the data.

    python -m studies.verifiable.run --models DIR --data DIR --runs DIR --to FILE [--only gsm8k,mbpp] [--seeds 0,1]

DIR/NAME of --models holds a model directory, --data the files that the table below names. Runs of one call share the
GPU, --parallel of them at a time, so their seconds are no benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studies.one_run import trained

HERE = Path(__file__).resolve().parent
SMALL, CODER = "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A recipe of this folder, the model that it trains, and the keys that name files."""

    recipe: str
    model: str
    files: Mapping[str, str] = field(default_factory=dict)  # key → file in the directory of data


STUDIES = {
    "gsm8k": Study(
        recipe="gsm8k",
        model=CODER,
        files={"task.path": "gsm8k/train.jsonl.gz", "eval.data": "gsm8k/test.jsonl.gz"},
    ),
    "word-problems": Study(
        recipe="word-problems", model=SMALL, files={"task.path": "math_word_problems/mawps.jsonl.gz"}
    ),
    "countdown": Study(recipe="countdown", model=CODER),
    "spell-backward": Study(recipe="spell-backward", model=CODER),
    "spell-backward-small": Study(recipe="spell-backward", model=SMALL),
    "mbpp": Study(recipe="mbpp", model=CODER, files={"task.path": "mbpp/mbpp.jsonl.gz"}),
}


def train(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one model; returns its name, command, evaluations and curves."""
    study = STUDIES[name]
    files = [f"{key}={options.data / file}" for key, file in study.files.items()]
    keys = [f"model={options.models / study.model}", *files, f"seed={seed}", *options.override]
    told = [f"model={study.model}", *(f"{key}={file}" for key, file in study.files.items()), f"seed={seed}"]
    found = trained(f"studies/verifiable/{study.recipe}.yaml", keys, told, options.runs / f"{name}-{seed}")
    return {"study": name, "seed": seed, "overrides": list(options.override), **found}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("models", "data", "runs", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default=",".join(STUDIES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE for every run")
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(name, int(seed)) for seed in options.seeds.split(",") for name in options.only.split(",")]
    results = []
    with ThreadPoolExecutor(options.parallel) as pool:
        for done in as_completed([pool.submit(train, name, seed, options) for name, seed in jobs]):
            results.append(done.result())
            options.to.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
