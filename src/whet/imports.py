"""Finds what a user names as `module:name` or `path/to/file.py:name`. Nothing is imported unless it was named.

What is named is compiled from its source: bytecode beside it may be of an earlier text with the same size and second.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from whet.errors import UserError, nearest


def load_named(spec: str, what: str) -> object:
    """The object that `spec` names; `what` says in errors what it is for ("task", "reward function")."""
    place, _, name = spec.rpartition(":")
    if not place or not name.isidentifier():
        raise UserError(f"{what} '{spec}' must look like module:name or path/to/file.py:name")
    module = _load_file(Path(place), spec, what) if place.endswith(".py") else _load_module(place, spec, what)
    names = vars(module)
    if name not in names:
        public = [key for key in names if not key.startswith("_")]
        raise UserError(f"{what} '{spec}': {place} has no '{name}'{nearest(name, public)}")
    return names[name]


def source_file(spec: str) -> Path | None:
    """The file with the code that `spec` names, found as `load_named` finds it but without running any of it.

    None where there is no such file: nothing of that name, or a module that is no file.
    """
    place = spec.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place)
    if place in sys.modules:
        found = sys.modules[place].__spec__
    else:
        found, search = None, [str(Path.cwd()), *sys.path]
        names = place.split(".")
        for depth in range(1, len(names) + 1):
            found = PathFinder.find_spec(".".join(names[:depth]), search)
            if found is None:
                return None
            search = list(found.submodule_search_locations or ())
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def one_line(error: BaseException) -> str:
    """The type and the message of an error on one line of bearable length."""
    message = " ".join(str(error).split())
    short = message if len(message) <= 300 else message[:297] + "..."
    return f"{type(error).__name__}: {short}" if short else type(error).__name__


def _load_module(name: str, spec: str, what: str) -> ModuleType:
    _search_first(Path.cwd())
    finder = _FindsSource(name)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} '{spec}': importing {name} failed: {one_line(error)}") from error
    finally:
        sys.meta_path.remove(finder)


def _load_file(path: Path, spec: str, what: str) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{what} '{spec}': there is no file {path}")
    _search_first(path.resolve().parent)
    # The path is part of the name, so that two files called rewards.py are two modules.
    module_name = "whet_user_" + "".join(c if c.isalnum() else "_" for c in str(path.resolve()))
    if module_name in sys.modules:
        return sys.modules[module_name]
    loader = _FromSource(module_name, str(path.resolve()))
    module_spec = importlib.util.spec_from_file_location(module_name, path.resolve(), loader=loader)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UserError(f"{what} '{spec}': importing {path} failed: {one_line(error)}") from error
    return module


class _FromSource(SourceFileLoader):
    """Neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _FindsSource:
    """Finds one module where the path has it, and has it compiled from its source."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if found is not None and type(found.loader) is SourceFileLoader:
            found.loader = _FromSource(found.loader.name, found.loader.path)
        return found


def _search_first(directory: Path) -> None:
    """Puts a directory in front of the import path, as `python -m` and `python file.py` do."""
    if sys.path[:1] != [str(directory)]:
        sys.path[:] = [str(directory), *(entry for entry in sys.path if entry != str(directory))]
