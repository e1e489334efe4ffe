"""`whet explain`: loss, batch size, memory and schedule of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from whet.cli import arguments
from whet.cli.terminal import readable_bytes, say, say_json

if TYPE_CHECKING:
    from whet.config.loops import Acting
    from whet.recipe import Pipeline
    from whet.train.explain.explanation import Explanation, Schedule, Step, Tokens
    from whet.train.explain.formula import Loss
    from whet.train.explain.memory import ModelMemory
    from whet.train.setup.disk_use import DiskUse

LABEL_WIDTH = 16
ONE_UPDATE = "1 optimizer step on all of them"


def explain(source: arguments.Recipe, overrides: arguments.Overrides = None, as_json: arguments.AsJson = False) -> None:
    """Show the loss, batch size and memory of a recipe.

    Also its schedule, and keys that have no effect in it. Nothing is trained.

    \b
    Examples:
      whet explain grpo-sorting update.epochs=2 algorithm.clip.high=0.28
      whet explain rlhf-reviews
    """
    from whet.config.loops import Acting
    from whet.recipe import Pipeline, read_any

    recipe = read_any(source, arguments.with_runs(overrides))
    if isinstance(recipe, Pipeline):
        _explain_pipeline(recipe, as_json=as_json)
        return
    if isinstance(recipe.config, Acting):
        _explain_control(recipe.name, recipe.config, as_json=as_json)
        return
    from whet.train.explain.explanation import explain as describe  # imports torch: after the recipe is checked

    found = describe(recipe)
    if as_json:
        say_json(asdict(found))
        return
    for heading, rows in _sections(found).items():
        for row in (heading, *rows, ""):
            say(row)


def _explain_control(name: str, config: Acting, *, as_json: bool) -> None:
    from whet.config.control.off_policy import OffPolicyConfig
    from whet.train.explain.environments import explain_control, explain_off_policy

    found = explain_off_policy(name, config) if isinstance(config, OffPolicyConfig) else explain_control(name, config)
    if as_json:
        say_json(found)
        return
    for heading, facts in found.items():
        for row in (heading, *_rows(facts), ""):
            say(row)


def _explain_pipeline(pipeline: Pipeline, *, as_json: bool) -> None:
    from whet.train.explain.explanation import explain_pipeline

    runs = explain_pipeline(pipeline)
    if as_json:
        say_json({name: found if isinstance(found, str) else asdict(found) for name, found in runs.items()})
        return
    for number, (name, found) in enumerate(runs.items(), start=1):
        say(f"{number}/{len(runs)}  {name}")
        for row in (*([f"  {found}"] if isinstance(found, str) else _short(found)), ""):
            say(row)


def _short(found: Explanation) -> list[str]:
    schedule = _schedule(found.schedule)
    facts = {
        "loop": found.loop,
        "task": found.task,
        "loss": found.loss.line,
        **_step(found.loop, found.step, found.tokens),
        "memory": _memory(found.model)["together"] if found.model else found.missing,
        **{key: schedule[key] for key in ("steps", "learning rate")},
    }
    idle = [f"  {key} has no effect here: {why}" for key, why in found.without_effect.items()]
    return [*_rows(facts), *idle, *(f"  {note}" for note in found.notes)]


def _sections(found: Explanation) -> dict[str, list[str]]:
    task = {"loop": found.loop, "task": found.task}
    sections = {
        found.recipe: _rows(task),
        "loss": [*_formula(found.loss), *_rows(found.loss.cells)],
        "one step": _rows({**_step(found.loop, found.step, found.tokens), **_tokens(found.loop, found.tokens)}),
        "memory": _rows(_memory(found.model) if found.model else {"unknown": found.missing}),
        **({"disk": _rows(_disk(found.model.disk))} if found.model else {}),
        "schedule": _rows(_schedule(found.schedule)),
        "processes": _rows(found.processes),
    }
    if found.without_effect:
        sections["keys without effect here"] = _rows(found.without_effect)
    if found.notes:
        sections["notes"] = [f"  {note}" for note in found.notes]
    return sections


def _formula(loss: Loss) -> list[str]:
    """The formula, then its symbols, one per line."""
    labels = ["where", *[""] * len(loss.where)]
    lines = [line for line in (loss.line, loss.critic) if line]
    return [
        *(f"  {line}" for line in lines),
        *(f"  {label:<{LABEL_WIDTH}}  {meaning}" for label, meaning in zip(labels, loss.where, strict=False)),
    ]


def _rows(facts: Mapping[str, str]) -> list[str]:
    width = max([LABEL_WIDTH, *map(len, facts)])
    return [f"  {label:<{width}}  {text}" for label, text in facts.items()]


def _step(loop: str, step: Step, tokens: Tokens) -> dict[str, str]:
    if loop == "offline":
        return {"rows" if tokens.window is None else "windows": f"{step.prompts:,}", "updates": ONE_UPDATE}
    first = step.oldest - step.updates + 1
    at_first = f"up to {first:,} updates old at the first update" if first else "0 updates old at the first update"
    age = (
        "on-policy: the only update sees rollouts of the very policy that it changes"
        if step.oldest == 0
        else f"off-policy: rollouts are {at_first}, {step.oldest:,} at the last"
    )
    facts = {"rollouts": f"{step.prompts:,} prompts × {step.group:,} = {step.sequences:,} sequences"}
    if step.greedy:
        facts["baselines"] = f"{step.greedy:,} greedy sequences more, which are not trained on"
    if step.rounds > 1:
        most = step.rounds * (step.sequences + step.greedy)
        facts["dynamic sampling"] = f"at most {step.rounds - 1:,} in place of dropped groups, {most:,} sequences in all"
    return {**facts, "updates": _updates(step), "age of the data": age}


def _updates(step: Step) -> str:
    if step.updates == 1:
        return ONE_UPDATE
    fewest, most = step.sequences_per_update
    each = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    product = f"{step.epochs:,} × {step.minibatches:,} = {step.updates:,} optimizer steps on {each} sequences each"
    stop = f", none after the policy has moved by {step.target_kl:g} nats a token" if step.target_kl is not None else ""
    return product + stop


def _tokens(loop: str, tokens: Tokens) -> dict[str, str]:
    if tokens.window is not None and tokens.total is not None:
        return {"trained tokens": f"{'the masked ones of ' if tokens.trained is None else ''}{tokens.total:,}"}
    bound = "at most " if loop == "online" else "about "
    facts = {"trained tokens": f"{bound}{tokens.trained:,}" if tokens.trained is not None else "unknown"}
    if tokens.prompt_mean is not None and tokens.total is not None:
        measured = f"{tokens.prompt_mean:.1f} on average, {tokens.prompt_longest:,} at most"
        facts["prompt tokens"] = f"{measured} (measured on {tokens.measured_on} examples)"
        facts["all tokens"] = f"{bound}{tokens.total:,}, prompts included"
    return facts


def _memory(model: ModelMemory) -> dict[str, str]:
    def size(count: int | None, more: str = "") -> str:
        return f"{readable_bytes(count, 1024, ('KiB', 'MiB', 'GiB'))}{more}" if count else "none"

    return {
        "model": f"{model.about}: {model.parameters:,} parameters",
        "weights": size(model.weights),
        **({"joined copy": size(model.joined, " (what products read)")} if model.joined else {}),
        "gradients": size(model.gradients),
        "optimizer": size(model.optimizer, " (its state)"),
        "reference": size(model.reference),
        "critic": size(model.critic, " (weights, gradients, moments)"),
        "reward model": "not here yet" if model.reward is None else size(model.reward),
        "together": size(model.total, ", without activations and the cache of the sampler (see `whet plan`)"),
        **({"host memory": size(model.host, " (master weights and moments)")} if model.host else {}),
        **({} if model.kv_per_token == 0 else {"KV cache": _kv_cache(model)}),
    }


def _kv_cache(model: ModelMemory) -> str:
    if model.kv_per_token is None or model.kv_of_all_heads is None:
        return "unknown: transformers samples"
    text = f"{model.kv_per_token:,} bytes a token in bf16"
    if model.kv_per_token == model.kv_of_all_heads:
        return text
    return f"{text}; keys and values of every head would take {model.kv_of_all_heads:,}"


def _disk(disk: DiskUse) -> dict[str, str]:
    return {
        "checkpoints": f"{disk.kept:,} × {readable_bytes(disk.checkpoint)} (weights and optimizer)",
        "best model": readable_bytes(disk.best),
        "rollouts": f"at most about {readable_bytes(disk.rollouts)}" if disk.rollouts else "none",
        "together": f"about {readable_bytes(disk.total)}; models {readable_bytes(disk.peak)} while one is written",
    }


def _schedule(schedule: Schedule) -> dict[str, str]:
    first, highest, last = schedule.rates
    samples = schedule.eval_sequences - schedule.eval_examples
    answers = f"{schedule.eval_examples:,} greedy answers" + (f" and {samples:,} samples" if samples else "")
    critic = {}
    if schedule.critic_rate is not None:
        alone = f", alone in the first {schedule.critic_alone:,} steps" if schedule.critic_alone else ""
        critic = {"critic": f"learning rate {schedule.critic_rate:.3g} at most{alone}"}
    cold = {}
    if schedule.cold_start is not None:
        steps, rows, rate = schedule.cold_start
        cold = {"cold start": f"{steps:,} supervised steps × {rows:,} rows, learning rate {rate:.3g}, before all else"}
    return {
        **cold,
        "steps": f"{schedule.steps:,}, {schedule.updates:,} optimizer steps",
        "optimizer": schedule.optimizer,
        "learning rate": f"{first:.3g} at first, {highest:.3g} at most, {last:.3g} at last",
        "schedule": schedule.shape,
        **critic,
        "evaluations": f"{schedule.evaluations:,} × {answers}, the first before training"
        if schedule.evaluations
        else "none",
        "checkpoints": f"{schedule.checkpoints:,}",
    }
