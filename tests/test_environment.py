"""docs/environment.md names every environment variable that the code reads or sets, and no WHET_ that it does not."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "environment.md").read_text("utf-8")
NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
LONG = re.compile(r"(?!SC_)[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")  # SC_… are of os.sysconf
TOUCHES = re.compile(r"\benviron\b|\bgetenv\b|\benvvar=")
DIRECT = re.compile(r"""(?:environ(?:\.get|\.setdefault)?[(\[]|getenv\(|envvar=)["'](\w+)["']""")


def variables(source: str) -> set[str]:
    """Names that are looked up, and other text like them in such a file: a name may be passed on before it is used."""
    if not TOUCHES.search(source):
        return set()
    texts = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {text for text in texts if LONG.fullmatch(text)} | set(DIRECT.findall(source))


def documented() -> set[str]:
    return {name for name in re.findall(r"`([^`]+)`", PAGE) if NAME.fullmatch(name)}


def test_the_page_is_complete() -> None:
    found = {name for path in (ROOT / "src").rglob("*.py") for name in variables(path.read_text("utf-8"))}
    assert {"WHET_RUNS", "WHET_HOME", "WHET_RANK_TIMEOUT_SECONDS", "RANK", "WANDB_PROJECT", "MASTER_ADDR"} <= found
    assert found - documented() == set()
    assert {name for name in documented() if name.startswith("WHET_")} <= found


def test_a_variable_that_is_not_on_the_page_would_be_noticed() -> None:
    assert variables("import os\nNAME = 'WHET_NEW'\nprint(os.environ.get(NAME))") - documented() == {"WHET_NEW"}
    assert variables("NAME = 'WHET_NEW'") == set()
