"""Trains the same small GPT-2 on the same text by several methods, and writes their curves.

    python -m studies.gpt2_lab.run --text FILE --runs DIR --to FILE [--only lm,grpo] [--seeds 0,1,2] [--parallel 2]

`--text`: tiny Shakespeare (a file, or the name tiny-shakespeare). Every method reads the same text with the same
characters and the same model; targets are the characters of the text that a loss or a reward compares with. FLOPs are
6 for each weight and token of a training pass, 2 for each token that is sampled or prefilled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.gather import entry
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.ngrams import ngram_baseline
from whet.models.text.tokenizers import character_tokenizer
from whet.recipe import parse_yaml
from whet.runs.directory import RunDirectory
from whet.train.setup.corpora import token_file

CONTEXT = 32
CURVES = ("eval/token_accuracy", "eval/bits_per_character", "eval/bound_bits_per_character", "entropy", "tokens/match")
SUPERVISED = ("model.new.family=gpt2", "model.new.layers=3", f"model.new.context={CONTEXT}", "batch_size=128")
SHORT = ("task.prompt_characters=16", "task.eval_windows=400", "eval.max_tokens=8", "eval.every_steps=50", "steps=600")


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A packaged recipe with the keys that this study changes."""

    recipe: str
    keys: tuple[str, ...] = ()
    about: str = ""


METHODS: Mapping[str, Method] = {
    "lm": Method(recipe="lm-char", keys=(*SUPERVISED, *SHORT), about="cross-entropy"),
    "denoise": Method(recipe="lm-denoise", keys=(*SUPERVISED, *SHORT), about="masked diffusion"),
    "grpo": Method(recipe="grpo-char", about="GRPO, dense rewards"),
    "ppo": Method(recipe="ppo-char", about="PPO, dense rewards"),
    "grpo-no-entropy": Method(
        recipe="grpo-char", keys=("algorithm.entropy.coefficient=0",), about="without the entropy bonus"
    ),
    "grpo-horizon-4": Method(
        recipe="grpo-char",
        keys=("rollout.max_tokens=4", "eval.max_tokens=4", "task.prompt_characters=28", "rollout.prompts=128"),
        about="horizon 4, half as many prompts",
    ),
    "grpo-horizon-4-no-prefix": Method(
        recipe="grpo-char",
        keys=(
            *("rollout.max_tokens=4", "eval.max_tokens=4", "task.prompt_characters=28", "rollout.prompts=128"),
            "algorithm.to_go_leave_one_out.prefix=false",
        ),
        about="horizon 4, baseline over all rollouts of a group",
    ),
    "grpo-group-4": Method(
        recipe="grpo-char", keys=("rollout.group=4", "rollout.prompts=1024"), about="groups of 4, 4 × the prompts"
    ),
    "grpo-plusminus": Method(recipe="grpo-char", keys=("reward.tokens.mode=plusminus",), about="rewards ±1"),
    "grpo-bigram-kl": Method(
        recipe="grpo-char",
        keys=(
            *("algorithm.entropy.coefficient=0", "algorithm.kl.coefficient=0.05"),
            *("algorithm.kl.reference=bigram", "algorithm.kl.anneal_tokens=200000"),
        ),
        about="KL penalty to the bigram reference in place of the bonus",
    ),
    "grpo-partial": Method(
        recipe="grpo-char", keys=("reward.tokens.partial_logprob=0.02",), about="partial credit 0.02 × log-prob"
    ),
}
RECIPES: Mapping[str, Method] = {name: Method(recipe=name) for name in ("lm-char", "lm-bpe", "lm-char-gpu")}
MAIN = ("lm", "denoise", "grpo", "ppo")


def train(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one model; returns its command, evaluations and curves."""
    method = {**METHODS, **RECIPES}[name]
    out = options.runs / f"{name}-{seed}"
    keys = [*method.keys, f"seed={seed}", *options.override]
    command = ["whet", "train", method.recipe, f"task.path={options.text}", *keys]
    started = time.time()
    with (options.runs / f"{name}-{seed}.log").open("wb") as log:
        code = subprocess.run(
            [sys.executable, "-m", *command, "--out", str(out)], stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    told = " ".join(["whet", "train", method.recipe, *method.keys, f"seed={seed}", *options.override])
    found: dict[str, Any] = {"method": name, "seed": seed, "command": told}
    if code != 0:
        return {**found, "failed": (options.runs / f"{name}-{seed}.log").read_text("utf-8", "replace")[-2000:]}
    run = RunDirectory.open(out, is_writer=False)
    return {**found, "minutes": (time.time() - started) / 60, **entry(run), **curves(run)}


def curves(run: RunDirectory) -> dict[str, Any]:
    """Metrics by step, and what a step costs in targets and FLOPs per weight."""
    rows = run.metrics()
    config = parse_yaml(run.config_yaml(), where=str(run.path))
    return {
        "curves": {key: [[row["step"], row[key]] for row in rows if key in row] for key in CURVES},
        **cost(config),
    }


def cost(config: Mapping[str, Any]) -> dict[str, float]:
    """Of a step: characters of the text that are compared with, and FLOPs divided by the number of weights."""
    if config["loop"] == "offline":
        tokens = config["batch_size"] * config["model"]["new"]["context"]
        return {"targets": tokens, "flops_per_weight": 6 * tokens}
    rollout, task = config["rollout"], config["task"]
    prompt = (task["shortest_prompt"] + task["prompt_characters"]) / 2
    read = rollout["prompts"] * (prompt + rollout["group"] * (rollout["max_tokens"] - 1))
    return {"targets": rollout["prompts"] * rollout["max_tokens"], "flops_per_weight": 8 * read}


def baselines(text: str) -> list[dict[str, float]]:
    """Unigram, bigram and trigram on the same split."""
    task = CorpusTask(path=text)
    tokens = token_file(task, character_tokenizer(task.alphabet))
    found = [
        ngram_baseline(tokens.training, tokens.held_out, order=order, vocab_size=tokens.vocab_size)
        for order in (1, 2, 3)
    ]
    return [{"order": one.order, "loss": one.loss, "accuracy": one.accuracy} for one in found]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="tiny-shakespeare")
    for name in ("runs", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE for every run")
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    jobs = [(name, int(seed)) for seed in options.seeds.split(",") for name in options.only.split(",")]
    content: dict[str, Any] = {"baselines": baselines(options.text), "results": []}
    with ThreadPoolExecutor(options.parallel) as pool:
        for done in as_completed([pool.submit(train, name, seed, options) for name, seed in jobs]):
            content["results"].append(done.result())
            options.to.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
