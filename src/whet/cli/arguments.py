"""Arguments that several commands share, options of the form key=value, and a status line while sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.terminal import Screen
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.engines.engine_protocol import OnToken

TOKENS_PER_REDRAW = 64
DATA_KEYS = ("data", "data.path", "task.path")  # a run that made rows
RUN_KEYS = ("model", "model.path", "reward.model", "reward.model.path", "reference", *DATA_KEYS)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Runs = Annotated[Path, typer.Option("--runs", envvar="WHET_RUNS", help="Folder in which runs are made.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Exact directory of the run, empty or absent.")]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of the run, after the time.  [default: that of the recipe]")
]
Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A packaged recipe or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Override keys of the recipe.")]
TaskOptions = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the task, e.g. level=2.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL|URL", help="A run (its best model; @last: the newest), a model directory or name, or a URL."
    ),
]
TaskName = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="Task with held-out prompts.  [default: the run's]")
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest completion, in tokens.  [default: the run's, else 256]")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same completions.")]
Served = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="With a URL: the model's name on the server.")
]
IdsOf = Annotated[
    str | None,
    typer.Option(
        "--tokenizer", metavar="MODEL", help="With a URL: send ids of this model's tokenizer, not text (vLLM)."
    ),
]
KeyEnv = Annotated[
    str | None, typer.Option("--key-env", metavar="VARIABLE", help="With a URL: environment variable with the API key.")
]
Concurrency = Annotated[int | None, typer.Option(min=1, help="With a URL: parallel requests.  [default: 16]")]


def run_directory(text: str, root: Path | None = None) -> Path:
    """The directory that names a run: a path, `@last`, or a part of the name of one run; an unknown one as it is."""
    from whet.runs.catalogue import ELSEWHERE, find_run, known_runs, runs_root

    folder = runs_root(root)
    found = find_run(text, folder)
    if found is None and "/" not in text:
        known = f"{known_runs(folder)}; {ELSEWHERE}"
        raise UserError(f"no directory {text}, and no run has that in its name: {known}")
    return found or Path(text).expanduser()


def with_runs(overrides: Sequence[str] | None, root: Path | None = None) -> list[str]:
    """Overrides with the directory of a run in place of its name: model=@last, reward.model=PART."""
    return [_with_run(word, root) for word in overrides or ()]


def _with_run(word: str, root: Path | None) -> str:
    from whet.models.download.model_hub import resolve_model
    from whet.runs.catalogue import MARK, find_run, runs_root

    key, _, text = word.partition("=")
    if key not in RUN_KEYS or not text:
        return word
    if not text.startswith(MARK):
        if key in DATA_KEYS or not re.fullmatch(r"[\w.-]+", text):
            return word
        with suppress(UserError):  # a directory, or a pulled model
            resolve_model(text)
            return word
    found = find_run(text, runs_root(root))
    return word if found is None else f"{key}={json.dumps(str(found.absolute()))}"


def read_options(
    pairs: Sequence[str], of: str = "a task", example: str = "level=2", *, literal: bool = True
) -> dict[str, Any]:
    """`key=value` arguments; values are read as in a recipe, and if `literal`, what is not YAML is taken as text."""
    from whet.recipe import parse_yaml

    options = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.removeprefix("task.").removeprefix("data.")  # as recipes and hints of errors have it
        if not key.isidentifier() or not equals:
            raise UserError(f"{pair!r} is not an option of {of}: write key=value, e.g. {example}")
        try:
            options[key] = parse_yaml(f"value: {text}", where=pair)["value"]
        except UserError as error:
            if not literal:
                raise UserError(f"{pair!r} has a value that cannot be read: write e.g. {example}") from error
            options[key] = text
    return options


@contextmanager
def sampling_status(what: str) -> Iterator[OnToken]:
    """Shows the number of sampled tokens on a terminal while the block runs; silent elsewhere."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield lambda _prompt, _sample, _token: None
        return
    sampled = 0
    with console.status(f"{what}: loading") as status:

        def count(_prompt: int, _sample: int, _token: int) -> None:
            nonlocal sampled
            sampled += 1
            if sampled % TOKENS_PER_REDRAW == 0:
                status.update(f"{what}: {sampled:,} tokens")

        yield count
