"""A model behind a server's URL, for the commands that need no more than its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.models import Served, Target

# The options that such a command has.
MODEL = typer.Option(None, "--model", metavar="NAME", help="With a URL: which of the server's models.")
TOKENIZER = typer.Option(
    None, "--tokenizer", metavar="MODEL", help="With a URL: exchange ids of this model's tokeniser, not text (vLLM)."
)
KEY_ENV = typer.Option(None, "--key-env", metavar="VARIABLE", help="With a URL: the variable that holds its API key.")
CONCURRENCY = typer.Option(None, "--concurrency", min=1, help="With a URL: requests at a time.  [default: 16]")


def find_model(
    text: str, model: str | None, tokenizer: str | None, key_env: str | None, concurrency: int | None
) -> Target | Served:
    """What a command was asked to talk to: a model here, or one behind a URL."""
    from whet.api.models import Served, find_target, is_url

    if is_url(text):
        if not model:
            raise UserError(f"{text} is a server: say which of its models with --model (it lists them at /v1/models)")
        return Served(url=text, model=model, tokenizer=tokenizer, key_env=key_env, concurrency=concurrency)
    given = {"--model": model, "--tokenizer": tokenizer, "--key-env": key_env, "--concurrency": concurrency}
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} is for a server, and {text} is not its URL (http://…): leave it out")
    return find_target(text)
