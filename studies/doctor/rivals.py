"""Two other doctors on the same histories: rldoctor 0.2.0 and rlwatch 0.5.1 of PyPI, in an environment that has them.

    python -m studies.doctor.rivals histories.jsonl.gz --to studies/doctor/verdicts/rivals.json

They get whet's metrics under the names that they know (TRL's for rldoctor, the arguments of `log_step` for rlwatch),
the settings of the run, and for rlwatch the rewards of the rollouts that are kept. They warn from the level WARNING on.

- rldoctor examines the run as it ends; the step of its first warning is that of the first look (as often as whet's,
  from 8 steps on, which its detectors need) at which its report warns.
- rlwatch is fed step by step. Its waiting times (20 to 100 steps) are meant for longer runs, so it is measured twice:
  as it is, and with all of them divided by 10, as if a run of 48 steps had 480.

They name no causes, but symptoms with advice. `CAUSES` says for each of their findings which of our causes its advice
speaks of; a cause counts as named by a finding if it is any of these, which favours them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.doctor import histories
from studies.doctor.cases import Fault
from studies.doctor.histories import Trained
from studies.doctor.judge import Verdict, as_json
from studies.doctor.results import rowwise
from studies.doctor.training import CASES
from whet.doctor.watch import stride

# whet's metric → TRL's name, as rldoctor reads it.
TRL_NAMES = {
    "reward/mean": "reward",
    "reward/std": "reward_std",
    "reward/max": "reward_max",
    "reward/min": "reward_min",
    "eval/accuracy": "eval_score",
    "groups/zero_variance": "frac_reward_zero_std",
    "entropy": "entropy",
    "clip_fraction": "clip_ratio/region_mean",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "loss": "policy_loss",
    "length/mean": "completions/mean_length",
    "length/max": "completions/max_length",
    "truncated": "completions/clipped_ratio",
    "critic/explained_variance": "critic/vf_explained_var",
}
ARGUMENTS = {  # whet's metric → argument of rlwatch's log_step
    "entropy": "entropy",
    "reward/mean": "reward_mean",
    "reward/std": "reward_std",
    "loss": "loss",
    "lr": "learning_rate",
    "clip_fraction": "clip_fraction",
    "grad_norm": "grad_norm",
}
KL = ("kl", "approx_kl")  # to the reference; to the policy before the updates where there is none
LEAST = 8  # observations that rldoctor's detectors need
SHORTER = 10

RATE = ("learning-rate-too-high",)
CAUSES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "rldoctor": {
        "advantage_collapse": ("prompts-too-hard", "prompts-too-easy", "constant-reward"),
        "entropy_collapse": ("temperature-too-low", "clip-range-too-small", "prompts-too-easy"),
        "reward_hacking": ("reward-misspecified", "kl-coefficient-too-low", "reward-pays-length"),
        "length_hacking": ("reward-pays-length", "max-tokens-too-small", "no-stop-token"),
        "clip_saturation": (*RATE, "too-many-updates", "clip-range-too-small"),
        "kl_drift": ("kl-coefficient-too-high", "kl-coefficient-too-low", *RATE),
        "grad_pathology": (*RATE, "reward-scale", "constant-reward", "learning-rate-too-low"),
        "reward_composition": ("one-part-rules", "constant-reward"),
        "plateau": ("learning-rate-too-low", "prompts-too-easy", "prompts-too-hard"),
    },
    "rlwatch": {
        "entropy_collapse": (*RATE, "kl-coefficient-too-low"),
        "kl_explosion": (*RATE, "kl-coefficient-too-low"),
        "reward_hacking": ("reward-misspecified", "reward-scale"),
        "advantage_variance": (*RATE, "critic-not-learning"),
        "loss_nan": (*RATE, "reward-scale"),
        "gradient_norm_spike": (*RATE,),
        "reward_mean_drift": ("reward-misspecified", *RATE),
    },
}

Warnings = list[tuple[str, int]]  # of a run: detectors, the most serious first, and the step of the first warning


def kl(row: Mapping[str, Any]) -> float | None:
    return next((row[name] for name in KL if row.get(name) is not None), None)


def trl_rows(one: Trained) -> list[dict[str, Any]]:
    """The metrics of a run as rldoctor reads them."""
    found = []
    for row in one.history.rows:
        named = {new: row[old] for old, new in TRL_NAMES.items() if row.get(old) is not None}
        named |= {"kl": kl(row)} if kl(row) is not None else {}
        parts = {name: value for name, value in row.items() if name.startswith("parts/") and value is not None}
        named |= {f"rewards/{name.removeprefix('parts/')}/mean": value for name, value in parts.items()}
        found.append({"step": row["step"], **named})
    return found


def trl_config(one: Trained) -> dict[str, Any]:
    get = one.history.settings.get
    return {
        "algorithm": get("algorithm.preset"),
        "num_generations": get("rollout.group"),
        "max_completion_length": get("rollout.max_tokens"),
        "beta": get("algorithm.kl.coefficient"),
        "entropy_coef": get("algorithm.entropy.coefficient"),
        "epsilon": get("algorithm.clip.low"),
        "epsilon_high": get("algorithm.clip.high"),
        "learning_rate": get("optimizer.lr"),
    }


def looked_at(one: Trained) -> list[int]:
    every = stride(one.history.steps or one.history.done)
    steps = {int(row["step"]) for row in one.history.rows}
    return sorted(step for step in steps if step % every == 0 or step == one.history.done)


def rldoctor(one: Trained) -> Warnings:
    from rl_doctor.detectors.base import Severity
    from rl_doctor.diagnosis import diagnose
    from rl_doctor.ingest.base import run_from_records

    rows, config = trl_rows(one), {key: value for key, value in trl_config(one).items() if value is not None}

    def warned(step: int) -> list[str]:
        run = run_from_records([row for row in rows if row["step"] <= step], config=config)
        return [one.detector for one in diagnose(run).problems if one.severity >= Severity.WARNING]

    last = warned(one.history.done)
    if not last:
        return []
    first = next((step for step in looked_at(one) if step >= LEAST and warned(step)), one.history.done)
    return [(name, first) for name in last]


def rlwatch(one: Trained, shorter: int = 1) -> Warnings:
    import numpy
    from rlwatch.config import RLWatchConfig
    from rlwatch.core import RLWatch

    with tempfile.TemporaryDirectory() as place:
        config = RLWatchConfig(framework="manual", run_id="run")
        config.storage.log_dir = place
        for section in vars(config).values():
            for key in ("consecutive_steps", "warmup_steps", "rolling_window", "baseline_window", "cooldown_steps"):
                if hasattr(section, key):
                    setattr(section, key, -(-getattr(section, key) // shorter))
        monitor = RLWatch(config)
        told: dict[str, tuple[int, int]] = {}  # detector → how serious (0 the most), step
        for row in one.history.rows:
            if row["step"] == 0:
                continue
            given = {new: row[old] for old, new in ARGUMENTS.items() if old in row and row[old] is not None}
            if "loss" in row and row["loss"] is None:
                given["loss"] = float("nan")
            rewards = [some["reward"] for some in one.history.rollouts.get(int(row["step"]), ())]
            known = [float(reward) for reward in rewards if reward is not None]
            for alert in monitor.log_step(
                int(row["step"]),
                kl_divergence=kl(row),
                rewards=numpy.array(known) if known else None,
                **given,
            ):
                level = 0 if alert.severity == "critical" else 1
                before = told.get(alert.detector, (1, alert.step))
                told[alert.detector] = (min(level, before[0]), before[1])
        monitor.store.close()
    first = min((step for _, step in told.values()), default=0)
    return [(name, first) for name in sorted(told, key=lambda name: told[name])]


RIVALS: dict[str, tuple[str, Callable[[Trained], Warnings]]] = {
    "rldoctor 0.2.0": ("rldoctor", rldoctor),
    "rlwatch 0.5.1": ("rlwatch", rlwatch),
    "rlwatch 0.5.1, ÷ 10": ("rlwatch", lambda one: rlwatch(one, SHORTER)),
}


def verdict(one: Trained, warnings: Warnings, causes: Mapping[str, tuple[str, ...]]) -> Verdict:
    """The cause has the rank of the first finding whose advice speaks of it."""
    case = CASES[one.case]
    right = case.causes if isinstance(case, Fault) else ()
    named = [causes.get(name, ()) for name, _ in warnings]
    rank = next((place for place, some in enumerate(named, start=1) if set(some) & set(right)), None)
    told = min((step for _, step in warnings), default=None)
    steps = one.history.steps or one.history.done
    return Verdict(
        case=one.case,
        seed=one.seed,
        part=case.part,
        faulty=isinstance(case, Fault),
        alarms=tuple(name for name, _ in warnings),
        causes=tuple(dict.fromkeys(name for some in named for name in some)),
        rank=rank,
        told=told,
        share=None if told is None else told / steps,
    )


def verdicts(runs: Sequence[Trained]) -> Iterator[tuple[str, list[Verdict]]]:
    logging.disable(logging.CRITICAL)
    for label, (name, look) in RIVALS.items():
        found = []
        for one in runs:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                warnings = look(one)
            found.append(verdict(one, warnings, CAUSES[name]))
        yield label, found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("histories", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args(arguments)
    runs = [one for one in histories.read(options.histories) if not one.changes and one.case in CASES]
    found = {label: [as_json(one) for one in some] for label, some in verdicts(runs)}
    options.to.write_text(rowwise(found), "utf-8")
    for label, some in found.items():
        sys.stdout.write(f"{label}: {sum(bool(one['alarms']) for one in some)} of {len(some)} runs warned\n")


if __name__ == "__main__":
    main(sys.argv[1:])
