"""Exercise 19, bug hunt: with another `micro_batch_size` the same seed gives another model.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-accumulation`.
"""

import torch


def accumulated_gradient(weight: float, micro_batches: list[list[list[float]]]) -> float:
    """The gradient of the mean of (w·x − y)² over all tokens [x, y] of all micro-batches.

    It must not depend on how the tokens are divided into micro-batches.
    """
    w = torch.tensor(weight, requires_grad=True)
    for batch in micro_batches:
        x, y = torch.tensor(batch).T
        loss = (w * x - y).square().mean() / len(micro_batches)
        loss.backward()
    assert w.grad is not None
    return float(w.grad)
