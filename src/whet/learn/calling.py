"""Calls of a learner's function: tensors in, plain numbers out, and sentences for whatever else happens."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from whet.learn.exercise import Functions, Remark
from whet.user_code import located

Plain = Any  # a number, or lists of them: what oracles take and return
LONGEST = 300  # characters of a value in an example


class Wrong(Exception):
    """A call that gave no answer to compare; the remark says why."""

    def __init__(self, sentence: str, example: str = "") -> None:
        super().__init__(sentence)
        self.remark = Remark(sentence, example)


def called(functions: Functions, name: str, arguments: Mapping[str, Plain], *, tensors: bool = True) -> Any:
    """What the learner's function returns; `Wrong` if it does not exist, raises, returns nothing, or changes inputs."""
    given = {key: as_tensor(value) if tensors else copy.deepcopy(value) for key, value in arguments.items()}
    answer = invoked(functions, name, given)
    if any(not same(as_plain(given[key]), value) for key, value in arguments.items()):
        raise Wrong(f"`{name}` changes its arguments: whoever called it still needs them. Work on a copy")
    return answer


def invoked(functions: Functions, name: str, given: Mapping[str, Any]) -> Any:
    """The call itself, with arguments as they are."""
    function = functions.get(name)
    if not callable(function):
        raise Wrong(f"the file defines no function `{name}`; the stub has one, keep its name and its arguments")
    try:
        answer = function(**given)
    except NotImplementedError:
        raise Wrong(f"`{name}` is not written yet: replace its `raise NotImplementedError`") from None
    except Exception as error:  # noqa: BLE001 - whatever a learner's code raises
        shown = ", ".join(f"{key}={short(as_plain(value))}" for key, value in given.items())
        raise Wrong(f"`{name}` raises an error: {located(error)}", f"{name}({shown})") from None
    if answer is None:
        raise Wrong(f"`{name}` returns None: a `return` is missing on the way that was taken")
    return answer


def as_tensor(value: Plain) -> Any:
    """Lists become tensors (numbers in fp64, so that rounding is no excuse); single numbers stay as they are."""
    import torch

    if not isinstance(value, list):
        return value
    found = torch.tensor(value)
    return found.double() if found.is_floating_point() else found


def as_plain(value: Any) -> Plain:
    """Tensors as lists of numbers; what has no such form stays as it is."""
    if hasattr(value, "detach"):
        return value.detach().tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: as_plain(part) for key, part in value.items()}
    return value


def same(one: Plain, other: Plain, tolerance: float = 1e-4) -> bool:
    """Whether both have the same form and, within the tolerance (relative above 1), the same numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if is_number(one) and is_number(other):
        if not (math.isfinite(one) and math.isfinite(other)):
            return bool(one == other)
        return bool(abs(one - other) <= tolerance * max(1.0, abs(other)))
    return bool(one == other)


def is_number(value: Any) -> bool:
    """Whether it is one number; True and False are 1 and 0."""
    return isinstance(value, int | float)


def shape(value: Plain) -> tuple[int, ...] | None:
    """The shape of nested lists; None where they are ragged or hold something else than numbers."""
    if is_number(value):
        return ()
    if not isinstance(value, list):
        return None
    inner = {shape(part) for part in value}
    if None in inner or len(inner) > 1:
        return None
    return (len(value), *(next(iter(inner), ()) or ()))


def flat(value: Plain) -> list[float]:
    """The numbers of nested lists, in order."""
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [float(value)]


def short(value: Plain) -> str:
    """A value for a reader: four digits, cut where it is long."""
    text = _text(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _text(value: Plain) -> str:
    if isinstance(value, bool) or not isinstance(value, float | list | dict | tuple):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(part)}" for key, part in value.items()) + "}"
    inside = ", ".join(_text(part) for part in value)
    return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
