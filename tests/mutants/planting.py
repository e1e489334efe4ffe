"""A mutant put in: into functions that exist already, or into a module that is yet to be imported."""

from __future__ import annotations

import ast
import gc
import importlib.machinery
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutants.sites import Mutant, planted
from tests.mutants.targets import SOURCE, source

Functions = dict[tuple[str, str], list[FunctionType]]  # path and qualified name of the code → what runs it


def living_functions(paths: set[str]) -> Functions:
    """Every function of these files, decorated or not."""
    found: Functions = {}
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename in paths:
            found.setdefault((thing.__code__.co_filename, thing.__code__.co_qualname), []).append(thing)
    return found


def can_replace(functions: Functions, mutant: Mutant) -> bool:
    """Whether the function that the mutant is in can get another code: it exists, and once."""
    there = functions.get((path_of(mutant.file), mutant.owner), [])
    return len({id(function.__code__) for function in there}) == 1


def replace(functions: Functions, mutant: Mutant) -> None:
    """Gives the living function the code of the mutant: whoever holds it runs that from now on."""
    path = path_of(mutant.file)
    module = compile(mutated(mutant), path, "exec", dont_inherit=True)
    (code,) = [code for code in _codes(module) if code.co_qualname == mutant.owner]
    for function in functions[path, mutant.owner]:
        function.__code__ = code


def import_with(mutant: Mutant) -> None:
    """From now on, importing the mutant's file gives the mutant."""
    path, tree = path_of(mutant.file), mutated(mutant)
    loader: Any = importlib.machinery.SourceFileLoader
    plain = loader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if self.path == path:
            return compile(tree, path, "exec", dont_inherit=True)
        code: CodeType | None = plain(self, fullname)
        return code

    loader.get_code = get_code


def mutated(mutant: Mutant) -> ast.Module:
    """The syntax tree of the mutant; a number below 0 plants nothing."""
    text = source(mutant.file)
    return planted(text, mutant.number) if mutant.number >= 0 else ast.parse(text)


def path_of(file: str) -> str:
    """The path that code of a target is compiled under."""
    return str(SOURCE / file)


def whets(modules: dict[str, ModuleType]) -> list[str]:
    """Modules of ours, which a process that is to import mutants must not have."""
    return [name for name in modules if name == "whet" or name.startswith("whet.")]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
