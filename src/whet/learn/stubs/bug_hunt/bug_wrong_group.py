"""Exercise 18, bug hunt: easy prompts get only better, hard ones only worse, whatever is answered.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-wrong-group`.
"""

from torch import Tensor


def group_advantages(rewards: Tensor, group: int) -> Tensor:
    """Each reward less the mean of its prompt's rollouts: (n,). The `group` rollouts of a prompt follow each other."""
    table = rewards.view(group, -1)
    return (table - table.mean(dim=0, keepdim=True)).flatten()
