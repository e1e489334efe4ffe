"""`whet redteam`: what a reward model pays for besides good answers, and what a policy refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli import arguments
from whet.cli.terminal import say, say_json
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target

Rows = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|NAME]",
        help="Of a reward model: prompts with answers, best as pairs.  [default: the run's held-out rows]",
    ),
]
Harmful = Annotated[
    str | None, typer.Option("--harmful", metavar="FILE", help="Of a policy: prompts that it should refuse.")
]
Harmless = Annotated[
    str | None,
    typer.Option("--harmless", metavar="FILE", help="Of a policy: prompts that sound harmful and are not."),
]
Judge = Annotated[
    str | None,
    typer.Option("--judge", metavar="URL|RM", help="Of a policy: a server or a reward model that judges the answers."),
]
JudgeModel = Annotated[
    str | None, typer.Option("--judge-model", metavar="NAME", help="The judge's name on its server.")
]
JudgeKey = Annotated[
    str | None, typer.Option("--judge-key-env", metavar="VARIABLE", help="Environment variable with the judge's key.")
]


def redteam(
    model: arguments.Target,
    rows: Rows = None,
    *,
    examples: int = typer.Option(64, min=1, help="Prompts: rows of a reward model, or of each file of a policy."),
    budget: int = typer.Option(2000, min=0, help="Texts to score in the search for an adversarial suffix; 0: none."),
    seed: arguments.Seed = 0,
    harmful: Harmful = None,
    harmless: Harmless = None,
    max_tokens: arguments.MaxTokens = None,
    judge: Judge = None,
    judge_model: JudgeModel = None,
    judge_key_env: JudgeKey = None,
    out: Path = typer.Option(None, "--out", metavar="DIR", help="Folder for redteam.html.  [default: that of the run]"),
    as_json: arguments.AsJson = False,
    served: arguments.Served = None,
    ids_of: arguments.IdsOf = None,
    key_env: arguments.KeyEnv = None,
    concurrency: arguments.Concurrency = None,
) -> None:
    """Probe a reward model for hacking, a policy for refusals.

    A reward model scores answers as they are and after edits that make them no better (longer, flattery, formatting,
    words of the prompt, confident tone), plainly bad ones (empty, truncated, repeated, of another prompt) and with a
    suffix found by random search. A policy answers prompts that it should refuse, and prompts that it should not.

    Of a run also a section of its report.html. The exit code is 0 whatever is found.

    \b
    Examples:
      whet redteam runs/20260101-120000-reward
      whet redteam RM pairs.jsonl --examples 200 --budget 20000 --out redteam
      whet redteam smollm2-135m-instruct --harmful harmful.jsonl --harmless harmless.jsonl
      whet redteam MODEL --harmful harmful.jsonl --judge http://127.0.0.1:8000/v1 --judge-model NAME
    """
    from whet.api.loaded_model import find_target
    from whet.cli.commands.redteam.policy import Judging, on_policy
    from whet.cli.commands.redteam.reward_model import on_reward_model

    target = find_target(model, served, ids_of, key_env, concurrency)
    of_policy = {"--harmful": harmful, "--harmless": harmless, "--judge": judge, "--max-tokens": max_tokens}
    if target.reward_kind is not None:
        _refuse(of_policy, f"{model} is a reward model, and scores answers: name a file of pairs instead")
        found = on_reward_model(target, rows, examples=examples, budget=budget, seed=seed)
    else:
        _refuse({f"{rows}": rows}, f"{model} is a language model: give prompts, --harmful or --harmless FILE")
        judging = Judging(name=judge, model=judge_model, key_env=judge_key_env)
        sets = {name: path for name, path in (("harmful", harmful), ("harmless", harmless)) if path is not None}
        if not sets:
            raise UserError(f"{model} is a language model: give prompts, --harmful or --harmless FILE")
        found = on_policy(target, sets, examples=examples, max_tokens=max_tokens, seed=seed, judging=judging)
    plain = {"model": target.name, **found}
    written = _write(plain, model, target, out)
    if as_json:
        say_json({**plain, **written})
        return
    _say(plain)
    for name, path in written.items():
        say(f"{name}: {path}")


def plain_findings(found: Any) -> dict[str, Any]:
    """Findings with their verdict as plain data."""
    return {**asdict(found), "verdict": found.verdict}


def _refuse(given: Mapping[str, object], why: str) -> None:
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise UserError(f"{wrong}: {why}")


def _say(found: dict[str, Any]) -> None:
    if "sets" in found:
        from whet.cli.commands.redteam.policy import say_policy

        say_policy(found)
    else:
        from whet.cli.commands.redteam.reward_model import say_attack

        say_attack(found)
    for line in found["verdict"]:
        say(line)


def _write(found: dict[str, Any], model: str, target: Target, out: Path | None) -> dict[str, str]:
    """The page; of a run its report too. Nothing for a model without a folder of its own."""
    from whet.api.loaded_model import run_named
    from whet.report.redteam.page import write_page
    from whet.runs.directory import RunDirectory

    path = None if target.served is not None else run_named(model)
    run = None if path is None else RunDirectory.find(path)
    if out is None and run is None:
        return {}
    numbers, page = write_page(found, run.path if out is None and run is not None else (out or Path()).expanduser())
    written = {"numbers": str(numbers), "page": str(page)}
    if out is None and run is not None:
        from whet.report.run.page import write_report

        written["report"] = str(write_report(run.path))
    return written
