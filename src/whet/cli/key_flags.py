"""Flags of `whet train` that stand for keys of a recipe: `--horizon 16` is `rollout.max_tokens=16`, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from whet.errors import UserError

SECTION = "Flags that stand for keys of a recipe"
REFERENCES = ("start", "frozen", "sync", "bigram", "uniform", "random")  # as algorithm.kl.reference has them
PROMPT, ANSWER, CONTEXT = "task.prompt_characters", "task.answer_characters", "model.new.context"
CORPUS = "corpus"  # the task whose prompts and answers are windows of a text
CHARACTERS_PER_TOKEN = 8  # of answers, with a tokeniser of pieces: twice the usual, so that answers are long enough


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyFlag:
    """A flag and the keys that it may stand for: the first that recipes of the loop have."""

    keys: tuple[str, ...]
    metavar: str
    meaning: str

    @property
    def help(self) -> str:
        """The keys and what they mean."""
        return f"{', or '.join(self.keys)}: {self.meaning}"


FLAGS = {
    "--horizon": KeyFlag(
        keys=("rollout.max_tokens",),
        metavar="TOKENS",
        meaning="sampled tokens; eval.max_tokens is raised to it, and windows of a corpus are fitted to it.",
    ),
    "--batch-size": KeyFlag(
        keys=("rollout.prompts", "batch_size"), metavar="N", meaning="prompts of a step, or rows of an offline one."
    ),
    "--group-size": KeyFlag(keys=("rollout.group",), metavar="N", meaning="completions of each prompt."),
    "--seed": KeyFlag(keys=("seed",), metavar="N", meaning="of weights, data order and sampling."),
    "--reward-mode": KeyFlag(
        keys=("reward.tokens.mode",), metavar="[plus|plusminus]", meaning="a token that is not the real one gets 0, −1."
    ),
    "--partial-logprob": KeyFlag(
        keys=("reward.tokens.partial_logprob",), metavar="ALPHA", meaning="× the token's log-prob, added to its reward."
    ),
    "--beta-kl": KeyFlag(keys=("algorithm.kl.coefficient",), metavar="BETA", meaning="of the KL to the reference."),
    "--kl-warmup-tokens": KeyFlag(
        keys=("algorithm.kl.anneal_tokens",), metavar="TOKENS", meaning="in which that coefficient rises from 0."
    ),
    "--reference": KeyFlag(
        keys=("algorithm.kl.reference",), metavar=f"[{'|'.join(REFERENCES)}]", meaning="what the KL is measured to."
    ),
    "--stop-on": KeyFlag(
        keys=("early_stopping.alarm",), metavar="[warning|critical]", meaning="ends the run at an alarm of the doctor."
    ),
}


def _option(flag: str) -> Any:
    return typer.Option(flag, metavar=FLAGS[flag].metavar, help=FLAGS[flag].help, show_default=False)


Horizon = Annotated[str | None, _option("--horizon")]
BatchSize = Annotated[str | None, _option("--batch-size")]
GroupSize = Annotated[str | None, _option("--group-size")]
Seed = Annotated[str | None, _option("--seed")]
RewardMode = Annotated[str | None, _option("--reward-mode")]
PartialLogprob = Annotated[str | None, _option("--partial-logprob")]
BetaKl = Annotated[str | None, _option("--beta-kl")]
KlWarmupTokens = Annotated[str | None, _option("--kl-warmup-tokens")]
Reference = Annotated[str | None, _option("--reference")]
StopOn = Annotated[str | None, _option("--stop-on")]


class KeyFlagCommand(TyperCommand):
    """A command whose help lists these flags in a section of their own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], SECTION: []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                of_key = SECTION if FLAGS.keys() & set(parameter.opts) else "Options"
                sections[of_key if parameter.param_type_name == "option" else "Arguments"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def with_flags(source: str, overrides: Sequence[str], flags: Mapping[str, str | None]) -> list[str]:
    """The overrides of a recipe, and those that flags (name → value, None where it is not given) stand for."""
    given = {flag: value for flag, value in flags.items() if value is not None}
    if not given:
        return list(overrides)
    from whet.config.loops import LOOPS, loop_of
    from whet.recipe import PIPELINE, written_recipe

    written, _ = written_recipe(source)
    loop = loop_of(written)
    if loop == PIPELINE:
        flag = next(iter(given))
        example = f"stages.NAME.{FLAGS[flag].keys[0]}={given[flag]}"
        raise UserError(f"{flag} is for a recipe of one run, and {source} is a pipeline of several: set {example}")
    sections = LOOPS[loop].model_fields.keys() if loop in LOOPS else set()
    named = {word.partition("=")[0] for word in overrides}
    added = []
    for flag, value in given.items():
        key = next((key for key in FLAGS[flag].keys if key.partition(".")[0] in sections), "")
        if not key and loop in LOOPS:
            wanted = FLAGS[flag].keys[0]
            raise UserError(f"{flag} sets {wanted}, which recipe {source} (loop {loop}) does not have: leave it out")
        if key in named:
            raise UserError(f"{flag} and {key}= are both given, and mean the same: leave one out")
        added += [f"{key}={value}"] if key else []  # of an unknown loop: the recipe says what is wrong with it
    if "--horizon" in given and given["--horizon"].isdecimal():  # else the recipe says what is wrong with it
        horizon = int(given["--horizon"])
        for key, number in _follow_horizon(horizon, written).items():
            section = key.partition(".")[0]
            added += [f"{key}={number}"] if section in sections and not _is_given(key, named) else []
        added += _fit_windows(horizon, written, overrides, named)
    return [*overrides, *added]


def refuse_flags(flags: Mapping[str, str | None]) -> None:
    """Raises a UserError if any is given: a resumed run keeps its config."""
    flag = next((flag for flag, value in flags.items() if value is not None), None)
    if flag is not None:
        raise UserError(f"{flag} is for a new run, and --resume continues one: leave it out")


def _is_given(key: str, named: Set[str]) -> bool:
    """Whether overrides name the key, or a section that holds it."""
    parts = key.split(".")
    return any(".".join(parts[:count]) in named for count in range(1, len(parts) + 1))


def _follow_horizon(horizon: int, written: Mapping[str, Any]) -> dict[str, int]:
    """What changes with the horizon: evaluations are not shorter than training, and a fixed length stays fixed."""
    from whet.config.eval_config import EvalConfig

    rollout, evaluation = (_section(written, name) for name in ("rollout", "eval"))
    changes = {}
    longest = evaluation.get("max_tokens", EvalConfig.model_fields["max_tokens"].default)
    if isinstance(longest, int) and longest < horizon:
        changes["eval.max_tokens"] = horizon
    if rollout.get("min_tokens") and rollout["min_tokens"] == rollout.get("max_tokens"):
        changes["rollout.min_tokens"] = horizon
    return changes


def _section(written: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    some = written.get(name)
    return some if isinstance(some, Mapping) else {}


def _fit_windows(horizon: int, written: Mapping[str, Any], overrides: Sequence[str], named: Set[str]) -> list[str]:
    """Overrides that make windows of a corpus fit the horizon: prompt + horizon ≤ context, answers as long as it."""
    from whet.config.model_config import CHARACTERS, NewModel
    from whet.data.corpus.corpus_task import CorpusTask
    from whet.recipe import apply_override

    changed = deepcopy(dict(written))
    for override in overrides:
        apply_override(changed, override)
    task, new = _section(changed, "task"), _section(_section(changed, "model"), "new")
    if task.get("name", changed.get("task")) != CORPUS:
        return []
    usual = {field.name: field.default for field in fields(CorpusTask)}
    prompt, answer, shortest = (
        task.get(key, usual[key]) for key in ("prompt_characters", "answer_characters", "shortest_prompt")
    )
    tokenizer, context = (new.get(key, NewModel.model_fields[key].default) for key in ("tokenizer", "context"))
    if not all(type(number) is int for number in (prompt, answer, shortest or 1, context)):
        return []  # the recipe says what is wrong with them
    per_token = 1 if tokenizer == CHARACTERS else CHARACTERS_PER_TOKEN
    fitted = _fit_answers(horizon, answer, per_token, is_given=_is_given(ANSWER, named))
    if new:
        can = {key: not _is_given(key, named) for key in (PROMPT, CONTEXT)}
        fitted |= _fit_context(horizon, prompt, context, shortest or 1, can)
    return [f"{key}={number}" for key, number in fitted.items()]


def _fit_answers(horizon: int, answer: int, per_token: int, *, is_given: bool) -> dict[str, int]:
    """Tokens beyond the end of an answer get no reward, so answers are as long as the horizon."""
    if is_given:
        if answer < horizon:
            raise UserError(
                f"--horizon {horizon} exceeds {ANSWER} {answer}, and tokens beyond the answer get no reward: "
                f"raise {ANSWER}, or leave it out"
            )
        return {}
    return {ANSWER: per_token * horizon} if answer < per_token * horizon else {}


def _fit_context(horizon: int, prompt: int, context: int, shortest: int, can: Mapping[str, bool]) -> dict[str, int]:
    """Shorter prompts, or a longer context where prompts would have less than half of it; `can`: what may change."""
    room = context - horizon
    if prompt <= room:
        return {}
    if can[PROMPT] and room >= shortest and (not can[CONTEXT] or 2 * horizon <= context):
        return {PROMPT: room}
    if can[CONTEXT]:
        return {CONTEXT: prompt + horizon}
    raise UserError(
        f"--horizon {horizon} and prompts of {prompt if not can[PROMPT] else shortest} characters exceed "
        f"{CONTEXT} {context}: raise {CONTEXT}, or lower {PROMPT}"
    )
