"""Trains the same tasks with all weights and with LoRA, and with master weights in fp32, in bf16 and offloaded.

    python -m studies.weights.run master-weights --runs DIR --to FILE
    python -m studies.weights.run sweep --models DIR --data DIR --runs DIR --to FILE
    python -m studies.weights.run lora --models DIR --data DIR --runs DIR --to FILE --sweep FILE

`sweep` tries learning rates on rows that `lora` trains on, without its held-out rows, one seed each; `lora` then trains
three seeds of both, each at the rate with the best accuracy in the sweep. DIR/NAME of --models holds a model directory.
Runs of one call share the machine, --parallel of them at a time, so their seconds are no benchmark.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from studies.one_run import trained
from studies.verifiable.run import CODER, SMALL
from whet.tasks.loading import load_task

SORTING, PROBLEMS = "grpo-sorting", "studies/verifiable/word-problems.yaml"
ROWS = "math_word_problems/mawps.jsonl.gz"
HELD_OUT, VALIDATION = 400, 200  # rows of the results, and of the sweep
LORA = ("model.lora=16",)
RATES = {"full": (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), "lora": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)}
MASTER_WEIGHTS = {
    "fp32": (),
    "fp32, moments in bf16": ("optimizer.name=adamw_bf16",),
    "bf16": ("optimizer.master_weights=bf16",),
    "bf16, moments in bf16": ("optimizer.master_weights=bf16", "optimizer.name=adamw_bf16"),
    "offload": ("optimizer.master_weights=offload",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One run of a study."""

    recipe: str
    what: str  # is compared
    model: str = ""
    rate: float = 0.0  # peak learning rate; 0: the recipe's
    seed: int = 0
    keys: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        parts = [self.model.partition("-")[0], self.what.replace(",", "").replace(" ", "-"), f"lr-{self.rate:g}"]
        return "-".join([*(part for part in parts if part and part != "lr-0"), f"seed-{self.seed}"])


def arms(study: str, options: argparse.Namespace) -> Iterator[Arm]:
    """The runs of a study."""
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if study == "master-weights":
        for seed in seeds:
            for what, keys in MASTER_WEIGHTS.items():
                yield Arm(recipe=SORTING, what=what, seed=seed, keys=("model.new.family=llama", *keys))
        return
    for model in options.only.split(","):
        for what, rates in RATES.items():
            keys = LORA if what == "lora" else ()
            chosen = rates if study == "sweep" else (options.rates[model, what],)
            for rate in chosen:
                for seed in seeds[:1] if study == "sweep" else seeds:
                    yield Arm(recipe=PROBLEMS, what=what, model=model, rate=rate, seed=seed, keys=keys)


def best_rates(found: Sequence[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The learning rate with the best last accuracy, of each model and each way to train; the smaller one of equals."""
    best: dict[tuple[str, str], tuple[float, float]] = {}
    for one in found:
        if "failed" in one:
            continue
        key, accuracy = (one["model"], one["what"]), one["curves"]["eval/accuracy"][-1][1]
        best[key] = max(best.get(key, (-1.0, 0.0)), (accuracy, -one["rate"]))
    return {key: -rate for key, (_, rate) in best.items()}


def sweep_rows(data: Path, to: Path) -> Path:
    """The problems that are trained on when HELD_OUT ones are held out: a sweep never sees those."""
    path = data / ROWS
    task = load_task("maths", {"path": str(path), "held_out_rows": HELD_OUT})
    held = {example.columns["idx"] for example in task.held_out(HELD_OUT)}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["idx"] not in held]
    to.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return to


def train(arm: Arm, options: argparse.Namespace) -> dict[str, Any]:
    """One run; the numbers that are committed of it."""
    own = [f"seed={arm.seed}", *arm.keys, *([f"optimizer.lr={arm.rate:g}"] if arm.rate else []), *options.override]
    here, told = list(own), list(own)
    if arm.model:
        here += [f"model.path={options.models / arm.model}", f"task.path={options.rows}"]
        told += [f"model.path={arm.model}", f"task.path={ROWS}"]
    out = options.runs / arm.name
    found = {**asdict(arm), **trained(arm.recipe, here, told, out)}
    if options.discard:
        shutil.rmtree(out, ignore_errors=True)
    return found


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.study == "sweep":
        options.rows = sweep_rows(options.data, options.runs / "rows.jsonl")
        options.override = [*options.override, f"task.held_out_rows={VALIDATION}", f"eval.examples={VALIDATION}"]
    elif options.study == "lora":
        options.rows = options.data / ROWS
    results = []
    with ThreadPoolExecutor(options.parallel) as pool:
        running = [pool.submit(train, arm, options) for arm in arms(options.study, options)]
        for done in as_completed(running):
            results.append(done.result())
            sys.stdout.write(_line(results[-1]) + "\n")
            sys.stdout.flush()
            ordered = sorted(results, key=lambda one: (one["model"], one["what"], one["rate"], one["seed"]))
            options.to.write_text(json.dumps(ordered, indent=1) + "\n", "utf-8")


def _line(found: dict[str, Any]) -> str:
    name = f"{found['model']} {found['what']} lr {found['rate']:g} seed {found['seed']}"
    if "failed" in found:
        return f"{name}: failed: {found['failed'][-300:]}"
    curve = [f"{value:.3f}" for _, value in found["curves"]["eval/accuracy"]]
    return f"{name}: accuracy {' '.join(curve)} in {found['minutes']:.1f} min"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("master-weights", "sweep", "lora"))
    for name in ("runs", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("models", "data"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--only", default=f"{SMALL},{CODER}", help="models")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--sweep", type=Path, help="for `lora`: what `sweep` wrote")
    parser.add_argument("--discard", action="store_true", help="remove the directory of a run that has ended")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE for every run")
    options = parser.parse_args(arguments)
    if options.study != "master-weights" and not (options.models and options.data):
        parser.error(f"{options.study} needs --models and --data")
    if options.study == "lora":
        if not options.sweep:
            parser.error("lora needs --sweep: the file that `sweep` wrote")
        options.rates = best_rates(json.loads(options.sweep.read_text("utf-8")))
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
