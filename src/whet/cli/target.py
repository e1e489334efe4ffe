"""What commands that talk to a model share: which one, options of tasks as they are typed, a line while it samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from whet.cli.terminal import Screen
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.engines.engine_protocol import OnToken

TOKENS_PER_REDRAW = 64
# The arguments and options that such a command has.
TARGET = typer.Argument(
    ..., metavar="RUN|MODEL|URL", help="A run (its best model), a model directory or name, or a server's URL."
)
MODEL = typer.Option(None, "--model", metavar="NAME", help="With a URL: the model's name on the server.")
TOKENIZER = typer.Option(
    None, "--tokenizer", metavar="MODEL", help="With a URL: send ids of this model's tokenizer, not text (vLLM)."
)
KEY_ENV = typer.Option(None, "--key-env", metavar="VARIABLE", help="With a URL: environment variable with the API key.")
CONCURRENCY = typer.Option(None, "--concurrency", min=1, help="With a URL: parallel requests.  [default: 16]")


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` arguments, the values read as in a recipe."""
    from whet.recipe import parse_yaml

    options = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key.isidentifier() or not equals:
            raise UserError(f"{pair!r} is not an option of a task: write key=value, e.g. level=2")
        try:
            options[key] = parse_yaml(f"value: {text}", where=pair)["value"]
        except UserError:  # what YAML cannot read is meant literally, as in a recipe's overrides
            options[key] = text
    return options


@contextmanager
def sampling_status(what: str) -> Iterator[OnToken]:
    """Shows on a terminal, while the block runs, how many tokens were sampled; silent elsewhere."""
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
