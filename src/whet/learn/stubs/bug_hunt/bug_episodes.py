"""Exercise 21, bug hunt: an agent that is about to win gives up, because the next episode begins badly.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-episodes`.
"""

import torch
from torch import Tensor


def advantages(rewards: Tensor, values: Tensor, ends: Tensor, last_value: float, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation on a fragment that may hold several episodes: (steps,).

    `ends[t]` is True where an episode ends with step t; the next step is then the first of a new episode. After the
    last step of the fragment the state has the value `last_value`.
    """
    result = torch.zeros_like(rewards)
    running, following = torch.zeros(()), torch.tensor(last_value)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * following - values[t]
        running = delta + gamma * lam * running
        result[t] = running
        following = values[t]
    return result
