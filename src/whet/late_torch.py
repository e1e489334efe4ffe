"""`torch`, imported when a formula is first computed: reading and checking a recipe does not wait for it."""

from importlib import import_module
from typing import Any


class _LateTorch:
    def __getattr__(self, name: str) -> Any:
        """Called once for each name: what it gives is kept."""
        vars(self)[name] = found = getattr(import_module("torch"), name)
        return found


torch = _LateTorch()


def cross_entropy(*arguments: Any, **options: Any) -> Any:
    return torch.nn.functional.cross_entropy(*arguments, **options)


def logsigmoid(values: Any) -> Any:
    return torch.nn.functional.logsigmoid(values)


def softplus(values: Any) -> Any:
    return torch.nn.functional.softplus(values)
