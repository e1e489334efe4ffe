"""Exercise 13: direct preference optimisation.

Chapter: docs/learn/16-dpo.md. Replace every `raise NotImplementedError`; then `whet learn check dpo-loss`.
"""

from torch import Tensor


def sequence_logprobs(logprobs: Tensor, mask: Tensor) -> Tensor:
    """The log-probability of each answer: (rows,).

    `logprobs` is (rows, tokens); the mask is True for the tokens of the answer.
    """
    raise NotImplementedError


def implicit_reward(logprobs: Tensor, logprobs_ref: Tensor, beta: float) -> Tensor:
    """The reward of answers for which a policy with these (answers,) log-probs would be the best one."""
    raise NotImplementedError


def dpo_loss(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, beta: float) -> Tensor:
    """The mean loss over the pairs: one number. All are (pairs,) log-probs of answers, `…_ref` under the reference."""
    raise NotImplementedError
