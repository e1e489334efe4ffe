"""The table: all metrics by topic, and the row of a name."""

from functools import cache

from whet.metrics.completions import COMPLETIONS
from whet.metrics.environments import ENVIRONMENTS
from whet.metrics.evaluation import EVALUATION
from whet.metrics.every_step import EVERY
from whet.metrics.metric import Metric
from whet.metrics.preferences import PREFERENCES
from whet.metrics.prompts import PROMPTS
from whet.metrics.reference_and_critic import CRITIC, REFERENCE
from whet.metrics.reward_models import HELD_OUT_REWARDS, REWARD_MODELS
from whet.metrics.rewards import REWARDS
from whet.metrics.sampler import SAMPLER
from whet.metrics.supervised import HELD_OUT_TEXT, SUPERVISED
from whet.metrics.times import TIMES
from whet.metrics.updates import UPDATES

TOPICS: dict[str, tuple[Metric, ...]] = {
    "Reward": REWARDS,
    "Completions": COMPLETIONS,
    "Prompts and groups": PROMPTS,
    "Update of the policy": UPDATES,
    "Reference": REFERENCE,
    "Critic": CRITIC,
    "Sampler and trainer": SAMPLER,
    "Supervised fine-tuning, language modelling, denoising": SUPERVISED,
    "Preferences": PREFERENCES,
    "Reward models": REWARD_MODELS,
    "Every step": EVERY,
    "Held-out prompts": EVALUATION,
    "Held-out rows and text": HELD_OUT_TEXT,
    "Held-out rows of reward models": HELD_OUT_REWARDS,
    "Episodes in environments": ENVIRONMENTS,
    "Time": TIMES,
}
METRICS: tuple[Metric, ...] = tuple(metric for metrics in TOPICS.values() for metric in metrics)
HELD_OUT = "eval/"


@cache
def row_of(name: str) -> Metric | None:
    """The row of a logged metric; of `eval/SET/NAME`, a named evaluation set, that of `eval/NAME`; None if unknown."""
    found = next((metric for metric in METRICS if metric.pattern.fullmatch(name)), None)
    if found is None and name.startswith(HELD_OUT) and name.count("/") > 1:
        return row_of(HELD_OUT + name.split("/", 2)[2])
    return found
