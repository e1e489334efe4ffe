"""Exercise 20, bug hunt: the first step is good; then steps become longer and longer, and the loss rises.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-stale-gradients`.
"""

import torch


def train(weight: float, batches: list[list[list[float]]], lr: float) -> float:
    """The weight after one step of plain gradient descent on each batch: the mean of (w·x − y)² over its [x, y]."""
    w = torch.tensor(weight, requires_grad=True)
    for batch in batches:
        x, y = torch.tensor(batch).T
        loss = (w * x - y).square().mean()
        loss.backward()
        assert w.grad is not None
        with torch.no_grad():
            w -= lr * w.grad
    return float(w)
