"""Where bugs can be planted in a file: every mutant of it, numbered, and the syntax tree with one of them in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.mutants.operators import Swap, conditions, swaps

# Nothing of these is run, or nobody counts on it: types, messages of errors, what asserts say of ourselves.
SKIPPED_NODES = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "bases", "type_params"}
TYPES = {"Literal", "Callable", "TypeVar", "cast"}
UNDOUBTED = {"strict"}  # `zip(..., strict=True)` states what the lengths are, as an assert would


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One planted bug."""

    file: str  # below src/whet
    number: int  # in the order of the file's mutants
    line: int
    owner: str  # the outermost function that it is in; empty where it runs at the import
    operator: str
    before: str
    after: str
    lines: tuple[int, int]  # first and last of the statement: what a test must touch to see it

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it when lines have moved."""
        return self.file, self.owner, self.before, self.after


@dataclass(frozen=True, slots=True)
class _Site:
    parent: ast.AST
    field: str
    place: int | None
    node: ast.AST
    new: ast.AST
    operator: str
    owner: str
    statement: ast.stmt


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a source; two that read the same are one."""
    found: dict[tuple[Any, ...], Mutant] = {}
    lines = source.encode().split(b"\n")
    for number, site in enumerate(_sites(ast.parse(source))):
        first, last = _span(site.statement)
        before, after = _texts(lines, site)
        mutant = Mutant(
            file=file,
            number=number,
            line=site.node.lineno,  # type: ignore[attr-defined]
            owner=site.owner,
            operator=site.operator,
            before=before,
            after=after,
            lines=(first, last),
        )
        if before != after:
            found.setdefault((mutant.line, before, after), mutant)
    return list(found.values())


def planted(source: str, number: int) -> ast.Module:
    """The syntax tree with this mutant in."""
    tree = ast.parse(source)
    for index, site in enumerate(_sites(tree)):
        if index == number:
            new = ast.copy_location(site.new, site.node)
            if site.place is None:
                setattr(site.parent, site.field, new)
            else:
                getattr(site.parent, site.field)[site.place] = new
            return ast.fix_missing_locations(tree)
    raise ValueError(f"there are {index + 1} mutants, not {number}")


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for statement in tree.body:
        if not _is_named(statement, "__all__"):
            yield from _inside(tree, "body", tree.body.index(statement), statement, "", (), statement)


def _inside(
    parent: ast.AST,
    field: str,
    place: int | None,
    node: ast.AST,
    owner: str,
    path: tuple[str, ...],
    around: ast.stmt,
) -> Iterator[_Site]:
    """The sites of a node and below it; `path` names the classes and functions around it."""
    statement = node if isinstance(node, ast.stmt) else around
    if _is_skipped(node):
        return
    for operator, new in _swaps(parent, field, node):
        yield _Site(parent, field, place, node, new, operator, owner, statement)
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        path = (*path, node.name)
    for name, value in ast.iter_fields(node):
        is_body = isinstance(node, ast.FunctionDef) and name == "body"
        below = owner or (".".join(path) if is_body else "")
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _is_settled(node, name, child):
                yield from _inside(
                    node, name, index if isinstance(value, list) else None, child, below, path, statement
                )


def _swaps(parent: ast.AST, field: str, node: ast.AST) -> Iterator[Swap]:
    if isinstance(node, ast.expr) and (field == "test" or (isinstance(parent, ast.comprehension) and field == "ifs")):
        yield from conditions(node, may_loop=isinstance(parent, ast.While))
    if not (isinstance(node, ast.Raise) and isinstance(parent, ast.If) and len(parent.body) == 1):  # as `if False`
        yield from swaps(node)


def _is_skipped(node: ast.AST) -> bool:
    if isinstance(node, SKIPPED_NODES) or (isinstance(node, ast.keyword) and node.arg in UNDOUBTED):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test) in {"TYPE_CHECKING", "__name__ == '__main__'"}
    named = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else None
    return isinstance(named, ast.Name) and named.id in TYPES


def _is_settled(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """What is not run, and what the operators of the parent have already changed: a docstring, a `dim`."""
    if field in SKIPPED_FIELDS:
        return not (isinstance(parent, ast.FunctionDef) and ast.unparse(child) == "torch.no_grad()")
    if isinstance(parent, ast.Expr) and isinstance(child, ast.Constant):
        return True
    return isinstance(parent, ast.keyword) and parent.arg == "dim"


def _is_named(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(ast.unparse(target) == name for target in statement.targets)


def _span(statement: ast.stmt) -> tuple[int, int]:
    """The lines of a statement, of one with a body those before the body."""
    body: Sequence[ast.stmt] = getattr(statement, "body", [])
    last = statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, body[0].lineno - 1) if body else last


def _texts(lines: Sequence[bytes], site: _Site) -> tuple[str, str]:
    """The lines of the node as they are and with the other node in, each as one line."""
    node: Any = site.node
    start, end = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    old = b" ".join(line.strip() for line in lines[start : end + 1])
    text = ast.unparse(site.new)
    if isinstance(site.new, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp) and type(site.new) is not type(node):
        text = f"({text})"
    new = lines[start][: node.col_offset] + text.encode() + lines[end][node.end_col_offset or 0 :]
    return old.decode().strip(), new.decode().strip()
