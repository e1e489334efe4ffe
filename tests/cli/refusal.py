"""What every wrong input must end in: one line that begins with `whet: `, an exit code, and no traceback."""

from pathlib import Path

from tests.cli.tiny import Whet
from whet.cli.progress import SilentProgress
from whet.recipe import read_recipe
from whet.train.start import start_run

RECIPE = """
steps: 2
model: {new: {family: gpt2, layers: 1, heads: 2, width: 16, context: 16}}
task: {name: sorting, level: 1}
algorithm: grpo
rollout: {prompts: 2, group: 2, max_tokens: 3}
eval: {every_steps: 2, examples: 4, max_tokens: 3}
save: {every_steps: 1}
track: []
"""


def write_recipe(directory: Path, text: str = RECIPE) -> Path:
    path = directory / "tiny.yaml"
    path.write_text(text)
    return path


def train_tiny(directory: Path, *overrides: str) -> Path:
    """A finished run of the tiny recipe: a character model that knows digits and `>`, context 16."""
    recipe = read_recipe(str(write_recipe(directory)), overrides)
    return start_run(recipe, directory / "runs", lambda config, run: SilentProgress())


def refused(whet: Whet, *arguments: object, code: int = 2, stdin: str = "") -> str:
    """The one line that a wrong command ends in; progress may stand before it, nothing after it."""
    result = whet(*arguments, stdin=stdin)
    return one_line(result.code, result.err, code)


def one_line(found: int, err: str, code: int) -> str:
    lines = err.splitlines()
    assert found == code, err
    assert [line.startswith("whet: ") for line in lines].count(True) == 1, err
    assert lines[-1].startswith("whet: "), err
    assert "Traceback" not in err
    return lines[-1].removeprefix("whet: ")
