"""The small bugs that are planted: for a node of a syntax tree, what may stand in its place."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Swap = tuple[str, ast.AST]  # the operator's name, and the node that takes the place of another

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.MatMult: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_PAIRS = (
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("exp", "expm1"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("std", "var"),
    ("floor", "ceil"),
)
NAMES = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])} | {
    "sum": "mean",
    "mean": "sum",
    "log": "log1p",
    "float64": "float32",
    "sorted": "list",
    "reversed": "list",
    "no_grad": "enable_grad",
}
ONLY_METHODS = {"sum", "mean", "log", "float64", "no_grad"}  # `sum(rows)` of plain Python has no mean beside it
ONLY_FUNCTIONS = {"sorted", "reversed"}
REMOVED = {"detach", "abs", "masked_fill", "clamp", "square", "exp", "log", "float", "double", "long", "flip"}


def swaps(node: ast.AST) -> Iterator[Swap]:
    """Every bug of one node."""
    for kind, planted in _BY_KIND.items():
        if isinstance(node, kind):
            yield from planted(node)


def conditions(test: ast.expr, *, may_loop: bool) -> Iterator[Swap]:
    """A condition turned round, and one that always or never holds; where that could loop for ever, never."""
    if not isinstance(test, ast.Compare | ast.UnaryOp):  # these are turned round by themselves
        yield "condition", ast.UnaryOp(op=ast.Not(), operand=test)
    if not may_loop:
        yield "condition", ast.Constant(value=True)
    yield "condition", ast.Constant(value=False)


def _binary(node: ast.BinOp) -> Iterator[Swap]:
    yield "arithmetic", ast.BinOp(left=node.left, op=ARITHMETIC[type(node.op)](), right=node.right)


def _unary(node: ast.UnaryOp) -> Iterator[Swap]:
    yield "unary", node.operand


def _compare(node: ast.Compare) -> Iterator[Swap]:
    for place, operation in enumerate(node.ops):
        for other in COMPARISONS[type(operation)]:
            changed = [*node.ops[:place], other(), *node.ops[place + 1 :]]
            yield "comparison", ast.Compare(left=node.left, ops=changed, comparators=node.comparators)


def _boolean(node: ast.BoolOp) -> Iterator[Swap]:
    yield "boolean", ast.BoolOp(op=ast.And() if isinstance(node.op, ast.Or) else ast.Or(), values=node.values)
    for place in range(len(node.values)):
        rest = [*node.values[:place], *node.values[place + 1 :]]
        yield "operand left out", rest[0] if len(rest) == 1 else ast.BoolOp(op=node.op, values=rest)


def _constant(node: ast.Constant) -> Iterator[Swap]:
    value = node.value
    if isinstance(value, bool):
        yield "constant", ast.Constant(value=not value)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value=value + 1)
        if value == 1:
            yield "constant", ast.Constant(value=0)
    elif isinstance(value, float):
        yield "constant", ast.Constant(value=value * 2 if value else 1.0)
    elif isinstance(value, str):
        yield "string", ast.Constant(value=f"{value}x")


def _call(node: ast.Call) -> Iterator[Swap]:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name == "where" and len(node.args) == 3:
        yield "branches", _again(node, args=[node.args[0], node.args[2], node.args[1]])
    if name == "clamp" and len(node.args) == 2:
        yield "bounds", _again(node, args=node.args[::-1])
    if name == "range" and not isinstance(node.args[-1], ast.Constant | ast.UnaryOp) and len(node.args) < 3:
        shorter = ast.BinOp(left=node.args[-1], op=ast.Sub(), right=ast.Constant(value=1))
        yield "bounds", _again(node, args=[*node.args[:-1], shorter])
    if isinstance(called, ast.Attribute) and name in REMOVED and not _is_module(called.value):
        yield "call removed", called.value
    for place, keyword in enumerate(node.keywords):
        yield from _keyword(node, place, keyword)


def _keyword(node: ast.Call, place: int, keyword: ast.keyword) -> Iterator[Swap]:
    """An argument that is forgotten; of those that are plain constants another value says more."""
    rest = [*node.keywords[:place], *node.keywords[place + 1 :]]
    if keyword.arg in {"min", "max"}:
        other = ast.keyword(arg="max" if keyword.arg == "min" else "min", value=keyword.value)
        if not any(one.arg == other.arg for one in rest):
            yield "bounds", _again(node, keywords=[*node.keywords[:place], other, *node.keywords[place + 1 :]])
    elif keyword.arg == "dim":
        value = ast.literal_eval(keyword.value) if isinstance(keyword.value, ast.Constant | ast.UnaryOp) else None
        if isinstance(value, int):
            other = ast.keyword(arg="dim", value=ast.Constant(value=1 if value == 0 else 0))
            yield "dim", _again(node, keywords=[*node.keywords[:place], other, *node.keywords[place + 1 :]])
    elif keyword.arg not in {None, "device"} and not _is_usual(keyword):
        yield "argument left out", _again(node, keywords=rest)


def _is_usual(keyword: ast.keyword) -> bool:
    """A constant gets another value, and fp32 is what torch takes by itself."""
    return isinstance(keyword.value, ast.Constant) or ast.unparse(keyword) == "dtype=torch.float32"


def _again(node: ast.Call, args: list[ast.expr] | None = None, keywords: list[ast.keyword] | None = None) -> ast.Call:
    return ast.Call(
        func=node.func,
        args=node.args if args is None else args,
        keywords=node.keywords if keywords is None else keywords,
    )


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"torch", "math", "np", "random"}


def _attribute(node: ast.Attribute) -> Iterator[Swap]:
    if node.attr in NAMES and node.attr not in ONLY_FUNCTIONS:
        yield "name", ast.Attribute(value=node.value, attr=NAMES[node.attr], ctx=node.ctx)


def _name(node: ast.Name) -> Iterator[Swap]:
    if node.id in NAMES and node.id not in ONLY_METHODS and isinstance(node.ctx, ast.Load):
        yield "name", ast.Name(id=NAMES[node.id], ctx=node.ctx)


def _slice(node: ast.Slice) -> Iterator[Swap]:
    """Bounds that are no constants, one too far inside."""
    one = ast.Constant(value=1)
    if node.lower is not None and not isinstance(node.lower, ast.Constant | ast.UnaryOp):
        lower = ast.BinOp(left=node.lower, op=ast.Add(), right=one)
        yield "bounds", ast.Slice(lower=lower, upper=node.upper, step=node.step)
    if node.upper is not None and not isinstance(node.upper, ast.Constant | ast.UnaryOp):
        upper = ast.BinOp(left=node.upper, op=ast.Sub(), right=one)
        yield "bounds", ast.Slice(lower=node.lower, upper=upper, step=node.step)


def _augmented(node: ast.AugAssign) -> Iterator[Swap]:
    yield "arithmetic", ast.AugAssign(target=node.target, op=ARITHMETIC[type(node.op)](), value=node.value)
    yield "statement removed", ast.Pass()


def _expression(node: ast.Expr) -> Iterator[Swap]:
    if not isinstance(node.value, ast.Constant):  # a docstring, or the dots of a protocol
        yield "statement removed", ast.Pass()


def _assigned(node: ast.Assign) -> Iterator[Swap]:
    """What has a value without it: attributes and elements. A name would only be missing."""
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield "statement removed", ast.Pass()


def _removed(node: ast.stmt) -> Iterator[Swap]:
    yield "statement removed", ast.Pass()


def _jump(node: ast.Break | ast.Continue) -> Iterator[Swap]:
    yield "jump", ast.Continue() if isinstance(node, ast.Break) else ast.Break()


_BY_KIND: dict[type[ast.AST], Callable[..., Iterator[Swap]]] = {
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.Constant: _constant,
    ast.Call: _call,
    ast.Attribute: _attribute,
    ast.Name: _name,
    ast.Slice: _slice,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.Assign: _assigned,
    ast.Raise: _removed,
    ast.Break: _jump,
    ast.Continue: _jump,
}
