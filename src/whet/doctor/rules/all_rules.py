"""The table of rules, in the order in which findings of one level are shown."""

from whet.doctor.rules.completions import COMPLETIONS
from whet.doctor.rules.evaluation import EVALUATION
from whet.doctor.rules.exploration import EXPLORATION
from whet.doctor.rules.preferences import PREFERENCES
from whet.doctor.rules.progress import PROGRESS
from whet.doctor.rules.rewards import REWARDS
from whet.doctor.rules.rule import Rule
from whet.doctor.rules.sampler import SAMPLER
from whet.doctor.rules.updates import UPDATES

RULES: tuple[Rule, ...] = (
    *EVALUATION,
    *REWARDS,
    *UPDATES,
    *PROGRESS,
    *EXPLORATION,
    *COMPLETIONS,
    *SAMPLER,
    *PREFERENCES,
)
