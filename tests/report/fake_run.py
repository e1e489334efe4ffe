"""Run directories that look like real ones: made with the real `Run`, from a seed."""

import json
import math
import random
from pathlib import Path

from whet.evaluate.statistics import wilson
from whet.runs.directory import RunDirectory

CONFIG = """\
loop: online
steps: {steps}
seed: 0
model:
  new: {{family: gpt2, layers: 4, heads: 4, width: 128, context: 64, tokenizer: characters}}
task: {{name: reverse, length: 6}}
algorithm:
  preset: grpo
  advantage: group_normalised
  surrogate: clipped
  weighting: per_sequence
  kl: {{coefficient: 0.02, estimator: k3, place: loss}}
rollout: {{prompts: 16, group: 8, max_tokens: 16, temperature: 1.0}}
optimizer: {{lr: 5.0e-05, schedule: cosine, warmup_steps: 10}}
eval: {{every_steps: {every}, examples: 200, samples: 4, ks: [4]}}
"""

WORDS = ("lantern", "whetstone", "granite", "harbour", "meadow", "compass", "thimble", "orchard", "violet", "anchor")


def online_run(root: Path, *, steps: int = 200, finished: bool = True, evals: bool = True, seed: int = 0) -> Path:
    """Reinforcement learning that goes well: accuracy from about 30 % to about 95 %."""
    draw = random.Random(seed)
    every = max(1, steps // 10)
    run = RunDirectory.create(
        root, "grpo-reverse", CONFIG.format(steps=steps, every=every), path=root / "20260314-101500-grpo-reverse"
    )
    recorded = steps if finished else steps * 2 // 3
    with run:
        for step in range(recorded + 1):
            skill = 0.3 + 0.66 / (1 + math.exp(-9 * (step / steps - 0.35))) - 0.025
            metrics = _online_metrics(draw, skill, step, steps) if step else {}
            if evals and step % every == 0:
                metrics |= _evaluate(run, draw, skill, step)
            run.log(step, metrics)
            if step:
                rollout, update = 0.31 + 0.03 * draw.random(), 0.22 + 0.02 * draw.random()
                times = {"seconds/rollout": rollout, "seconds/score": 0.004, "seconds/annotate": 0.05}
                times |= {"seconds/update": update, "seconds/step": rollout + update + 0.06}
                run.log_times(step, times | {"tokens_per_second": 128 * 9 / (rollout + update + 0.06)})
        run.record(recorded, [row for word in ("whetstone", "granite", "anchor") for row in _group(draw, word, 8)])
        if finished:
            evaluated = [row for row in run.metrics() if "eval/accuracy" in row]
            before, after = (
                {k: v for k, v in evaluated[i].items() if k != "step"} if evaluated else {} for i in (0, -1)
            )
            run.finish(_results("grpo-reverse", "online", steps, before, after))
    return run.path


def supervised_run(root: Path, *, steps: int = 300) -> Path:
    """A supervised run: losses, no rollouts, no accuracy."""
    draw = random.Random(1)
    run = RunDirectory.create(
        root, "sft", f"loop: offline\nsteps: {steps}\nseed: 3\n", path=root / "20260314-111500-sft-reverse"
    )
    with run:
        for step in range(steps + 1):
            fade = math.exp(-4 * step / steps)
            metrics = {"eval/loss": 0.42 + 2.4 * fade} if step % (steps // 10) == 0 else {}
            if step:
                metrics |= {
                    "loss": 0.4 + 2.5 * fade + draw.gauss(0, 0.08),
                    "grad_norm": 0.5 + fade + 0.1 * draw.random(),
                }
                metrics |= {"lr": 3e-4 * min(1, step / 20) * (1 - step / steps), "tokens": 4096}
                run.log_times(
                    step, {"seconds/step": 0.2 + 0.01 * draw.random(), "tokens_per_second": 20_000 + draw.gauss(0, 500)}
                )
            run.log(step, metrics)
        run.finish(_results("sft-reverse", "offline", steps, {"eval/loss": 2.82}, {"eval/loss": 0.464}))
    return run.path


def _online_metrics(draw, skill, step, steps):
    shape = min(1.0, skill + 0.1)
    return {
        "reward/mean": skill + draw.gauss(0, 0.05),
        "reward/std": 0.4,
        "parts/exact": skill + draw.gauss(0, 0.05),
        "parts/format": shape + draw.gauss(0, 0.01),
        "loss": draw.gauss(0, 0.01) + 0.02 * skill,
        "kl": 0.12 * (step / steps) ** 0.6 + abs(draw.gauss(0, 0.006)),
        "entropy": 0.9 * math.exp(-2.2 * step / steps) + draw.gauss(0, 0.02),
        "length/mean": 9.5 - 1.5 * step / steps + draw.gauss(0, 0.2),
        "truncated": max(0.0, 0.12 * (1 - skill) + draw.gauss(0, 0.01)),
        "groups/zero_variance": min(1.0, max(0.0, (skill - 0.3) * 0.8 + draw.gauss(0, 0.06))),
        "clip_fraction": max(0.0, 0.03 + draw.gauss(0, 0.008)),
        "grad_norm": 0.8 + abs(draw.gauss(0, 0.15)) - 0.3 * step / steps,
        "lr": 5e-5 * min(1, step / max(1, steps // 20)) * 0.5 * (1 + math.cos(math.pi * step / steps)),
        "mismatch/max": 10 ** draw.uniform(-6, -5.4),
        "mismatch/mean": 10 ** draw.uniform(-7.3, -7),
        "tokens": 1100,
    }


def _evaluate(run, draw, skill, step):
    rows = []
    for index in range(200):
        word = f"{WORDS[index % len(WORDS)]}{'' if index < len(WORDS) else index}"
        right = random.Random(f"example {index}").random() < skill  # an example once learned stays learned
        said = word[::-1] if right else "".join(draw.sample(word, len(word)))
        rows.append(
            {"id": f"reverse-{index}", "prompt": f"reverse: {word}\n", "answer": word[::-1], "text": said}
            | {"correct": right, "tokens": len(said) + 1, "finish": "stop" if index % 17 else "length", "sample": 0}
        )
    run.record_answers(step, rows)
    greedy, sampled = (
        wilson(sum(row["correct"] for row in rows), 200),
        wilson(200 * min(1, skill + 0.2 * (1 - skill)), 200),
    )
    named = {"eval/accuracy": greedy, "eval/pass@4": sampled}
    flat = {
        f"{name}{end}": value
        for name, i in named.items()
        for end, value in (("", i.mean), ("_low", i.low), ("_high", i.high))
    }
    return flat | {"eval/length": 8.9 - 0.5 * skill, "eval/truncated": 0.06 * (1 - skill)}


def _group(draw, word, size):
    rows = []
    for index in range(size):
        right = word == "anchor" or index % 3 != 1
        said = word[::-1] if right else word[:0:-1] + draw.choice("xyz")
        logprobs = [-abs(draw.gauss(0, 0.02)) for _ in said] + [-0.001]
        if not right:
            logprobs[-2] = -2.7
        prompt = [ord(c) for c in f"reverse: {word}\n"]
        rows.append(
            {"id": f"train-{word}", "prompt": f"reverse: {word}\n", "text": said, "finish": "stop", "version": 199}
            | {"tokens": prompt + [ord(c) for c in said] + [0]}
            | {"mask": [False] * len(prompt) + [True] * (len(said) + 1), "logprobs": [0.0] * len(prompt) + logprobs}
            | {"reward": 1.0 if right else 0.1, "parts": {"exact": float(right), "format": 1.0}}
            | {"advantage": (0.0 if word == "anchor" else 0.577 if right else -1.732)}
        )
    return rows


def _results(recipe, loop, steps, before, after):
    machine = {"system": "Linux 6.8 x86_64", "processor": "2 cores", "memory": "8 GiB", "device": "cpu"}
    versions = {"whet": "0.1.0", "python": "3.12.3", "torch": "2.12.0", "numpy": "2.2.1"}
    best = {"step": steps, "accuracy": after["eval/accuracy"]} if "eval/accuracy" in after else {"step": steps}
    return {
        **{"recipe": recipe, "loop": loop, "steps": steps, "seed": 0, "before": before, "after": after},
        **{"best": best, "seconds": 0.62 * steps, "machine": machine, "versions": versions},
    }


def hostile_run(root: Path, payload: str) -> Path:
    """Every text that a run can hold is `payload`."""
    run = RunDirectory.create(root, "hostile", f"steps: 2\nnote: {json.dumps(payload)}\n", path=root / "hostile")
    answer = {"id": payload, "prompt": payload, "answer": payload, "tokens": 3, "finish": "length", "sample": 0}
    rollout = {"id": payload, "prompt": payload, "text": payload, "finish": "length", "version": 0, "reward": 1.0}
    numbers = {
        "tokens": [1, 2],
        "mask": [False, True],
        "logprobs": [0.0, -1.0],
        "parts": {payload: 1.0},
        "advantage": 0.0,
    }
    characters = {"tokens": [1] * len(payload), "mask": [True] * len(payload), "logprobs": [-1.0] * len(payload)}
    with run:
        for step in (0, 1):
            run.log(step, {f"parts/{payload}": 1.0, "parts/b": 1.0, "reward/mean": 0.5})
            run.record_answers(step, [answer | {"text": payload, "correct": bool(step)}])
        run.record(1, [rollout | numbers, rollout | numbers | characters | {"id": "second"}])
        run.finish(_results(payload, payload, 2, {}, {}) | {"machine": {payload: payload}})
    return run.path
