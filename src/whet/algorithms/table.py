"""The algorithms as a table whose cells are the functions of the files beside it. A new one is a function and a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from whet.algorithms import advantages as a
from whet.algorithms import masking as m
from whet.algorithms import policy_loss as p
from whet.algorithms.cells import Cell, call, name, terms

if TYPE_CHECKING:
    from torch import Tensor

Place = Literal["loss", "reward"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A policy-gradient method: rewards → advantages → loss per token → weights, and what surrounds them."""

    advantage: Cell
    scaling: Cell = a.unscaled
    surrogate: Cell
    weighting: Cell
    kl: Cell = p.k3
    kl_place: Place = "loss"
    kl_coefficient: float = 0.0
    importance_correction: Cell = p.uncorrected
    dynamic_sampling: Cell = a.keep_all
    paper: str  # arXiv number, or author and year

    @property
    def cells(self) -> dict[str, Cell]:
        """Kind → cell, without the KL estimator."""
        return {kind: getattr(self, kind) for kind in CELLS}

    @property
    def needs_reference(self) -> bool:
        """Whether the loop must supply log-probs under a reference."""
        return self.kl_coefficient > 0 or any("logprobs_ref" in terms(c) for c in (self.advantage, self.surrogate))

    @property
    def needs_values(self) -> bool:
        """Whether the loop must train a critic."""
        return "values" in terms(self.advantage)

    @property
    def needs_greedy(self) -> bool:
        """Whether the loop must also sample the most likely completion of every prompt."""
        return "greedy" in terms(self.advantage)


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A supervised method: log-probs → loss per token → weights."""

    loss: Cell
    weighting: Cell
    paper: str
    reads: Literal["answers", "text"] = "answers"  # prompts with answers, or windows of a corpus
    masking: Cell | None = None  # hides tokens from a bidirectional model; None: a causal model reads those before


def row(advantage: Cell, surrogate: Cell, weighting: Cell, paper: str, scaling: Cell = a.unscaled) -> Algorithm:
    """A method that puts a KL penalty, where a recipe asks for one, into the loss."""
    return Algorithm(advantage=advantage, scaling=scaling, surrogate=surrogate, weighting=weighting, paper=paper)


def paid(advantage: Cell, surrogate: Cell, weighting: Cell, paper: str, scaling: Cell = a.unscaled) -> Algorithm:
    """A method that subtracts the KL penalty from the reward."""
    return replace(row(advantage, surrogate, weighting, paper, scaling), kl=p.k1, kl_place="reward")


def varied(advantage: Cell, surrogate: Cell, weighting: Cell, paper: str) -> Algorithm:
    """A method with dynamic sampling: groups of equal rewards are dropped, and others sampled in their place."""
    return replace(row(advantage, surrogate, weighting, paper), dynamic_sampling=a.drop_zero_variance)


wide = partial(p.clip, high=0.28)
# fmt: off
ALGORITHMS: dict[str, Algorithm] = {
    #                    rewards → advantages  → token loss       how tokens are weighed  paper
    "reinforce":    paid(a.raw,              p.reinforce,      p.sequence_sum,          "Williams 1992"),
    "rloo":         paid(a.leave_one_out,    p.reinforce,      p.sequence_sum,          "2402.14740"),
    "remax":        paid(a.over_greedy,      p.reinforce,      p.sequence_sum,          "2310.10505"),
    "opo":          paid(a.over_length,      p.reinforce,      p.sequence_sum,          "2505.23585"),
    "maxrl":         row(a.max_likelihood,   p.reinforce,      p.sequence_sum,          "2602.02710"),
    "online_dpo":    row(a.best_over_worst,  p.reinforce,      p.sequence_sum,          "2402.04792"),
    "gpg":           row(a.over_valid,       p.reinforce,      p.token_mean,            "2504.02546"),
    "ppo":          paid(a.gae,              p.clip,           p.token_mean,            "1707.06347", scaling=a.whiten),
    "reinforce_pp": paid(a.to_go,            p.clip,           p.token_mean,            "2501.03262", scaling=a.whiten),
    "reinforce_pp_baseline": paid(a.center,  p.clip,           p.token_mean,            "2501.03262", scaling=a.whiten),
    "grpo":          row(a.standardize,      p.clip,           p.sequence_mean,         "2402.03300"),
    "dr_grpo":       row(a.center,           p.clip,           p.budget_mean,           "2503.20783"),
    "dapo":       varied(a.standardize,      wide,             p.token_mean,            "2503.14476"),
    "cispo":         row(a.standardize,      p.stopped_ratio,  p.token_mean,            "2506.13585"),
    "sapo":          row(a.standardize,      p.soft_gate,      p.sequence_mean,         "2511.20347"),
    "gspo":          row(a.standardize,      p.sequence_clip,  p.sequence_mean,         "2507.18071"),
    "gmpo":          row(a.standardize,      p.geometric_clip, p.sequence_mean,         "2507.20673"),
}
# fmt: on
OBJECTIVES: dict[str, Objective] = {
    "sft": Objective(loss=p.negative_log_likelihood, weighting=p.token_mean, paper="maximum likelihood"),
    "lm": Objective(loss=p.negative_log_likelihood, weighting=p.token_mean, paper="maximum likelihood", reads="text"),
    "denoise": Objective(
        loss=p.negative_log_likelihood, weighting=p.token_mean, paper="2406.07524", reads="text", masking=m.diffusion
    ),
    "masked_lm": Objective(
        loss=p.negative_log_likelihood, weighting=p.token_mean, paper="1810.04805", reads="text", masking=m.bert
    ),
}


def _named(*cells: Cell) -> dict[str, Cell]:
    return {name(cell): cell for cell in cells}


ADVANTAGES = _named(
    *(a.raw, a.over_batch, a.over_average, a.over_greedy, a.center, a.leave_one_out, a.standardize, a.over_length),
    *(a.over_valid, a.max_likelihood, a.best_over_worst, a.gae, a.to_go, a.to_go_leave_one_out),
)
SCALINGS = _named(a.unscaled, a.whiten, a.batch_deviation)
SURROGATES = _named(p.reinforce, p.clip, p.dual_clip, p.stopped_ratio, p.soft_gate, p.sequence_clip, p.geometric_clip)
WEIGHTINGS = _named(p.token_mean, p.sequence_mean, p.sequence_sum, p.budget_mean)
KL_ESTIMATORS = _named(p.k1, p.k2, p.k3, p.unbiased)
CORRECTIONS = _named(
    *(p.uncorrected, p.token_truncate, p.sequence_truncate, p.geometric_truncate),
    *(p.token_mask, p.sequence_mask, p.geometric_mask),
)
DYNAMIC_SAMPLING = _named(a.keep_all, a.drop_zero_variance)
CELLS: dict[str, dict[str, Cell]] = {  # kind of cell → name → cell
    "advantage": ADVANTAGES,
    "scaling": SCALINGS,
    "surrogate": SURROGATES,
    "weighting": WEIGHTINGS,
    "importance_correction": CORRECTIONS,
    "dynamic_sampling": DYNAMIC_SAMPLING,
}

SUPPLIED: dict[str, tuple[str, ...]] = {  # kind of cell → the terms that the loop can supply
    "advantage": (
        *("rewards", "counts", "history", "greedy", "token_rewards", "values"),
        *("logprobs_old", "logprobs_ref", "tokens", "mask"),
    ),
    "scaling": ("advantages", "rewards", "mask"),
    "surrogate": ("logprobs", "logprobs_old", "logprobs_ref", "advantages", "mask"),
    "weighting": ("mask", "max_tokens"),
    "importance_correction": ("logprobs_old", "logprobs_sampled", "mask"),
    "dynamic_sampling": ("rewards",),
}

# These compare the rollouts of one prompt, so a group of one has nothing to compare.
GROUP_STATISTICS = frozenset(
    {
        *(a.center, a.leave_one_out, a.standardize, a.over_length, a.over_valid, a.max_likelihood, a.best_over_worst),
        a.to_go_leave_one_out,
    }
)
# These weigh each token by itself; a surrogate with one ratio per sequence would undo that.
TOKEN_CORRECTIONS = frozenset({p.token_truncate, p.token_mask})


def token_loss(
    algorithm: Algorithm,
    supply: Mapping[str, Tensor | None],
    *,
    surrogate: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> Tensor:
    """The loss of every token: the corrected surrogate and, where it belongs here, the KL to the reference.

    `surrogate` is its value where the caller has it already. Without a correction no importance weight is applied.
    """
    per_token: Tensor = call(algorithm.surrogate, supply) if surrogate is None else surrogate
    correction = supply.get("correction")
    if correction is not None:
        per_token = per_token * correction
    if kl_coefficient and algorithm.kl_place == "loss":
        per_token = per_token + kl_coefficient * call(algorithm.kl, supply)
    return per_token
