"""`whet data`: statistics of a data set, and the formats that can be read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.table import Column

from whet.cli import arguments
from whet.cli.terminal import Screen, say, say_json, say_table, show_help
from whet.errors import escaped

app = typer.Typer(
    help="Explore data sets, list readable formats, tokenize a text.",
    callback=show_help,
    invoke_without_command=True,
)
SHOWN = 600  # characters of a sample row in the terminal


@app.command()
def explore(
    source: str = typer.Argument(
        ..., metavar="FILE|NAME", help="A file, a folder, a run that made rows, or a hub data set."
    ),
    *,
    form: str = typer.Option("auto", "--format", help="Format of the rows (see `whet data formats`)."),
    column: list[str] = typer.Option(None, "--column", metavar="NAME=COLUMN", help="Read a column by another name."),
    split: str = typer.Option("train", "--split", help="Split of a data set on the hub."),
    subset: str = typer.Option("", "--subset", help="Configuration or directory of a data set on the hub."),
    max_skipped: float = typer.Option(0.01, "--max-skipped", help="Share of broken rows above which reading fails."),
    samples: int = typer.Option(3, "--samples", min=0, help="Rows to show."),
    out: Path = typer.Option(None, "--out", metavar="DIR", help="Folder for data.png and data.html."),
    as_json: arguments.AsJson = False,
) -> None:
    """Show the statistics and sample rows of a data set.

    Counts, lengths, length bias of preference pairs, near duplicates; how many rows were left out, and why.

    \b
    Examples:
      whet data explore pairs.jsonl.gz
      whet data explore Anthropic/hh-rlhf --subset helpful-base --split test --out hh
      whet data explore problems.jsonl --column prompt=problem --column completion=solution
    """
    from whet.data.explore import explore as survey_of
    from whet.data.sources import Source, load_rows
    from whet.report.dataset.survey import facts

    source = str(arguments.run_directory(source)) if source.startswith("@") else source
    names = arguments.read_options(column or [], "--column", "prompt=question")
    options: dict[str, Any] = {"format": form, "columns": names, "split": split, "subset": subset}
    wanted = Source(path=source, **options, max_skipped=max_skipped, settings="command")
    with Screen(stderr=True).status(f"reading {source}"):
        survey = survey_of(load_rows(wanted), samples)
        found = facts(survey)
    written: dict[str, str] = {}
    if out is not None:
        from whet.report.dataset.survey_page import write_survey

        title = Path(source).name if Path(source).expanduser().exists() else source
        picture, page = write_survey(survey, found, out.expanduser(), title=title)
        written = {"picture": str(picture), "page": str(page)}
    if as_json:
        say_json({"source": source, **found, **written})
        return
    _print(found)
    for name, path in written.items():
        say(f"{name}: {path}")


@app.command()
def formats(as_json: arguments.AsJson = False) -> None:
    """List the data formats that can be read, with their columns.

    Example: whet data formats
    """
    from whet.data.formats import FORMATS

    rows = [
        {"name": name, "kind": known.kind, "columns": list(known.columns), "about": known.about}
        for name, known in FORMATS.items()
    ]
    if as_json:
        say_json(rows)
        return
    columns = [(name, known.kind, known.about) for name, known in FORMATS.items()]
    say_table(columns, "format", "becomes", "rows with")
    say("auto takes the first whose columns are there; look at a file: whet data explore FILE")


@app.command()
def tokenize(
    source: str = typer.Argument(
        ..., metavar="TEXT", help="tiny-shakespeare, python-stdlib, a file, a folder, or a hub data set."
    ),
    out: Path = typer.Argument(..., metavar="DIR", help="Directory for the tokens, empty or absent."),
    *,
    tokenizer: str = typer.Option(
        "characters", "--tokenizer", help="characters, bpe:SIZE, tiktoken:NAME, or the directory of a saved one."
    ),
    column: str = typer.Option("text", "--column", help="Column of rows that holds the text."),
    split: str = typer.Option("train", "--split", help="Split of a data set on the hub."),
    subset: str = typer.Option("", "--subset", help="Configuration or directory of a data set on the hub."),
    limit: int = typer.Option(None, "--limit", min=1, help="Use the first documents only."),
    held_out_share: float = typer.Option(0.1, "--held-out-share", help="Share of the text, at its end, to hold out."),
    as_json: arguments.AsJson = False,
) -> None:
    """Write the tokens of a text, and its tokeniser, to a directory.

    A memory-mapped file with a manifest, which the trainer in C++ reads too (docs/native.md).

    \b
    Examples:
      whet data tokenize tiny-shakespeare tokens
      whet data tokenize stories.jsonl tokens --tokenizer bpe:4096 --column story
    """
    from whet.data.corpus.corpus_task import CorpusTask
    from whet.train.setup.corpora import tokenize_to

    of: dict[str, Any] = {
        "column": column,
        "split": split,
        "subset": subset,
        "limit": limit,
        "held_out_share": held_out_share,
    }
    with Screen(stderr=True).status(f"reading {source}"):
        found = tokenize_to(out.expanduser(), CorpusTask(path=source, **of), tokenizer)
    if as_json:
        say_json({"directory": str(found.directory), "tokens": found.tokens, "vocab_size": found.vocab_size})
        return
    training, held_out = found.training_tokens, found.tokens - found.training_tokens
    say(f"{training:,} training and {held_out:,} held-out tokens of {found.vocab_size:,}: {found.directory}")


def _print(found: Mapping[str, Any]) -> None:
    from whet.report.dataset.survey import length_rows, overview

    say_table(overview(found))
    header, *rows = length_rows(found)
    say_table(rows, header[0], *(Column(name, justify="right") for name in header[1:]))
    for places in found["skipped_at"].values():
        for place in places:
            say(f"left out: {place}")
    for sample in found["samples"]:
        texts = [(name, _shown(text)) for name, text in [("prompt", sample["prompt"]), *sample["answers"]]]
        say_table(texts, title=escaped(sample["id"]), title_justify="left", show_lines=True)


def _shown(text: str) -> str:
    """Long text without its middle."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} … {text[-SHOWN // 2 :]}"
