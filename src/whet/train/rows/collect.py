"""The loop that makes training rows: prompts → completions → rewards → pairs, dialogues or outcomes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from whet.algorithms import selection
from whet.algorithms.selection import Place
from whet.config.loops import CollectConfig
from whet.distributed.world import World
from whet.errors import RunFailed, UserError
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model
from whet.models.model_tokenizer import model_tokenizer
from whet.records import Rollout
from whet.rollout import Group, draw, grade, sample, tokenize_prompts
from whet.runs.directory import RunDirectory
from whet.runs.interrupt import Interrupt
from whet.streams import stream_key
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Task
from whet.train.session.callbacks import Progress
from whet.train.session.session import abandoning
from whet.train.session.tolerated import RewardFailures
from whet.train.setup.build import build_engine, chat_tokenizer, place
from whet.train.setup.prompt_lengths import fit_prompts
from whet.train.setup.reward_grader import build_grader
from whet.turns.conversing import require_single_answers


def collect(config: CollectConfig, run: RunDirectory, world: World, progress: Progress) -> None:
    """Samples, grades, selects and writes the rows; a stopped run starts again and gives the same rows."""
    if world.size > 1:
        raise UserError(f"loop collect runs in one process and there are {world.size}: start it without torchrun")
    if not config.model.path:
        raise UserError("loop collect samples from a model that exists: give model a directory, a name or a run")
    task = guarded_task(config.task.name, config.task.options)
    require_single_answers(task, "rows of an answer each are collected here: use another task")
    directory = resolve_model(config.model.path)
    tokenizer, note = chat_tokenizer(config.model, model_tokenizer(directory))
    policy = place(load_model(directory), world.device)
    longest = config.rollout.max_tokens
    task, lengths = fit_prompts(
        task, tokenizer, context=policy.context, max_tokens=longest, key="rollout.max_tokens", used=["training"]
    )
    engine = build_engine(config.engine, policy, tokenizer, world)
    failures = RewardFailures(config.reward.allowed_failures, run, world, progress)
    grader = build_grader(config, world.device, task, tokenizer, failures.tolerance)
    progress.note(f"run: {run.path}")
    restarted = run.start_over()
    for text in (f"note: {note}" if note else "", *lengths, restarted):
        if text:
            progress.note(text)
    groups: list[Group] = []
    with closing(grader), closing(engine), Interrupt() as interrupt:
        for step in range(1, config.steps + 1):
            started = time.perf_counter()
            name = (config.seed, step)
            examples = draw(task, config.rollout.prompts, seed=name)
            prompts = tokenize_prompts(examples, tokenizer, stream=name)
            with abandoning(interrupt, world):
                samples = sample(engine, prompts, config.rollout.sampling, config.rollout.group)
                new = scored(grade(grader, examples, samples, version=0))
            groups += new
            timings = {"seconds/step": time.perf_counter() - started}
            metrics = _metrics(new)
            if failures.kept is not None:
                metrics["reward/failures"] = float(failures.of_rollouts(step))
            run.log(step, metrics)
            run.log_times(step, timings)
            if progress.step(step, metrics, timings) is False or interrupt.requested:
                return
    rows = list(selected(config, groups, task))
    if not rows:
        raise RunFailed(
            f"no completion of {len(groups)} prompts was selected: all rewards of a prompt may be the same, all "
            "completions were truncated (then raise rollout.max_tokens), or no prompt has an answer to tell outcomes by"
        )
    run.write_rows(rows)
    run.finish(
        {"recipe": run.recipe, "loop": config.loop, "rows": len(rows), "select": config.select, "seed": config.seed}
    )
    progress.note(f"rows: {len(rows):,} ({config.select}) in {run.rows_path}")


def scored(groups: Sequence[Group]) -> list[Group]:
    """The rollouts that have a reward; a prompt without any is left out."""
    known = [[rollout for rollout in group if not rollout.score.is_missing] for group in groups]
    return [group for group in known if group]


def selected(config: CollectConfig, groups: Sequence[Group], task: Task) -> Iterator[dict[str, Any]]:
    """The selected rows, as the loaders of data read them; blank completions are left out.

    Truncated ones are imitated only with `truncated: keep`, but may be rejected or counted as wrong.
    """
    groups = [written for group in groups if (written := [rollout for rollout in group if rollout.text.strip()])]
    if config.select == "outcomes":
        for group in groups:
            right = [task.correct(rollout.example, rollout.text) for rollout in group]
            if None in right:  # the example has no reference answer
                continue
            yield {**_asked(group[0]), "completions": [r.text for r in group], "correct": right}
        return
    if config.select in ("pairs", "extremes"):
        choose = selection.neighbours if config.select == "pairs" else selection.extremes
        may_win = [[_may_win(rollout, config) for rollout in group] for group in groups]
        for (row, better), (_, worse) in choose(_rewards(groups), gap=config.gap, may_win=may_win):
            chosen, rejected = groups[row][better], groups[row][worse]
            margin = chosen.score.reward - rejected.score.reward
            yield {**_asked(chosen), "chosen": chosen.text, "rejected": rejected.text, "margin": margin}
        return
    groups = [some for group in groups if (some := [rollout for rollout in group if _may_win(rollout, config)])]
    for row, index in _chosen(config, _rewards(groups)):
        yield {**_asked(groups[row][index]), "completion": groups[row][index].text}


def _may_win(rollout: Rollout, config: CollectConfig) -> bool:
    """Whether to imitate a completion: a policy that imitates truncated ones learns to stop too early."""
    return config.truncated == "keep" or rollout.finish != "length"


def _rewards(groups: Sequence[Group]) -> list[list[float]]:
    return [[rollout.score.reward for rollout in group] for group in groups]


def _chosen(config: CollectConfig, rewards: Sequence[Sequence[float]]) -> list[Place]:
    seed = stream_key((config.seed, len(rewards))) % 2**63
    if config.select == "best":
        return selection.best(rewards)
    if config.select == "random":
        return selection.at_random(rewards, seed=seed)
    if config.select == "best_overall":
        return selection.best_overall(rewards, share=config.keep)
    return selection.random_overall(rewards, share=config.keep, seed=seed)


def _asked(rollout: Rollout) -> dict[str, Any]:
    """The prompt of a row, and its leakage group if the task names one."""
    return {"prompt": rollout.example.plain_prompt} | ({"twin": rollout.example.twin} if rollout.example.twin else {})


def _metrics(groups: Sequence[Group]) -> dict[str, float]:
    rollouts = [rollout for group in groups for rollout in group]
    if not rollouts:
        return {}
    return {
        "reward/mean": sum(rollout.score.reward for rollout in rollouts) / len(rollouts),
        "length/mean": sum(sum(rollout.mask) for rollout in rollouts) / len(rollouts),
        "truncated": sum(rollout.finish == "length" for rollout in rollouts) / len(rollouts),
    }
