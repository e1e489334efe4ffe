"""A row of programs with tests as a `Case`: MBPP, HumanEval, or the columns `prompt` and `tests` of one's own.

Tests are single statements that pass if they raise nothing, so that each counts by itself. A function
`check(candidate)` is taken apart into the statements of its body. What runs beside the tests is code of the
data set alone.
"""

import ast
import builtins
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.errors import UserError

CHECK, CANDIDATE = "check", "candidate"  # names of HumanEval
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A problem: what is asked for, and the tests of a program that solves it."""

    text: str  # the problem in words, or the beginning of a program
    tests: tuple[str, ...]
    setup: str  # runs before the tests
    names: tuple[str, ...]  # what the tests use of the program
    solution: str = ""  # a program that passes, if there is one
    entry_point: str = ""  # the function that `text` begins, if a completion continues it
    beside: str = ""  # what else is in such a text: imports and functions


def case_of(row: Mapping[str, Any], where: str) -> Case:
    """The case of a row; an error names what is missing or cannot be parsed."""
    try:
        if "entry_point" in row and "test" in row:
            return _humaneval(row, where)
        if "test_list" in row:
            return _mbpp(row, where)
        if "tests" in row:
            return _own(row, where)
    except SyntaxError as error:
        raise UserError(f"{where}: its tests or its solution are not Python: {error.msg}: repair the row") from error
    raise UserError(
        f"{where} has no tests (it has: {', '.join(row)}): a row needs prompt and tests, or the columns of MBPP "
        "(test_list) or HumanEval (entry_point, test)"
    )


def _mbpp(row: Mapping[str, Any], where: str) -> Case:
    tests = _texts(row["test_list"], "test_list", where)
    setup = "\n".join([*_texts(row.get("test_imports") or [], "test_imports", where), row.get("test_setup_code") or ""])
    solution = _lines(row.get("code") or "")
    return _case(_text(row, ("text", "prompt"), where), _statements(tests), _lines(setup), solution, "", where)


def _own(row: Mapping[str, Any], where: str) -> Case:
    given = row["tests"]
    tests = _statements([given] if isinstance(given, str) else _texts(given, "tests", where))
    solution = _lines(str(row.get("solution") or row.get("answer") or ""))
    setup = _lines(str(row.get("setup") or ""))
    return _case(_text(row, ("prompt",), where), tests, setup, solution, str(row.get("entry_point") or ""), where)


def _humaneval(row: Mapping[str, Any], where: str) -> Case:
    text, entry = _text(row, ("prompt",), where), str(row["entry_point"])
    beside = [node for node in _parsed(text) if getattr(node, "name", "") != entry]
    nodes = _parsed(_lines(row["test"]))
    check = next((node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == CHECK), None)
    if check is None:
        raise UserError(f"{where}: its test has no function check(candidate)")
    others = [node for node in nodes if node is not check]
    setup = [*beside, *others, *_parsed(f"{CANDIDATE} = {entry}")]
    tests = [check, *_parsed(f"{CHECK}({entry})")] if _returns(check) else list(check.body)
    return Case(
        text=text,
        tests=_tests(tests, setup),
        setup=_source(setup),
        names=(entry,),
        solution=text + str(row.get("canonical_solution") or "") if row.get("canonical_solution") else "",
        entry_point=entry,
        beside=_source(beside),
    )


def _case(text: str, tests: Sequence[ast.stmt], setup: str, solution: str, entry: str, where: str) -> Case:
    before = _parsed(setup)
    used, bound = _used([*tests, *before]), _bound([*tests, *before])
    own = _parsed(solution)
    if solution:
        names = {name for node in own if not isinstance(node, IMPORTS) for name in _binds(node)} & used - bound
        before = [node for node in own if isinstance(node, IMPORTS) and set(_binds(node)) & used - bound] + before
    else:
        names = used - bound - set(dir(builtins))
    names |= {entry} - {""}
    if not names:
        raise UserError(f"{where}: its tests use no name that a program would define, so they test nothing")
    cases = _tests(tests, before)
    return Case(text=text, tests=cases, setup=_source(before), names=tuple(sorted(names)), solution=solution)


def _tests(nodes: Iterable[ast.stmt], setup: list[ast.stmt]) -> tuple[str, ...]:
    """Statements that assert, each with those before it; definitions and imports are moved to the setup.

    `assert True` tests nothing and is left out. Without any assertion every statement is a test.
    """
    rest = []
    for node in nodes:
        if isinstance(node, (*DEFINITIONS, *IMPORTS)):
            setup.append(node)
        elif not (isinstance(node, ast.Assert | ast.Expr) and isinstance(_value(node), ast.Constant)):
            rest.append(node)
    is_test = [_asserts(node) for node in rest]
    tests: list[list[ast.stmt]] = [[]]
    for node, ends in zip(rest, is_test, strict=True):
        tests[-1].append(node)
        if ends or not any(is_test):
            tests.append([])
    *whole, left = tests
    if left and whole:
        whole[-1] += left
    return tuple(_source(statements) for statements in whole)


def _value(node: ast.Assert | ast.Expr) -> ast.expr:
    return node.test if isinstance(node, ast.Assert) else node.value


def _asserts(node: ast.stmt) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


def _returns(function: ast.FunctionDef) -> bool:
    return any(isinstance(inner, ast.Return) for inner in ast.walk(function))


def _used(nodes: Iterable[ast.stmt]) -> set[str]:
    inner = (one for node in nodes for one in ast.walk(node))
    return {one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def _bound(nodes: Iterable[ast.stmt]) -> set[str]:
    """The names that the statements give a value themselves, arguments of functions and loops among them."""
    inner = [one for node in nodes for one in ast.walk(node)]
    found = {name for one in inner if isinstance(one, (*DEFINITIONS, *IMPORTS)) for name in _binds(one)}
    found |= {one.id for one in inner if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    found |= {one.arg for one in inner if isinstance(one, ast.arg)}
    return found | {one.name for one in inner if isinstance(one, ast.ExceptHandler) and one.name}


def _binds(node: ast.AST) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, IMPORTS):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [one.id for target in node.targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return []


def _parsed(source: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # published solutions have '\\d' in plain strings
        return ast.parse(source).body


def _statements(sources: Iterable[str]) -> list[ast.stmt]:
    return [node for source in sources for node in _parsed(_lines(source))]


def _source(nodes: Iterable[ast.stmt]) -> str:
    return "\n".join(ast.unparse(node) for node in nodes)


def _lines(source: str) -> str:
    return source.replace("\r\n", "\n")


def _text(row: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    for name in names:
        if isinstance(row.get(name), str) and row[name].strip():
            return _lines(row[name])
    raise UserError(f"{where} has no text in {' or '.join(names)}")


def _texts(value: Any, name: str, where: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise UserError(f"{where}: {name} is {value!r:.40}, must be a list of Python statements")
    return list(value)
