"""Trains the same small GPT-2 on the same text by several methods, and writes their curves.

    python -m studies.gpt2_lab.run --text FILE --runs DIR --to FILE [--only lm,grpo] [--seeds 0,1,2] [--parallel 2]

Results of other methods and seeds that the file already has stay in it, and a good one where its repetition fails.
`--only` takes names and patterns (`'attention-*'`).
`--text`: tiny Shakespeare (a file, or the name tiny-shakespeare). Every method reads the same text with the same
characters and the same model; targets are the characters of the text that a loss or a reward compares with. FLOPs are
6 for each weight and token of a training pass, 2 for each token that is sampled or prefilled.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.latent_attention import FAMILY, QUICK, configs
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


def _reinforced(about: str, *keys: str, recipe: str = "grpo-char") -> Method:
    return Method(recipe=recipe, keys=keys, about=about)


HORIZON_4 = ("rollout.max_tokens=4", "eval.max_tokens=4", "task.prompt_characters=28", "rollout.prompts=128")
METHODS: Mapping[str, Method] = {
    "lm": Method(recipe="lm-char", keys=(*SUPERVISED, *SHORT), about="cross-entropy"),
    "denoise": Method(recipe="lm-denoise", keys=(*SUPERVISED, *SHORT), about="masked diffusion"),
    "grpo": _reinforced("GRPO, dense rewards"),
    "ppo": _reinforced("PPO, dense rewards", recipe="ppo-char"),
    "grpo-no-entropy": _reinforced("GRPO without the entropy bonus", "algorithm.entropy.coefficient=0"),
    "grpo-horizon-4": _reinforced("GRPO, horizon 4, half as many prompts", *HORIZON_4),
    "grpo-horizon-4-no-prefix": _reinforced(
        "the same, baseline over all rollouts of a group", *HORIZON_4, "algorithm.to_go_leave_one_out.prefix=false"
    ),
    "grpo-group-4": _reinforced("GRPO, groups of 4, 4 × the prompts", "rollout.group=4", "rollout.prompts=1024"),
    "grpo-plusminus": _reinforced("GRPO, rewards ±1", "reward.tokens.mode=plusminus"),
    "grpo-bigram-kl": _reinforced(
        "GRPO, KL penalty to the bigram reference in place of the bonus",
        *("algorithm.entropy.coefficient=0", "algorithm.kl.coefficient=0.05"),
        *("algorithm.kl.reference=bigram", "algorithm.kl.anneal_tokens=200000"),
    ),
    "grpo-partial": _reinforced("GRPO, partial credit 0.02 × log-prob", "reward.tokens.partial_logprob=0.02"),
}
RECIPES: Mapping[str, Method] = {
    **{name: Method(recipe=name) for name in ("lm-char", "lm-bpe", "lm-char-gpu")},
    "lm-char-muon": Method(recipe="lm-char", keys=("optimizer.name=muon",)),
    "lm-char-gpu-gpt2": Method(recipe="lm-char-gpu", keys=("model.new.family=gpt2", "optimizer.weight_decay=4")),
}
STDLIB = ("task.path=python-stdlib", "steps=1500", "eval.every_steps=500", "optimizer.weight_decay=0.1")
LABELS = {"plain": "multi-head (MHA)", "grouped": "grouped-query (GQA)", "latent": "latent (MLA)"}
ATTENTION: Mapping[str, Method] = {
    f"attention-{name}": Method(
        recipe="lm-char-gpu",
        keys=(
            *STDLIB,
            f"model.new.family={FAMILY[name]}",
            f"model.new.mlp_width={shape.mlp_width}",
            *((f"model.new.kv_heads={shape.kv_heads}",) if name == "grouped" else ()),
        ),
        about=LABELS[name],
    )
    for name, shape in configs(replace(QUICK, layers=6, heads=6, width=384)).items()  # as lm-char-gpu
}
MUON = {"muon": replace(ATTENTION["attention-plain"], keys=(*ATTENTION["attention-plain"].keys, "optimizer.name=muon"))}
ALL = {**METHODS, **RECIPES, **ATTENTION, **MUON}
MAIN = ("lm", "denoise", "grpo", "ppo")


def train(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one model; returns its command, evaluations and curves."""
    method = ALL[name]
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
    """Metrics at the steps of evaluations, and what a step costs in targets and FLOPs per weight."""
    rows = run.metrics()
    config = parse_yaml(run.config_yaml(), where=str(run.path))
    every = config["eval"]["every_steps"]
    return {
        "curves": {
            key: [[row["step"], row[key]] for row in rows if key in row and row["step"] % every == 0] for key in CURVES
        },
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


def chosen(only: str) -> list[str]:
    """The methods that `--only` names, in its order; a ValueError for a name or a pattern of none."""
    names: list[str] = []
    for pattern in only.split(","):
        found = fnmatch.filter(ALL, pattern)
        if not found:
            raise ValueError(f"no method {pattern!r}: choose of {', '.join(ALL)}")
        names += [name for name in found if name not in names]
    return names


def kept(earlier: Mapping[str, Any] | None, new: Mapping[str, Any]) -> Mapping[str, Any]:
    """The new result of a run, but an earlier good one if the new one failed."""
    return earlier if earlier is not None and "failed" in new and "failed" not in earlier else new


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="tiny-shakespeare")
    for name in ("runs", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default=",".join(METHODS), help=f"of {', '.join(ALL)}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE for every run")
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    try:
        names = chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    jobs = [(name, int(seed)) for seed in options.seeds.split(",") for name in names]
    earlier = json.loads(options.to.read_text("utf-8")) if options.to.exists() else {"baselines": [], "results": []}
    levels = baselines(options.text) if METHODS.keys() & set(names) else earlier["baselines"]
    results: dict[tuple[str, int], Mapping[str, Any]] = {
        (one["method"], one["seed"]): one for one in earlier["results"]
    }
    with ThreadPoolExecutor(options.parallel) as pool:
        for done in as_completed([pool.submit(train, name, seed, options) for name, seed in jobs]):
            one = done.result()
            if "failed" in one:
                sys.stderr.write(f"{one['method']} with seed {one['seed']} failed: {one['failed'][-300:]}\n")
            key = one["method"], one["seed"]
            results[key] = kept(results.get(key), one)
            options.to.write_text(written(levels, list(results.values())), "utf-8")


def written(levels: Sequence[Mapping[str, float]], results: Sequence[Mapping[str, Any]]) -> str:
    """The results as JSON, a run to a line."""
    lines = ",\n".join(json.dumps(one) for one in results)
    return f'{{"baselines": {json.dumps(levels)},\n"results": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    main(sys.argv[1:])
