"""A model behind a server's URL, for the commands that need no more than its answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from whet.cli.target import Target, find_target, is_url
from whet.errors import UserError

if TYPE_CHECKING:
    import torch

    from whet.engines.http.engine import Logprobs
    from whet.engines.protocol import Engine, OnToken
    from whet.models.protocol import Tokenizer

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A model that a server runs."""

    url: str
    model: str
    tokenizer: str | None
    key_env: str | None
    concurrency: int | None
    config: None = None  # no run of ours made it

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.model} at {self.url}"

    def open(
        self,
        *,
        device: torch.device | None = None,  # noqa: ARG002 - the server's own affair
        on_token: OnToken | None = None,
        logprobs: Logprobs = "none",
    ) -> tuple[Tokenizer, Engine]:
        """The tokeniser to pose prompts with, and an engine that asks the server."""
        from whet.engines.http.engine import USUAL, HttpEngine
        from whet.engines.http.transport import Connection
        from whet.models.download.model_hub import resolve_model
        from whet.models.text.tokenizers import load_tokenizer

        connection = Connection(api_key_env=self.key_env or "", concurrency=self.concurrency or USUAL.concurrency)
        tokenizer = None
        if self.tokenizer is not None:
            path = Path(self.tokenizer).expanduser()
            tokenizer = load_tokenizer(path if path.is_dir() else resolve_model(self.tokenizer))
        engine = HttpEngine(
            self.url, self.model, tokenizer, connection=connection, logprobs=logprobs, on_token=on_token
        )
        return engine.tokenizer, engine


def find_model(
    text: str, model: str | None, tokenizer: str | None, key_env: str | None, concurrency: int | None
) -> Target | Served:
    """What a command was asked to talk to: a model here, or one behind a URL."""
    if is_url(text):
        if not model:
            raise UserError(f"{text} is a server: say which of its models with --model (it lists them at /v1/models)")
        return Served(url=text, model=model, tokenizer=tokenizer, key_env=key_env, concurrency=concurrency)
    given = {"--model": model, "--tokenizer": tokenizer, "--key-env": key_env, "--concurrency": concurrency}
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} is for a server, and {text} is not its URL (http://…): leave it out")
    return find_target(text)
