"""Which errors mean that a device's memory ran out, and attempts that may fail by it."""

import re
from collections.abc import Callable

import torch

# Of cuBLAS, Triton and CUDA itself (a graph that cannot be instantiated), which do not know torch's error.
MESSAGES = re.compile(r"CUDA.*out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE | re.DOTALL)


class NoRoomToSample(torch.OutOfMemoryError):
    """Not even one sequence could be sampled at a time."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or the one during whose handling it arose, says so.

    A CUDA graph whose capture runs out of memory may fail once more when its capture is ended.
    """
    while isinstance(error, RuntimeError):
        if isinstance(error, torch.OutOfMemoryError) or MESSAGES.search(str(error)):
            return True
        error = error.__context__
    return False


def shortage(work: Callable[[], object]) -> str:
    """Does the work; returns the error's message if memory ran out, else an empty text.

    The frames of a failed attempt, and with them its tensors, are gone when this returns.
    """
    try:
        work()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return str(error) or "out of memory"
    return ""
