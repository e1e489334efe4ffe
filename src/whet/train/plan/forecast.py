"""What the plan says of a run that is about to begin, in one or two lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import TYPE_CHECKING

from whet.config import OnlineConfig
from whet.train.plan.advice import Advice, advise
from whet.train.plan.gpus import GPU
from whet.train.plan.planning import Plan
from whet.train.plan.recipe_plan import ample, plan_config
from whet.train.plan.run_shapes import RunShapes, reward_adapter, reward_shape
from whet.train.plan.token_lengths import Lengths

if TYPE_CHECKING:
    from whet.config.loops import Training
    from whet.models.layers.decoder_config import DecoderConfig

GIBI = 2**30
FEW_KEYS = 3  # of an advice
MOST = 3  # pieces of advice
LESS = 0.9  # of the need of a run that was planned to fit and did not


def forecast(
    config: Training, policy: DecoderConfig, tokens: Sequence[tuple[int, int]], gpu: GPU, gpus: int = 1
) -> list[str]:
    """Need and seconds of a run whose sequences have so many tokens (prompt, completion); a warning if it is too much.

    Nothing is refused: a prediction may be wrong, and the run tells.
    """
    plan_of = _planner(config, policy, tokens, gpus)
    plan = plan_of(config, gpu)
    worst = max(plan.peaks.moments, key=lambda name: plan.peaks.moments[name])
    need = f"about {plan.peaks.needed / GIBI:.1f} of the GPU's {gpu.memory / GIBI:.1f} GiB, most of it in the {worst}"
    if plan.fits:
        return [f"plan: {need}; about {_short(plan.seconds.step)} a step, {plan.hours:.2g} h in all"]
    found = _told(_advice(config, plan_of, gpu))
    none = "no change of the recipe that is known here makes it fit: use a smaller model or shorter completions"
    return [f"warning: the plan is {need}: the run may end out of memory", found or none]


def changes_that_fit(
    config: Training, policy: DecoderConfig, tokens: Sequence[tuple[int, int]], gpu: GPU, gpus: int = 1
) -> str:
    """The changes with which a run that ended out of memory needs less than it was planned to; empty without one."""
    plan_of = _planner(config, policy, tokens, gpus)
    memory = min(gpu.memory, int(LESS * plan_of(config, gpu).peaks.needed))
    return _told(_advice(config, plan_of, replace(gpu, memory=memory)))


Planner = Callable[["Training", GPU], Plan]


def _planner(config: Training, policy: DecoderConfig, tokens: Sequence[tuple[int, int]], gpus: int) -> Planner:
    """Plans a config with the shapes and lengths of this one."""
    reward, adapter = None, 0
    if isinstance(config, OnlineConfig) and config.judge is not None:
        reward, _ = reward_shape(config.judge.path, policy)
        adapter = reward_adapter(config)
    shapes = RunShapes(policy=policy, about="", directory=None, reward=reward, reward_adapter=adapter)
    lengths = lengths_of(config, tokens)
    own = len(config.placement.names) if isinstance(config, OnlineConfig) else 0
    return lambda other, gpu: plan_config(other, shapes, lengths, gpu, gpus + own)


def _advice(config: Training, plan_of: Planner, gpu: GPU) -> Sequence[Advice]:
    seconds = plan_of(config, ample(gpu)).seconds.step
    return advise(config, lambda other: plan_of(other, gpu), seconds=seconds, most_keys=FEW_KEYS)[:MOST]


def _told(found: Sequence[Advice]) -> str:
    """The changes that fit, on a line."""
    each = (f"{' '.join(one.overrides)} ({one.needed / GIBI:.1f} GiB, {one.slower:.2g} × the seconds)" for one in found)
    return f"what fits instead: {', or '.join(each)}" if found else ""


def lengths_of(config: Training, tokens: Sequence[tuple[int, int]]) -> Lengths:
    """The lengths of a run's sequences, from those of a few; completions of an online run are as long as allowed."""
    prompts, completions = [max(1, one) for one, _ in tokens] or [1], [max(1, one) for _, one in tokens] or [1]
    if isinstance(config, OnlineConfig):
        completions = [config.rollout.max_tokens]
    return Lengths(
        prompt=max(prompts),
        completion=max(completions),
        mean_prompt=ceil(fmean(prompts)),
        mean_completion=ceil(fmean(completions)),
        source="measured",
    )


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"
