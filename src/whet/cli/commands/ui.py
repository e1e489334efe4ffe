"""`whet ui`: a local page over run directories."""

from pathlib import Path

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json

EXTRA = "pip install 'whet[ui]'"


def ui(
    folder: Path = typer.Argument(
        None, metavar="DIR", help="Folder of runs, or one run.  [default: $WHET_RUNS, else runs]"
    ),
    host: str = typer.Option(
        "127.0.0.1", "--host", help="Address to listen on; any but loopback needs the token in the URL."
    ),
    port: int = typer.Option(
        None, "--port", min=0, max=65535, help="Port.  [default: 8439, or a free one if it is taken]"
    ),
    token: bool = typer.Option(False, "--token", help="Require a token in the URL on this machine too."),
    show: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    as_json: arguments.AsJson = False,
) -> None:
    """Serve a page over runs: live curves, rollouts, comparisons.

    It reads and never writes. Only this machine can reach it unless --host says otherwise.

    \b
    Examples:
      whet ui
      whet ui runs --open
    """
    from whet.imports import optional_package
    from whet.runs.catalogue import runs_root

    for package in ("starlette", "uvicorn"):
        optional_package(package, "whet ui", remedy=EXTRA)
    from whet.ui.server.serve import bind

    bound = bind(runs_root(folder), host=host, port=port, token=token)
    if as_json:
        say_json({"url": bound.url})
    else:
        say(f"{bound.url}  (Ctrl-C ends it)")
    if show:
        typer.launch(bound.url)
    bound.run()
