"""Runs made by hand: rows of metrics, rollouts, and the history that rules read."""

import random
from collections import defaultdict

from whet.doctor.history import History
from whet.doctor.settings import Settings, kind_of

NEW = {"model": {"new": {"family": "gpt2"}}, "optimizer": {"lr": 1e-3}}


def history(*rows, config=None, steps=0, kind=None, **more):
    """A history of these rows; those of one step are merged."""
    merged = defaultdict(dict)
    for row in [row for some in rows for row in (some if isinstance(some, list) else [some])]:
        merged[row["step"]] |= row
    ordered = [merged[step] for step in sorted(merged)]
    names = {name for row in ordered for name in row}
    settings = Settings(config={"loop": "online"} | (config or {}), kind=kind or kind_of({*names, "reward/mean"}))
    return History(rows=ordered, settings=settings, steps=steps, **more)


def constant(name, value, steps=40, **more):
    return [{"step": s, name: value, **more} for s in range(1, steps + 1)]


def ramp(name, first, last, steps=40):
    """Five steps at `first`, a straight line, twenty steps at `last`."""
    values = [first] * 5 + [first + (last - first) * i / (steps - 25) for i in range(steps - 25)] + [last] * 20
    return [{"step": s, name: value} for s, value in enumerate(values, start=1)]


def evals(*means, half=0.05, every=10):
    return [
        {"step": every * i, "eval/accuracy": m, "eval/accuracy_low": m - half, "eval/accuracy_high": m + half}
        for i, m in enumerate(means)
    ]


def curve(name, values):
    return [{"step": step, name: value} for step, value in enumerate(values, start=1)]


def noisy(name, value, deviation, steps=40, seed=0):
    """A level with noise: it has not moved."""
    stream = random.Random(f"{name} {seed}")
    return curve(name, [value + stream.gauss(0, deviation) for _ in range(steps)])


def rollout(text="42", reward=1.0, **more):
    """A rollout of two prompt tokens, a token for each character, and the end."""
    count = len(text) + 1
    tokens = [1, 2, *(ord(letter) for letter in text), 0]
    mask = [False, False, *[True] * count]
    row = {"id": "a", "prompt": "question", "text": text, "tokens": tokens, "mask": mask, "finish": "stop"}
    row |= {"logprobs": [0.0, 0.0, *[-0.5] * count], "reward": reward, "parts": {}, "advantage": 0.0, "version": 0}
    return row | {"pieces": [*text, ""]} | more


def healthy_online(steps=40, **more):
    """An online run that learns: every metric that rules read, at usual values."""
    levels = {
        "loss": (0.02, 0.01),
        "grad_norm": (0.5, 0.1),
        "reward/std": (0.4, 0.02),
        "approx_kl": (2e-3, 3e-4),
        "clip_fraction": (0.02, 5e-3),
        "ratio/max": (1.2, 0.05),
        "weights/change": (3e-3, 3e-4),
        "surrogate/wrong_sign": (0.0, 0.0),
        "mismatch/mean": (2e-6, 1e-7),
        "mismatch/max": (3e-5, 1e-6),
        "importance_correction/effective_tokens": (0.99, 1e-3),
        "kl": (0.01, 1e-3),
        "kl_coefficient": (0.02, 0.0),
        "truncated": (0.01, 2e-3),
        "length/mean": (20.0, 0.5),
        "length/reward_correlation": (0.05, 0.02),
        "rollouts/repeated_4grams": (0.02, 5e-3),
        "rollouts/duplicates": (0.1, 0.01),
        "prompts/duplicates": (0.0, 0.0),
        "groups/zero_variance": (0.2, 0.01),
        "reward/contradictions": (0.0, 0.0),
        "reward/share/right": (0.6, 0.02),
        "reward/share/form": (0.4, 0.02),
        "critic/explained_variance": (0.4, 0.02),
        "updates": (2.0, 0.0),
    }
    curves = [noisy(name, *level, steps=steps) for name, level in levels.items()]
    curves += [ramp("reward/mean", 0.3, 0.7, steps), ramp("entropy", 1.0, 0.5, steps)]
    curves += [constant("reward/max", 1.0, steps), constant("reward/min", 0.0, steps), [{"step": 1, "kl": 0.0}]]
    rows = {step: [rollout(f"{step}{n}", prompt=f"{step} + {n}") for n in range(8)] for step in (1, steps)}
    answers = {step: [{"prompt": f"q{n}", "answer": f"ans{n}"} for n in range(8)] for step in (0, steps)}
    config = NEW | {"update": {"epochs": 2, "minibatches": 1}, "rollout": {"max_tokens": 64}}
    return history(
        *curves, evals(0.3, 0.4, 0.6, 0.7), config=config, steps=steps, rollouts=rows, answers=answers, **more
    )


def healthy_offline(kind, steps=40):
    """An SFT, preference or reward run that learns."""
    rows = [noisy("grad_norm", 0.5, 0.05, steps), noisy("weights/change", 3e-3, 3e-4, steps)]
    rows += [ramp("loss", 0.7, 0.4, steps), [{"step": 0, "eval/loss": 0.7}, {"step": steps, "eval/loss": 0.45}]]
    if kind == "preference":
        rows += [ramp("rewards/margin", 0.0, 1.0, steps), ramp("rewards/chosen", 0.0, 0.3, steps)]
        rows += [ramp("rewards/rejected", 0.0, -0.7, steps), noisy("length/chosen", 30, 1, steps)]
        rows += [ramp("logprobs/chosen", -30, -29, steps), ramp("logprobs/rejected", -32, -36, steps)]
        rows += [noisy("length/rejected", 28, 1, steps), accuracy("pair_accuracy", 0.5, 0.75, steps)]
        rows += [ramp("pair_accuracy", 0.5, 0.8, steps)]
        rows += [[{"step": 0, "eval/length": 30.0}, {"step": steps, "eval/length": 33.0}]]
    if kind == "reward":
        rows += [ramp("score/mean", 0.0, 0.2, steps), ramp("pair_accuracy", 0.5, 0.8, steps)]
        rows += [accuracy("pair_accuracy", 0.5, 0.75, steps)]
        for step, length, error in ((0, 0.0, 0.03), (steps, 0.1, 0.05)):
            rows += [[{"step": step, "eval/length_score_correlation": length, "eval/calibration_error": error}]]
    return history(*rows, kind=kind, steps=steps, config=NEW | {"loop": "offline", "objective": {"beta": 0.1}})


def accuracy(name, first, last, steps=40, half=0.04):
    """Two evaluations of an accuracy, with intervals."""
    return [
        {"step": step, f"eval/{name}": mean, f"eval/{name}_low": mean - half, f"eval/{name}_high": mean + half}
        for step, mean in ((0, first), (steps, last))
    ]
