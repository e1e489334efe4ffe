"""A contest that looks like a real one: completions drawn from a seed, numbers by the real functions."""

import math
import random
from pathlib import Path

from whet.evaluate.head_to_head import Entrant, ScoredCompletion, contest_results
from whet.evaluate.pairwise_judge import JudgeVerdicts
from whet.runs.experiment_directories import START, ComparisonDirectory

ASPECTS = ("bar", "bath", "bed", "food", "gym", "host", "pool", "room", "view", "wifi")
WORDS = ("awful", "old", "dull", "plain", "okay", "nice", "good", "clean", "great", "super")
# Method → (gold gain, proxy gain, KL) at the end of training; the last one is over-optimised.
METHODS = {"ppo": (3.1, 4.4, 9.0), "grpo": (3.8, 4.1, 6.5), "dpo": (2.2, 2.4, 4.0), "kto": (-0.6, 5.2, 22.0)}
LLM = "judge-8b"


def fake_rows(
    draw, gold, proxy, kl, *, prompts, samples, has_gold=True, has_score=False, has_judge=True, has_proxy=True
):
    """Completions whose scores are normal around the given gains, one taste for each prompt."""
    rows = []
    for index in range(prompts):
        taste = random.Random(f"prompt {index}").gauss(0, 0.5)
        asked = random.Random(index).sample(ASPECTS, 3)
        for sample in range(samples):
            true = max(-6.0, min(6.0, round(gold + taste + draw.gauss(0, 1.4))))
            words = [WORDS[max(0, min(9, round(4.5 + true * 0.7 + draw.gauss(0, 1))))] for _ in asked]
            distance = kl + draw.gauss(0, math.sqrt(2 * max(kl, 0.0)))
            rows.append(
                ScoredCompletion(
                    id=f"p{index}",
                    prompt=f"{', '.join(asked)}:",
                    sample=sample,
                    text=" " + ", ".join(f"{a} {w}" for a, w in zip(asked, words, strict=True)) + ".",
                    tokens=34 + round(kl) + draw.randrange(-3, 4),
                    finish="length" if draw.random() < kl / 300 else "stop",
                    correct=true > 2,
                    gold=float(true) if has_gold else None,
                    score=float(true) if has_score else None,
                    proxy=2 * (proxy + taste) + 0.6 * (true - gold) + draw.gauss(0, 1.5) if has_proxy else None,
                    judge=round(true + draw.gauss(0, 0.8), 1) if has_judge else None,
                    logprob=-20.0,
                    logprob_start=-20.0 - distance,
                    k3=max(0.0, distance) / 34,
                )
            )
    return rows


def fake_contest(
    path: Path, *, methods=METHODS, seeds=3, prompts=120, failed=(), pairwise=True, start_samples=16, **options
) -> ComparisonDirectory:
    """A directory with numbers and completions, as a pipeline leaves it before the page is made."""
    draw = random.Random(7)
    start = fake_rows(draw, 0.0, 0.0, 0.0, prompts=prompts, samples=start_samples, **options)
    start = [ScoredCompletion(**{**_values(row), "logprob_start": row.logprob, "k3": 0.0}) for row in start]
    rows = {}
    for method, (gold, proxy, kl) in methods.items():
        for seed in range(seeds):
            if (method, seed) in failed:
                continue
            luck = draw.gauss(0, 0.15)
            for step in (100, 200, None):
                share = 1.0 if step is None else step / 320
                entrant = Entrant(method=method, seed=seed, step=step)
                bend = share if gold > 0 else 4 * share * (1 - share) - 0.6 * share
                own = (abs(gold) * bend + luck, proxy * share + luck, kl * share * share)
                rows[entrant] = fake_rows(draw, *own, prompts=prompts, samples=1, **options)
    said = {}
    if pairwise:
        for method, (gold, *_) in methods.items():
            own = [
                row for entrant, rs in rows.items() if entrant.method == method and entrant.step is None for row in rs
            ]
            said[method] = JudgeVerdicts(
                outcomes=tuple(draw.choices([1.0, 0.5, 0.0], [2 + gold, 1, 1.2], k=len(own))),
                contradictions=draw.randrange(20),
                unreadable=draw.randrange(3),
            )
    settings = {"samples": 1, "temperature": 1.0, "max_tokens": 48, "tie_margin": 0.0, "judge_model": LLM}
    results = {
        **{
            "kind": "contest",
            "title": "reviews: four methods from one start",
            "task": "reviews",
            "seed": 0,
            "prompts": prompts,
        },
        **{"start_name": "sft", "proxy_path": "stages/reward", "judge_path": "stages/judge", "settings": settings},
        **contest_results(
            start,
            rows,
            samples=1,
            tie_margin=0.0,
            best_of=(1, 2, 4, 8, 16),
            verdicts=said,
            failures={key: "step 12: the loss is not finite" for key in failed},
        ),
        "curves": _curves(draw, methods, seeds),
    }
    directory = ComparisonDirectory(path)
    directory.write_samples(START, [_values(row) for row in start])
    for entrant, own in rows.items():
        directory.write_samples(entrant.name, [_values(row) for row in own])
    directory.write_results(results)
    return directory


def _values(row: ScoredCompletion) -> dict:
    return {name: getattr(row, name) for name in ScoredCompletion.__dataclass_fields__}


def _curves(draw, methods, seeds):
    """dpo learns from rows: it has no reward of its own."""
    curves = {}
    for method, (_, proxy, kl) in methods.items():
        for seed in range(seeds):
            steps = list(range(0, 201))
            climb = [1 - math.exp(-step / 60) for step in steps]
            own = {"eval/accuracy": {"steps": steps[::40], "values": [0.1 + 0.7 * climb[s] for s in steps[::40]]}}
            if method != "dpo":
                noisy = [proxy * c + draw.gauss(0, 0.3) for c in climb]
                own |= {"reward/mean": {"steps": steps, "values": noisy}}
                own |= {"kl": {"steps": steps, "values": [kl * c / 34 for c in climb]}}
                own |= {"parts/value": {"steps": steps, "values": [0.8 * v for v in noisy]}}
            curves.setdefault(method, {})[str(seed)] = own
    return curves
