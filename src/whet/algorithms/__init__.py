"""The mathematics: pure functions of tensors, for any loop. Imports torch, once one is computed, and no loop.

What a cell needs is what its arguments are named: a surrogate that takes `logprobs_ref` makes the loop supply a
reference. Keyword-only arguments are options that a recipe may set. `call(cell, supply)` picks the terms out of a
mapping, `bind(cell, options)` sets options. docs/python.md has GRPO and DPO in a loop that is not ours.
"""

from whet.algorithms.cells import (
    bind,
    call,
    formula,
    is_per_sequence,
    is_per_token,
    options,
    per_sequence,
    per_token,
    terms,
)
from whet.algorithms.preference.preference_table import PREFERENCES, REWARDS, Preference, RewardObjective, label, pair
from whet.algorithms.table import (
    ADVANTAGES,
    ALGORITHMS,
    CORRECTIONS,
    DYNAMIC_SAMPLING,
    KL_ESTIMATORS,
    OBJECTIVES,
    SCALINGS,
    SURROGATES,
    WEIGHTINGS,
    Algorithm,
    token_loss,
)

__all__ = [
    "ADVANTAGES",
    "ALGORITHMS",
    "CORRECTIONS",
    "DYNAMIC_SAMPLING",
    "KL_ESTIMATORS",
    "OBJECTIVES",
    "PREFERENCES",
    "REWARDS",
    "SCALINGS",
    "SURROGATES",
    "WEIGHTINGS",
    "Algorithm",
    "Preference",
    "RewardObjective",
    "bind",
    "call",
    "formula",
    "is_per_sequence",
    "is_per_token",
    "label",
    "options",
    "pair",
    "per_sequence",
    "per_token",
    "terms",
    "token_loss",
]
