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
    help="Explore data sets, and list the formats that can be read.", callback=show_help, invoke_without_command=True
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
