"""What is planted, and what is left alone."""

import ast
import textwrap

import pytest

from tests.mutants.sites import mutants, planted


def changed(source):
    """Every changed line of a piece of code."""
    return {mutant.after for mutant in mutants("x.py", textwrap.dedent(source).strip())}


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("y = a - b", {"y = a + b"}),
        ("y = a * b", {"y = a / b"}),
        ("y = a // b", {"y = a * b"}),
        ("y = c * (a - b)", {"y = c * (a + b)", "y = c / (a - b)"}),
        ("y = -a", {"y = a"}),
        ("y = ~a", {"y = a"}),
        ("y = a < b", {"y = a <= b", "y = a >= b"}),
        ("y = a is None", {"y = a is not None"}),
        ("y = a in b", {"y = a not in b"}),
        ("y = a and b", {"y = a or b", "y = a", "y = b"}),
        ("y = True", {"y = False"}),
        ("y = 3", {"y = 4"}),
        ("y = 1", {"y = 2", "y = 0"}),
        ("y = 0.5", {"y = 1.0"}),
        ("y = 0.0", {"y = 1.0"}),
        ("y = 'k'", {"y = 'kx'"}),
        ("y = torch.where(a, b, c)", {"y = torch.where(a, c, b)"}),
        ("y = a.clamp(b, c)", {"y = a.clamp(c, b)", "y = a"}),
        ("y = a.clamp(min=b)", {"y = a.clamp(max=b)", "y = a"}),
        ("y = a.sum(dim=1)", {"y = a.mean(dim=1)", "y = a.sum(dim=0)"}),
        ("y = sum(a)", set()),
        ("y = max(a)", {"y = min(a)"}),
        ("y = a.detach()", {"y = a"}),
        ("y = torch.expm1(a)", {"y = torch.exp(a)"}),
        ("y = f(a, key=b)", {"y = f(a)"}),
        ("y = a[b:]", {"y = a[b + 1:]"}),
        ("y = range(b)", {"y = range(b - 1)"}),
        ("y = b if a else c", {"y = b if not a else c", "y = b if True else c", "y = b if False else c"}),
        ("y = [a for a in b if a]", {f"y = [a for a in b if {test}]" for test in ("not a", "True", "False")}),
        ("y += a", {"y -= a", "pass"}),
        ("y.z = a", {"pass"}),
        ("y = a", set()),
        ("f(a)", {"pass"}),
        ("def f(a: int = 2): pass", {"def f(a: int = 3): pass"}),
        ("with torch.no_grad(): pass", {"with torch.enable_grad(): pass"}),
    ],
)
def test_one_line(line, others):
    assert changed(line) == others


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "from a import b",
        "y: Literal['a'] | None",
        "Kind = Literal['a', 'b']",
        "assert a < 1, 'no'",
        "y = f'{a + 1}'",
        "@dataclass(frozen=True)\nclass A: pass",
        "def f(a: int | None) -> int | None: ...",
        "__all__ = ['a']",
        "if TYPE_CHECKING:\n    y = 1",
        "if __name__ == '__main__':\n    main()",
        "y = zip(a, b, strict=True)",
    ],
)
def test_what_is_left_alone(source):
    assert changed(source) == set()


def test_a_guard_is_removed_by_its_condition_alone():
    assert changed("if a:\n    raise UserError('b' + 'c')") == {"if not a:", "if True:", "if False:"}
    assert "pass" in changed("if a:\n    b()\n    raise UserError('c')")


def test_a_loop_is_never_made_endless_on_purpose():
    assert changed("while a:\n    break") == {"while not a:", "while False:", "continue"}


def test_a_mutant_knows_its_function_its_lines_and_its_tree():
    source = textwrap.dedent(
        """
        class A:
            def f(self, b=1):
                def inner():
                    return (
                        b +
                        2)
                return inner
        """
    )
    found = {mutant.after: mutant for mutant in mutants("x.py", source)}
    assert found["b - 2)"].owner == "A.f"  # the outermost function is what can be replaced
    assert found["b - 2)"].lines == (5, 7)
    assert found["b - 2)"].before == "b + 2)"
    assert found["def f(self, b=2):"].owner == ""  # a default is computed at the import
    for mutant in found.values():
        tree = planted(source, mutant.number)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source))
        compile(tree, "x.py", "exec")
