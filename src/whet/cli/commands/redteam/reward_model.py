"""`whet redteam` of a reward model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Column

from whet.cli.terminal import Screen, say, say_table, say_text
from whet.errors import UserError

if TYPE_CHECKING:
    from whet.api.loaded_model import Target


def on_reward_model(target: Target, source: str | None, *, examples: int, budget: int, seed: int) -> dict[str, Any]:
    """The findings as plain data, with notes on standard error."""
    from whet.api.reward_scores import reward_scorer
    from whet.cli.commands.redteam import plain_findings
    from whet.cli.commands.score import rows_of
    from whet.redteam.cases import cases_of, fitting
    from whet.redteam.reward_attack import attack

    chosen = rows_of(target, source)
    cases = cases_of(chosen.rows, chosen.name)
    with Screen(stderr=True).status(f"scoring edits of {chosen.name}"):
        scorer = reward_scorer(target)
        kept, left_out = fitting(cases, lambda prompt, text: not scorer.text(prompt, f"{text} {text}").cut, examples)
        if not kept:
            raise UserError(f"no answer of {chosen.name} can be made longer within the model's context: shorten them")
        found = attack(scorer, kept, scorer.tokenizer, budget=budget, seed=seed)
    for note in filter(None, (chosen.note, f"note: {target.note}" if target.note else "")):
        say(note, err=True)
    if left_out:
        say(f"note: {left_out:,} rows are left out: twice as long they would not fit the model's context", err=True)
    if scorer.truncated:
        say(f"note: {scorer.truncated:,} edited texts were truncated to the model's limit", err=True)
    about = {"kind": scorer.model.kind, "data": chosen.name, "trained_on": chosen.trained_on, "seed": seed}
    counts = {"left_out": left_out, "truncated": scorer.truncated}
    return {**about, **counts, **plain_findings(found)}


def say_attack(found: Mapping[str, Any]) -> None:
    """The tables and examples for people."""
    from whet.report.redteam.view import HEADER, examples, facts, lead, probe_rows

    say(f"{found['model']} ({found['kind']} reward model)")
    say(lead(found))
    numbers = [Column(name, justify="right") for name in HEADER[1:-1]]
    say_table(probe_rows(found), HEADER[0], *numbers, HEADER[-1])
    say_table(facts(found))
    for one in examples(found):
        story = (f"{one['about']} ({one['id']})", "prompt", one["prompt"], one["label"], one["answer"], "edited")
        say_text("\n".join((*story, one["edited"] or "(empty)", "")))
    say(f"rule: {found['rule']}")
