"""Post-training for language models. `whet.train("grpo-sorting")` trains; docs/python.md shows the rest.

Importing it is cheap: torch is loaded by the first call that needs it.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from whet import algorithms as algorithms
    from whet.api.infilling import infill as infill
    from whet.api.loaded_model import Model as Model
    from whet.api.loaded_model import evaluate as evaluate
    from whet.api.loaded_model import generate as generate
    from whet.api.loaded_model import load as load
    from whet.api.reward_scores import score as score
    from whet.api.run import Run as Run
    from whet.api.several import compare as compare
    from whet.api.several import pipeline as pipeline
    from whet.api.training import train as train
    from whet.errors import RunFailed as RunFailed
    from whet.errors import UserError as UserError

__version__ = "0.1.0"
__all__ = [
    "Model",
    "Run",
    "RunFailed",
    "UserError",
    "algorithms",
    "compare",
    "evaluate",
    "generate",
    "infill",
    "load",
    "pipeline",
    "score",
    "train",
]

PLACES = {  # name → the module that has it
    **dict.fromkeys(("Model", "evaluate", "generate", "load"), "whet.api.loaded_model"),
    **dict.fromkeys(("compare", "pipeline"), "whet.api.several"),
    **dict.fromkeys(("RunFailed", "UserError"), "whet.errors"),
    "infill": "whet.api.infilling",
    **{"Run": "whet.api.run", "score": "whet.api.reward_scores", "train": "whet.api.training"},
}


def __getattr__(name: str) -> Any:
    if name == "algorithms":
        return import_module("whet.algorithms")
    if name not in PLACES:
        raise AttributeError(f"module 'whet' has no attribute {name!r}")
    return vars(import_module(PLACES[name]))[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallablePackage(ModuleType):  # `whet.train` and `whet.evaluate` are packages and functions
    __doc__ = property(lambda self: self._function.__doc__)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)

    @property
    def _function(self) -> Any:
        return __getattr__(self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> "Signature":
        from inspect import signature

        return signature(self._function)


for _package in ("whet.train", "whet.evaluate"):
    import_module(_package).__class__ = _CallablePackage
