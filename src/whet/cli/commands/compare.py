"""`whet compare`: several algorithms or preference losses × seeds of one recipe."""

import re
from collections.abc import Sequence
from pathlib import Path

import typer

from whet.cli import arguments
from whet.errors import UserError

TIP = "A packaged recipe or a YAML file: of one run, whose algorithm or objective each method replaces, or a pipeline."


def compare(
    source: str = typer.Argument(..., metavar="RECIPE", help=TIP),
    overrides: arguments.Overrides = None,
    *,
    methods: str = typer.Option(
        ...,
        "--methods",
        metavar="A,B,…",
        help="Algorithms or preference losses to compare, or methods of the pipeline.",
    ),
    seeds: str = typer.Option("3", "--seeds", metavar="N|A,B,…", help="Number of seeds (0, 1, …), or a list: 3,7."),
    changes: list[str] = typer.Option(
        None, "--set", metavar="METHOD:KEY=VALUE", help="Override a key for one method; may be repeated."
    ),
    runs: arguments.Runs = Path("runs"),
    out: Path = typer.Option(None, "--out", help="Exact directory; a comparison that was begun there is continued."),
    target: float | None = typer.Option(
        None,
        "--target",
        help="Report the first step with this value of the metric that ranks the methods.  [default: 0.8 of a share]",
    ),
    as_json: arguments.AsJson = False,
) -> None:
    """Compare algorithms over several seeds. Writes a table with intervals, learning curves and a verdict.

    Methods are ranked by best.metric, else by held-out accuracy, else by the held-out reward of online recipes and by
    the metric of held-out rows of offline ones (pair accuracy).

    Methods of a pipeline start from its stages, which run once, and are compared as its `compare` section says.

    \b
    Examples:
      whet compare --methods reinforce,rloo,grpo --seeds 3 grpo-sorting steps=100
      whet compare --methods rloo,grpo --set grpo:update.epochs=2 grpo-sorting --out runs/epochs
      whet compare --methods dpo,ipo,simpo dpo model=DIR data=pairs.jsonl
      whet compare --methods ppo,grpo,dpo --seeds 3 rlhf-reviews
    """
    from whet.cli.experiments import compare_command, compare_methods, read_seeds, refuse_ranks, show_pipeline
    from whet.recipe import is_pipeline
    from whet.runs.experiment_directories import PipelineDirectory
    from whet.train.experiments.pipeline_runs import chosen

    names = [name for name in (part.strip() for part in methods.split(",")) if name]
    numbers, changed = read_seeds(seeds), _changes(changes or [])
    out, overrides = None if out is None else out.expanduser(), arguments.with_runs(overrides, runs)
    if not is_pipeline(source):
        compare_methods(source, names, numbers, overrides, changed, target=target, root=runs, out=out, as_json=as_json)
        return
    if target is not None:
        raise UserError("--target is for recipes of one run; a pipeline says in its compare section how it compares")
    refuse_ranks("a comparison")
    own = [f"methods.{method}.{override}" for method, override in changed]
    pipeline = chosen(source, names, numbers, [*overrides, *own], runs=runs)
    directory = PipelineDirectory.create(runs, pipeline.name) if out is None else PipelineDirectory.at(out)
    command = [*compare_command(source, names, numbers, overrides, changed), "--out", str(directory.path)]
    show_pipeline(pipeline, directory, command, shown="comparison" if as_json else "text")


def _changes(changes: Sequence[str]) -> list[tuple[str, str]]:
    """METHOD:KEY=VALUE as (method, KEY=VALUE)."""
    wrong = next((change for change in changes if not re.match(r"[^:=]+:[^=]+=", change)), None)
    if wrong is not None:
        raise UserError(f"--set {wrong}: write METHOD:KEY=VALUE, e.g. grpo:update.epochs=2")
    return [(method, override) for method, _, override in (change.partition(":") for change in changes)]
