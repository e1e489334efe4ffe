"""The process that runs the user's reward functions: `python -m whet.tasks.grading.worker`.

`wire` has the protocol, `serving` has the order of the service, which the worker of environments shares.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from whet.errors import UserError
from whet.records import Example, Sampled, Score
from whet.tasks.grading.reward_arguments import OF_SAMPLES
from whet.tasks.grading.reward_functions import (
    Report,
    RewardFailed,
    Runner,
    alarms_end,
    load_rewards,
    raised,
    score_with,
)
from whet.tasks.grading.serving import Service, run
from whet.tasks.grading.wire import pack_score, unpack_batch
from whet.tasks.loading import load_task
from whet.tasks.protocol import Task, is_reward, too_large


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """The user's reward functions or task, loaded."""

    score: Callable[[Sequence[Example], Sequence[str], Sampled | None, Report], list[Score]]
    wants_samples: bool  # whether it asks for `Sampled`


def main() -> None:
    """Serves batches until standard input ends."""
    run(_serve)


def _serve() -> None:
    service = Service()
    setup = service.setup

    def load() -> Scorer:
        # One event loop for all batches: clients that the user's functions keep are bound to it.
        runner = asyncio.Runner()
        return make_scorer(setup.task, setup.options, setup.rewards, runner, may_abstain=setup.may_abstain)

    scorer = service.loaded(load)
    for request in service.requests(wants_samples=scorer.wants_samples):
        number = request["request"]
        service.begin_call()
        service.send(number, answer(scorer, request, partial(_report, service, number)))


def _report(service: Service, request: int, function: str, row: int | None) -> None:
    service.send(request, {"at": function, "row": row})


def make_scorer(
    task: str, options: Mapping[str, Any], rewards: Sequence[tuple[str, float]], runner: Runner, *, may_abstain: bool
) -> Scorer:
    """The user's reward functions, or the score of the user's task if there are none."""
    if not rewards:
        return Scorer(score=partial(score_task, load_task(task, options)), wants_samples=False)
    functions = load_rewards(rewards)

    def score(
        examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None, report: Report
    ) -> list[Score]:
        return score_with(
            functions, examples, texts, runner=runner, report=report, may_abstain=may_abstain, sampled=sampled
        )

    return Scorer(score=score, wants_samples=any(function.accepts_one_of(OF_SAMPLES) for function in functions))


def answer(scorer: Scorer, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
    examples, texts, sampled = unpack_batch(request)
    try:
        return {"scores": [pack_score(score) for score in scorer.score(examples, texts, sampled, report)]}
    except RewardFailed as error:
        return {"failed": str(error), "row": error.row, "traceback": error.traceback}
    except UserError as error:
        return {"user_error": str(error)}


def score_task(
    task: Task, examples: Sequence[Example], texts: Sequence[str], _sampled: Sampled | None, report: Report
) -> list[Score]:
    scores = []
    for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
        report("score", row)
        scores.append(_score_row(task, example, text, row))
    return scores


def _score_row(task: Task, example: Example, text: str, row: int) -> Score:
    try:
        with alarms_end():
            score = task.score(example, text)
        if not isinstance(score, Score):
            raise TypeError(f"it gave a {type(score).__name__}, not a Score")
        plain = Score(reward=float(score.reward), parts={str(k): float(v) for k, v in score.parts.items()})
    except SystemExit:
        raise
    except BaseException as error:  # as for reward functions
        raise raised(f"the score of task {task.name}", error, row=row) from error
    for name, value in (("reward", plain.reward), *plain.parts.items()):
        if not is_reward(value):
            what = f"{name} = {value} for row {row}{too_large(value)}"
            raise RewardFailed(f"the score of task {task.name} gave {what}", row=row)
    return plain


if __name__ == "__main__":
    main()
