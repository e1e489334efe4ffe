"""Users' functions in place of packaged ones: loading them and checking their signatures."""

import inspect
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from whet.algorithms.cells import Cell, options, terms
from whet.errors import nearest
from whet.imports import load_named

AnyKind = TypeVar("AnyKind", bound=str)


def own_function(spec: str, what: str) -> Cell:
    """The function that `spec` names; errors call it `what`."""
    found = load_named(spec, what)
    if isinstance(found, type) or not callable(found):
        raise ValueError(f"{what} '{spec}' is a {type(found).__name__}, not a function: name one")
    return found


def require_signature(cell: Cell, spec: str, known: Sequence[str], hint: str) -> None:
    """Refuses a signature that the loop cannot call: it supplies terms by name, and options must have defaults."""
    try:
        parameters = inspect.signature(cell).parameters
    except (TypeError, ValueError) as error:
        raise ValueError(f"{spec} has no signature that can be read: write a plain function around it") from error
    for key, parameter in parameters.items():
        has_default = parameter.default is not parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"{spec} takes *{key}: name what it needs, because the loop supplies terms by their names")
        if parameter.kind is parameter.KEYWORD_ONLY and not has_default:
            raise ValueError(f"{spec}: option '{key}' has no default: give it one, e.g. {key}=0.2")
        if parameter.kind is parameter.KEYWORD_ONLY or key in known:
            continue
        if has_default:
            raise ValueError(f"{spec} takes '{key}' by position; make it an option: write *, before the first option")
        raise ValueError(f"{spec} takes '{key}', which the loop does not supply{nearest(key, known)} ({hint})")


def kind_by_terms(
    cell: Cell, spec: str, supplied: Mapping[AnyKind, Sequence[str]], known_by: Sequence[tuple[Sequence[str], AnyKind]]
) -> AnyKind:
    """The kind of a cell: the first whose characteristic terms it takes. It may take only the terms of that kind."""
    hint = "; ".join(f"{kind}: {', '.join(some)}" for kind, some in supplied.items())
    require_signature(cell, spec, [*dict.fromkeys(term for some in supplied.values() for term in some)], hint)
    taken = terms(cell)
    found = next(((marks, kind) for marks, kind in known_by if set(marks) <= set(taken)), None)
    if found is None:
        raise ValueError(f"{spec} takes {', '.join(taken) or 'nothing'}, by which it is none of these ({hint})")
    marks, kind = found
    strange = ", ".join(term for term in taken if term not in supplied[kind])
    if strange:
        by = " and ".join(marks)
        raise ValueError(f"{spec} takes {by} and so is of kind {kind}, which is not supplied with {strange} ({hint})")
    return kind


def require_options(cell: Cell, spec: str, given: Mapping[str, Any]) -> None:
    """Refuses an option that the function does not have, or a value of another type than its default's."""
    known = options(cell)
    for key, value in given.items():
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"{spec} has no option '{key}'{nearest(key, known)} ({has})")
        expected = type(known[key])
        is_int_for_float = expected is float and type(value) is int
        if known[key] is not None and type(value) is not expected and not is_int_for_float:
            raise ValueError(f"{spec}: {key} is {value!r} and must be a {expected.__name__}")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{spec}: {key} is {value!r} and must be a finite number")
