"""The correction that is none: what asynchronous training is refused to do, so that a study can show why."""

from torch import Tensor


def ignored(mask: Tensor) -> Tensor:
    """1: stale rollouts are taken for the policy's own."""
    return mask.float()
