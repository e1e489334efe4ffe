"""`whet ui`: a local page over run directories."""

from pathlib import Path
from typing import Annotated

import typer

from whet.cli import arguments
from whet.cli.terminal import readable_bytes, say, say_json
from whet.errors import UserError

EXTRA = "pip install 'whet[ui]'"
Shown = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR", help="Folder of runs, or one run; with --export runs.  [default: $WHET_RUNS, else runs]"
    ),
]
PORT_HELP = "Port.  [default: 8439, or a free one if it is taken]"


def ui(
    shown: Shown = None,
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; beyond loopback the URL has a token."),
    port: int = typer.Option(None, "--port", min=0, max=65535, help=PORT_HELP),
    token: bool = typer.Option(False, "--token", help="Require a token in the URL on this machine too."),
    show: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    out: Path = typer.Option(
        None, "--export", metavar="DIR", help="Write a page about the given runs, to share as files."
    ),
    megabytes: float = typer.Option(20.0, "--megabytes", min=0, help="With --export: rollouts of each run, at most."),
    as_json: arguments.AsJson = False,
) -> None:
    """Serve a page over runs: live curves, rollouts, comparisons.

    It reads and never writes. Only this machine can reach it unless --host says otherwise.

    \b
    Examples:
      whet ui
      whet ui runs --open
      whet ui --export shared @last
    """
    if out is not None:
        _export(shown or [], out.expanduser(), megabytes, as_json)
        return
    from whet.imports import optional_package
    from whet.runs.catalogue import runs_root

    if shown and len(shown) > 1:
        raise UserError("whet ui shows one folder: give it once, or write an export of several runs with --export DIR")
    for package in ("starlette", "uvicorn"):
        optional_package(package, "whet ui", remedy=EXTRA)
    from whet.ui.server.serve import bind

    bound = bind(_folder(shown[0]) if shown else runs_root(), host=host, port=port, token=token)
    if as_json:
        say_json({"url": bound.url})
    else:
        say(f"{bound.url}  (Ctrl-C ends it)")
    if show:
        typer.launch(bound.url)
    bound.run()


def _folder(text: str) -> Path:
    """A folder, or a run by its name."""
    path = Path(text).expanduser()
    return path if path.is_dir() else arguments.run_directory(text)


def _export(shown: list[str], out: Path, megabytes: float, as_json: bool) -> None:
    from whet.ui.export import export

    if not shown:
        raise UserError(f"name the runs to export, e.g. whet ui --export {out} @last")
    made = export([arguments.run_directory(text) for text in shown], out, megabytes=megabytes)
    page = out / "index.html"
    if as_json:
        say_json({"page": str(page), "bytes": made.size, "left_out": made.left_out})
        return
    for line in made.left_out:
        say(f"left out: {line}")
    say(f"{page}  ({readable_bytes(made.size)})")
