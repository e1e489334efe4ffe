"""`whet doctor`: what is wrong with a run, or would be with a recipe or a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json
from whet.errors import RunFailed, UserError, nearest

if TYPE_CHECKING:
    from whet.runs.directory import RunDirectory
    from whet.train.preflight.results import Result

CODES = {"critical": 2, "warning": 1}  # exit codes; 0 of any other level
FAILED = 2  # a check failed
BEING_WRITTEN = "being written"

Subject = Annotated[
    str,
    typer.Argument(
        metavar="RUN|RECIPE|MODEL",
        help="A run (@last: the newest), a packaged recipe or a YAML file, or a model directory or name.",
    ),
]
ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 whatever is found.")]
Until = Annotated[
    int | None, typer.Option("--until", metavar="STEP", min=0, help="Of a run: as it was after this step.")
]
OnGPU = Annotated[
    str, typer.Option("--gpu", metavar="NAME|BYTES", help="Of a recipe: the GPU of `memory`.  [default: that of here]")
]


def doctor(
    subject: Subject,
    overrides: arguments.Overrides = None,
    until: Until = None,
    gpu: OnGPU = "",
    exit_zero: ExitZero = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Say what is wrong with a run, a recipe or a model.

    Of a run, also while it trains or after it was killed: symptoms with numbers, steps and rollouts that show them, the
    likely causes in order, and the key to change. Of a recipe: checks before the run, on the first step that it would
    make; of a model those that need no recipe. Nothing is written.

    The exit code is 0 if nothing is wrong, 1 for a warning, 2 for something critical or a check that failed (and, as
    everywhere, for a wrong command line, which prints nothing to standard output).

    \b
    Examples:
      whet doctor @last
      whet doctor runs/20260101-120000-grpo-sorting --until 100 --json
      whet doctor grpo-sorting rollout.group=2
      whet doctor grpo.yaml --gpu 24GiB
      whet doctor smollm2-135m-instruct
    """
    if _is_recipe(subject):
        _refuse(until is not None, "--until is for a run")
        code = _checked(_recipe_checks(subject, overrides, gpu), as_json=as_json)
    else:
        _refuse(bool(overrides), f"KEY=VALUE is for a recipe, and {subject} is none")
        _refuse(bool(gpu), f"--gpu is for a recipe, and {subject} is none")
        run = _run_of(subject)
        if run is None:
            _refuse(until is not None, "--until is for a run")
            code = _checked(_model_checks(subject), as_json=as_json)
        else:
            code = _examined(run, until, as_json=as_json)
    if code and not exit_zero:
        raise typer.Exit(code)


def _refuse(is_wrong: bool, why: str) -> None:
    if is_wrong:
        raise UserError(f"{why}: leave it out")


def _is_recipe(text: str) -> bool:
    from whet.recipe import packaged_recipes

    path = Path(text).expanduser()
    return not path.is_dir() and (text in packaged_recipes() or path.suffix in {".yaml", ".yml"})


def _run_of(text: str) -> RunDirectory | None:
    """The run that a text names; None for a model. Says what a directory is that is neither."""
    from whet.models.adapters.adapter_directory import is_adapter
    from whet.runs.catalogue import MARK, find_run, runs_below, runs_inside, runs_root
    from whet.runs.directory import RunDirectory
    from whet.runs.experiment_directories import first_of_several, is_comparison, is_pipeline

    path = find_run(text, runs_root())
    if path is None:
        if Path(text).expanduser().is_file():
            raise UserError(f"{text} is a file; give the directory of a run or of a model, or a recipe (.yaml)")
        if text.startswith(MARK) or text.startswith((".", "/", "~")):
            raise UserError(f"no directory {text}; name a run, a recipe (whet recipes) or a model")
        return None
    several = first_of_several(path)
    if is_comparison(path) or is_pipeline(path) or several is not None:
        some = several or next(iter(runs_below(path)), None)
        example = f", e.g. {some}" if some else ""
        raise UserError(f"{path} holds several runs: name one of them{example}")
    run = RunDirectory.find(path)
    if run is None and not ((path / "config.json").is_file() or is_adapter(path)):
        raise UserError(f"{path} is neither a run (no config.yaml) nor a model (no config.json){runs_inside(path)}")
    return run


def _examined(run: RunDirectory, until: int | None, *, as_json: bool) -> int:
    """Prints the diagnosis of a run; returns the exit code."""
    from whet.doctor.examine import examine_run
    from whet.doctor.plain_words import as_json as diagnosis_json
    from whet.doctor.plain_words import lines
    from whet.runs.catalogue import standing

    try:
        now = standing(run)
        asked, until = until, None if until is not None and until > now.step else until
        diagnosis = examine_run(run, until)
    except RunFailed as error:  # a damaged file is wrong input here: nothing was run
        raise UserError(str(error)) from error
    if as_json:
        say_json({"run": str(run.path.absolute()), **asdict(now), "until": until, **diagnosis_json(diagnosis)})
    else:
        # Its config is the recipe after all overrides.
        source = str(run.path / "config.yaml")
        say(_status(run, now.status, now.step, until))
        if asked != until:
            say(f"--until {asked}: the run has only {now.step} step{'s' * (now.step != 1)}, and all are judged")
        for line in lines(diagnosis, source=source):
            say(line)
    return CODES.get(diagnosis.level, 0)


def _status(run: RunDirectory, status: str, step: int, until: int | None) -> str:
    from whet.doctor.examine import config_of

    steps = config_of(run).get("steps")
    of = f" of {steps}" if steps else ""
    how = "is being trained" if status == BEING_WRITTEN else status
    ended = (run.results() or {}).get("ended", "") if run.finished else ""
    why = f"; ended early by {ended}" if ended else ""
    return f"{run.path}: {how}, {step}{of} steps{why}" + (
        f"; as it was after step {until}" if until is not None else ""
    )


def _recipe_checks(source: str, overrides: Sequence[str] | None, gpu: str) -> Iterator[Result]:
    from whet.recipe import read_recipe

    recipe = read_recipe(source, arguments.with_runs(overrides))
    from whet.train.preflight.checklist import check_recipe  # imports torch: after the recipe is checked

    return check_recipe(recipe, gpu=gpu)


def _model_checks(name: str) -> Iterator[Result]:
    from whet.models.download.model_hub import KNOWN, can_be_pulled, resolve_model
    from whet.recipe import packaged_recipes
    from whet.runs.catalogue import known_runs, runs_root

    try:
        resolve_model(name)
    except UserError as error:
        if can_be_pulled(name) or Path(name).expanduser().exists():
            raise
        like = nearest(name, (*packaged_recipes(), *KNOWN))
        raise UserError(
            f"no run, recipe or model is called {name!r}{like or f': {known_runs(runs_root())}; see whet recipes'}"
        ) from error
    from whet.train.preflight.checklist import check_model

    return check_model(name)


def _checked(results: Iterator[Result], *, as_json: bool) -> int:
    """Prints the results of checks as they come; returns the exit code."""
    found: list[dict[str, Any]] = []
    for one in results:
        found.append(asdict(one))
        if not as_json:
            say(f"{one.outcome:>9}  {one.check:<14} {one.sentence}")
    failed = [row["check"] for row in found if row["outcome"] == "failed"]
    if as_json:
        say_json({"checks": found, "failed": failed})
    else:
        say(f"failed: {', '.join(failed)}" if failed else "no check failed")
    return FAILED if failed else 0
