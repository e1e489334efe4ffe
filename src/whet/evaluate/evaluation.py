"""Honest evaluation: held-out examples, the task's own metric, intervals and a seed. Never sees a training reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from whet.distributed.world import World
from whet.engines.engine_protocol import Engine
from whet.errors import UserError
from whet.evaluate.statistics import Interval, mean_interval, pass_at_k, wilson
from whet.models.protocol import Tokenizer
from whet.records import Completion, Example, Prompt, Sampling
from whet.streams import name_number
from whet.tasks.protocol import Gold, Task

# Stands where a training rollout has its step, so an evaluation never shares a random stream with training:
# no run has this many steps.
EVALUATION_STEP = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One completion of a held-out example, and whether it is right."""

    id: str  # of the example
    prompt: str  # as text; a conversation has one "role: content" line per message
    answer: str  # a right answer, from the example
    text: str  # what the policy said
    correct: bool
    tokens: int  # sampled, the end-of-sequence token included
    finish: str  # "stop" or "length"
    sample: int  # 0 is the greedy answer; 1, 2, … are the samples behind pass@k
    gold: float | None = None  # the true reward, where the task knows it


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What was measured. `accuracy`, `length` and `truncated` describe the greedy answers."""

    accuracy: Interval  # share of examples answered right
    pass_at: dict[int, Interval]  # k → chance that k samples hold a right answer, mean over examples
    length: Interval  # tokens per answer
    truncated: float  # share of answers that were cut off
    gold: Interval | None  # the true reward, where the task knows it
    examples: int
    samples: int  # per example; 0 when only greedy
    seed: int
    answers: tuple[Answer, ...]  # in the order of the examples, each with its samples

    def metrics(self) -> dict[str, float]:
        """The numbers under the names that a run records."""
        named = {"eval/accuracy": self.accuracy} | ({"eval/gold": self.gold} if self.gold is not None else {})
        named |= {f"eval/pass@{k}": interval for k, interval in self.pass_at.items()}
        flat = {"eval/length": self.length.mean, "eval/truncated": self.truncated}
        for name, interval in named.items():
            flat |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
        return flat


def evaluate(  # noqa: PLR0913 - three collaborators and what to measure, all of them needed
    engine: Engine,
    tokenizer: Tokenizer,
    task: Task,
    *,
    examples: int,
    sampling: Sampling,
    samples: int = 0,
    ks: Sequence[int] = (),
    seed: int,
    world: World,
) -> Evaluation:
    """Answers the first `examples` held-out examples greedily and, for pass@k, `samples` times with `sampling`."""
    _check(examples=examples, sampling=sampling, samples=samples, ks=ks)
    held_out = task.held_out(examples)
    if not held_out:
        raise UserError(f"task {task.name} has no held-out examples: give it an evaluation split")
    mine = world.shard(held_out)
    prompts = [_prompt(tokenizer, example, seed) for example in mine]
    greedy = replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    completions = _generate(engine, prompts, greedy, count=1)
    if samples:
        sampled = _generate(engine, prompts, sampling, count=samples)
        completions = [first + rest for first, rest in zip(completions, sampled, strict=True)]
    pairs = zip(mine, completions, strict=True)
    rows = world.interleave([_answer_rows(task, example, answers) for example, answers in pairs])
    by_example = [[Answer(**row) for row in example_rows] for example_rows in rows]
    return _summary(by_example, samples=samples, ks=ks, seed=seed)


def _check(*, examples: int, sampling: Sampling, samples: int, ks: Sequence[int]) -> None:
    if examples < 1:
        raise UserError(f"evaluation needs at least one example, got examples={examples}")
    if samples < 0:
        raise UserError(f"evaluation cannot draw samples={samples}: use 0 for greedy only")
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"pass@{k} needs 1 <= k <= samples, got samples={samples}: draw at least {max(k, 1)}")
    if samples and sampling.temperature == 0:
        raise UserError("pass@k at temperature 0 would draw the same answer every time: set a temperature above 0")


def _prompt(tokenizer: Tokenizer, example: Example, seed: int) -> Prompt:
    stream = (seed, EVALUATION_STEP, name_number(example.id))
    return Prompt(tokens=tuple(tokenizer.prompt(example.prompt)), stream=stream)


def _generate(engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, *, count: int) -> list[list[Completion]]:
    # A rank may hold no example when there are fewer examples than ranks.
    return engine.generate(prompts, sampling, count=count) if prompts else []


def _answer_rows(task: Task, example: Example, completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """One JSON row per completion; the greedy one comes first."""
    return [
        asdict(
            Answer(
                id=example.id,
                prompt=example.prompt_text,
                answer=example.answer,
                text=completion.text,
                correct=bool(task.correct(example, completion.text)),
                tokens=len(completion.tokens),
                finish=completion.finish,
                sample=sample,
                gold=task.gold(example, completion.text) if isinstance(task, Gold) else None,
            )
        )
        for sample, completion in enumerate(completions)
    ]


def _summary(by_example: Sequence[Sequence[Answer]], *, samples: int, ks: Sequence[int], seed: int) -> Evaluation:
    count = len(by_example)
    greedy = [answers[0] for answers in by_example]
    gold = [answer.gold for answer in greedy if answer.gold is not None]
    right = [sum(answer.correct for answer in answers[1:]) for answers in by_example]
    return Evaluation(
        accuracy=wilson(sum(answer.correct for answer in greedy), count),
        pass_at={k: wilson(math.fsum(pass_at_k(samples, c, k) for c in right), count) for k in sorted(set(ks))},
        length=mean_interval([answer.tokens for answer in greedy]),
        truncated=sum(answer.finish == "length" for answer in greedy) / count,
        gold=mean_interval(gold) if len(gold) == count else None,
        examples=count,
        samples=samples,
        seed=seed,
        answers=tuple(answer for answers in by_example for answer in answers),
    )
