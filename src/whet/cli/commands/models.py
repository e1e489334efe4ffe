"""`whet models`: pulling, listing, inspecting, merging, exporting and uploading models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from whet.cli import arguments
from whet.cli.terminal import Description, Screen, readable_bytes, say, say_json, say_table, show_help
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.models.download.model_hub import Progress

app = typer.Typer(help="List, download and inspect models.", callback=show_help, invoke_without_command=True)


@app.command("list")
def list_models(as_json: arguments.AsJson = False) -> None:
    """List models that can be pulled, and those in the cache.

    Example: whet models list
    """
    from whet.models.download.model_hub import KNOWN
    from whet.models.download.pulled import cached_names, models_directory

    models = models_directory()
    here = cached_names(models)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "cached": name in here,
            "bytes": _size(models / name) if name in here else None,
            "path": str(models / name) if name in here else None,
            "about": KNOWN[name].about if name in KNOWN else "from the Hugging Face hub",
        }
        for name in [*KNOWN, *(name for name in here if name not in KNOWN)]
    ]
    if as_json:
        say_json(rows)
        return
    sizes = [readable_bytes(row["bytes"]) if row["cached"] else "no" for row in rows]
    columns = [(row["name"], size, row["about"]) for row, size in zip(rows, sizes, strict=True)]
    say_table(columns, "name", "in the cache", "about")
    say(f"cache: {models}")
    say("fetch one: whet models pull NAME (a name above, or a Hugging Face id such as org/name)")


@app.command()
def inspect(
    model: str = typer.Argument(help="A model directory, the name of a pulled model, or a run (@last: the newest)."),
    as_json: arguments.AsJson = False,
) -> None:
    """Show a model's architecture, size, context and vocabulary.

    Example: whet models inspect smollm2-135m-instruct
    """
    from whet.models.load import model_summary

    directory = _directory(model)
    facts = {"path": str(directory), **model_summary(directory), **_tokenizer_facts(directory)}
    if as_json:
        say_json(facts)
        return
    say_table([("size" if key == "bytes" else key.replace("_", " "), _cell(key, facts[key])) for key in facts])


@app.command()
def pull(
    name: str = typer.Argument(help="A name from `whet models list`, or a Hugging Face id such as org/name."),
    as_json: arguments.AsJson = False,
) -> None:
    """Download a model into the cache and verify it. One that is there already is only verified.

    Example: whet models pull smollm2-135m-instruct
    """
    from whet.models.download.model_hub import pull as pull_model

    with _progress(Screen(stderr=True)) as report:
        directory = pull_model(name, progress=report)
    if as_json:
        say_json({"name": name, "path": str(directory), "bytes": _size(directory)})
    else:
        say(str(directory))


@app.command()
def merge(
    adapter: str = typer.Argument(help="An adapter directory (PEFT's layout), or a run that trained one."),
    directory: Path = typer.Argument(help="Where the merged model is written; it must not exist or be empty."),
    dtype: str = typer.Option("auto", "--dtype", help="fp32, bf16 or fp16; auto: that of the base model."),
    as_json: arguments.AsJson = False,
) -> None:
    """Merge a LoRA adapter into its base: a plain model directory.

    Example: whet models merge runs/my-run merged
    """
    from whet.models.adapters.adapter_directory import merging_note
    from whet.models.merging import merge_adapter

    source = _directory(adapter)
    merge_adapter(str(source), directory, dtype)
    if note := merging_note(source):
        say(f"note: {note}", err=True)
    if as_json:
        say_json({"path": str(directory), "bytes": _size(directory)})
    else:
        say(str(directory))


@app.command()
def export(
    model: str = typer.Argument(help="A model directory, the name of a pulled model, a run, or an adapter (merged)."),
    file: Path = typer.Argument(metavar="FILE.gguf", help="The file to write."),
    type_: str = typer.Option("auto", "--type", help="f32, f16, bf16 or q8_0; auto: that of the model."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace a file of that name."),
    as_json: arguments.AsJson = False,
) -> None:
    """Write a model with its tokeniser as a GGUF file for llama.cpp.

    Example: whet models export runs/my-run my-model.gguf --type q8_0
    """
    from whet.models.export.gguf_file import export_gguf

    written = export_gguf(str(_directory(model)), file, type_=type_, overwrite=overwrite)
    if as_json:
        say_json({**asdict(written), "path": str(written.path)})
        return
    for note in written.notes:
        say(f"note: {note}", err=True)
    say(str(written.path))


@app.command()
def card(run: str = typer.Argument(help="A finished run."), as_json: arguments.AsJson = False) -> None:
    """Print the model card of a run, with its held-out results.

    Example: whet models card runs/my-run > README.md
    """
    from whet.api.loaded_model import run_named
    from whet.report.card import model_card
    from whet.runs.directory import RunDirectory

    text = model_card(RunDirectory.open(run_named(run) or Path(run), is_writer=False))
    if as_json:
        say_json({"card": text})
        return
    for line in text.splitlines():
        say(line)


@app.command()
def push(
    source: str = typer.Argument(metavar="RUN|DIRECTORY", help="A finished run, or a model directory."),
    name: str = typer.Argument(metavar="ORG/NAME", help="The repository on the Hugging Face hub."),
    base: str = typer.Option("", "--base", help="The base model's name on the hub; needed for an adapter."),
    private: bool = typer.Option(False, "--private", help="Only you can see it."),
    as_json: arguments.AsJson = False,
) -> None:
    """Upload a model with its card to the Hugging Face hub.

    The token is that of HF_TOKEN or of `hf auth login`.

    Example: whet models push runs/my-run me/my-model
    """
    from whet.api.loaded_model import run_named
    from whet.models.adapters.adapter_directory import ADAPTER_CONFIG, is_adapter
    from whet.models.download.model_push import push as push_model
    from whet.report.card import CARD, base_of_adapter, model_card
    from whet.runs.directory import RunDirectory

    directory, run = _directory(source), RunDirectory.find(run_named(source) or Path(source))
    files = {} if run is None else {CARD: model_card(run, name=name, base=base)}
    if is_adapter(directory):
        if not base:
            raise UserError(f"{directory} is an adapter: name its base model as others know it, --base ORG/NAME")
        files[ADAPTER_CONFIG] = base_of_adapter(directory, base)
    url = push_model(directory, name, private=private, replaced=files)
    if as_json:
        say_json({"name": name, "url": url})
    else:
        say(url)


def _directory(text: str) -> Path:
    """The directory of a model that a text names: a path, a pulled model, or a run, as `whet sample` finds it."""
    from whet.api.loaded_model import run_named
    from whet.models.download.model_hub import resolve_model

    run = run_named(text)
    return resolve_model(text if run is None else str(run))


@contextmanager
def _progress(console: Screen) -> Iterator[Progress]:
    """A progress bar on a terminal; elsewhere one line per file."""
    if not console.is_terminal:
        begun: list[str] = []

        def line(what: str, done: int, total: int) -> None:  # noqa: ARG001
            if what not in begun[-1:]:
                begun.append(what)
                console.say(f"{what} ({readable_bytes(total)})" if total else what)

        yield line
        return
    columns = (Description(), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("checking", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


def _tokenizer_facts(directory: Path) -> dict[str, Any]:
    from whet.api.model_limits import is_chat
    from whet.models.model_tokenizer import model_tokenizer

    tokenizer = model_tokenizer(directory)
    return {
        "tokenizer_vocab": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "stops": sorted(tokenizer.stops),
        "chat_template": is_chat(tokenizer),
    }


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _cell(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, int):
        return readable_bytes(value) if key == "bytes" else f"{value:,}"
    return str(value)
