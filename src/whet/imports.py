"""Loads objects named as `module:name` or `path/to/file.py:name`.

`<python>:name` is an object passed to `whet.train`, available in this process only. Modules are compiled from source:
cached bytecode may belong to an older file with the same size and time stamp.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from whet.errors import UserError, nearest
from whet.user_code import located, one_line, printing_to_log

OBJECTS = "<python>"  # in place of a module or file
AGAIN = {
    "reward function": "rewards=[{}]",
    "task": "task={}",
}  # how an object is passed, by kind; else a cell
_objects: ContextVar[Mapping[str, object]] = ContextVar("objects", default=MappingProxyType({}))  # by name


def load_named(spec: str, what: str) -> object:
    """The object that `spec` names; errors call it `what` ("task", "reward function")."""
    place, _, name = spec.rpartition(":")
    if place == OBJECTS:
        return _passed(spec, name, what)
    if not place or not name.isidentifier():
        raise UserError(f"{what} '{spec}' must look like module:name or path/to/file.py:name")
    module = _load_file(Path(place), spec, what) if place.endswith(".py") else _load_module(place, spec, what)
    names = vars(module)
    if name not in names:
        public = [key for key in names if not key.startswith("_")]
        raise UserError(f"{what} '{spec}': {place} has no '{name}'{nearest(name, public)}")
    return names[name]


def is_object(spec: str) -> bool:
    return spec.startswith(f"{OBJECTS}:")


def has_objects() -> bool:
    return bool(_objects.get())


@contextmanager
def passing(objects: Mapping[str, object]) -> Iterator[None]:
    """Makes these objects available as `<python>:name`."""
    token = _objects.set({**_objects.get(), **objects})
    try:
        yield
    finally:
        _objects.reset(token)


def importable(thing: object) -> str | None:
    """`module:name` of a function or class that another process can import, else None.

    Objects defined in a notebook, in the running script or inside a function cannot be imported.
    """
    if not isinstance(thing, FunctionType | type) or thing.__module__ in {"__main__", "builtins"}:
        return None
    spec = f"{thing.__module__}:{thing.__qualname__}"
    module = sys.modules.get(thing.__module__)
    if module is None or vars(module).get(thing.__qualname__) is not thing:
        return None
    file = source_file(spec)
    return spec if file is not None and file.is_file() else None


def object_source(spec: str, what: str) -> str | None:
    """The source of a passed function, or of an object's class; None if Python has none. Without captured values."""
    found: Any = load_named(spec, what)
    found = found.func if isinstance(found, partial) else found
    with suppress(OSError, TypeError):
        return inspect.getsource(found if isinstance(found, FunctionType | type) else type(found))
    return None


def source_file(spec: str) -> Path | None:
    """The file that `load_named` would load, without running it; None if there is no such file."""
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


def optional_package(name: str, purpose: str, *, remedy: str = "") -> Any:
    """A package that whet does not depend on, or a module of it; errors say whether it is missing or broken.

    `purpose` is what needs it, `remedy` what to do if it is missing; empty: install the package of that name.
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package's own mistakes may be of any type
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            install = remedy or f"pip install {package}"
            raise UserError(f"{purpose} needs the package {package}, which is not installed: {install}") from error
        raise UserError(
            f"{purpose}: the package {package} is installed and its import fails: {one_line(error)}"
        ) from error


def _passed(spec: str, name: str, what: str) -> object:
    objects = _objects.get()
    if name not in objects:
        cell = f'algorithm={{{{"{what.rpartition(".")[2]}": {{}}}}}}'
        again = AGAIN.get(what, cell).format(name)
        raise UserError(
            f"{what} '{spec}' is a Python object passed to whet.train, so it has to be passed again from Python: "
            f"whet.train(resume=RUN, {again})"
        )
    return objects[name]


def _load_module(name: str, spec: str, what: str) -> ModuleType:
    _search_first(Path.cwd())
    finder = _FindsSource(name)
    sys.meta_path.insert(0, finder)
    try:
        with printing_to_log():
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} '{spec}': importing {name} failed: {located(error)}") from error
    finally:
        sys.meta_path.remove(finder)


def _load_file(path: Path, spec: str, what: str) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{what} '{spec}': there is no file {path}")
    _search_first(path.resolve().parent)
    # The path is in the name, so that two files called rewards.py are two modules.
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
        with printing_to_log():
            module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise UserError(f"{what} '{spec}': importing {path} failed: {located(error)}") from error
    return module


class _FromSource(SourceFileLoader):
    """Without bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _FindsSource:
    """Finds one module on the path, to be compiled from source."""

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
    """Puts a directory first on the import path, as `python file.py` does."""
    if sys.path[:1] != [str(directory)]:
        sys.path[:] = [str(directory), *(entry for entry in sys.path if entry != str(directory))]
