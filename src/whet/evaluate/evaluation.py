"""Evaluation on held-out examples by the task's metric, and beside it by the rewards of a run; with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from whet.distributed.world import World
from whet.engines.engine_protocol import Engine
from whet.errors import RunFailed, UserError
from whet.evaluate.measures import of_set
from whet.evaluate.statistics import Interval, best_of_n, flat_metrics, majority_at_k, mean_interval, pass_at_k, wilson
from whet.models.protocol import Tokenizer
from whet.records import Completion, Example, Prompt, Sampling, Score
from whet.streams import name_number
from whet.tasks.protocol import Batched, Gold, Task
from whet.turns.conductor import Play
from whet.turns.conversing import Conversing

# In place of the step in random streams, so that evaluation and training never share one.
EVALUATION_STEP = 2**31 - 1

Ranker = Callable[[Sequence[Example], Sequence[str]], list[float]]  # a reward model: one score per completion
HeldOutScorer = Callable[[Sequence[Example], Sequence[Completion]], list[Score]]  # the rewards of a run


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One graded completion of a held-out example."""

    id: str  # of the example
    prompt: str  # for display
    answer: str  # the example's
    text: str  # the completion
    correct: bool | None  # None: the example has no reference answer
    tokens: int  # with the end-of-sequence token
    finish: str  # "stop" or "length"
    sample: int  # 0 is greedy; 1, 2, … are the samples for pass@k
    gold: float | None = None  # the gold reward, if the task has one
    reward: float | None = None  # of a greedy answer, if a run's rewards are applied
    parts: Mapping[str, float] | None = None  # of the reward, by name
    vote: str | None = None  # of a sample: the answer that it states, if the task has votes
    rank_score: float | None = None  # of a sample: by the reward model of best-of-k
    extra: Mapping[str, Any] | None = None  # what reward functions noted of it, if they did
    logged: Mapping[str, float] | None = None  # what they measured of its batch
    part: str | None = None  # of a mixture: the task that the example belongs to
    turns: Sequence[Mapping[str, Any]] | None = None  # of a conversation: each `Turn` as plain data
    failure: str | None = None  # of its environment, if it failed

    def row(self) -> dict[str, Any]:
        """As plain data, without the fields of some answers where this one has none."""
        some = ("reward", "parts", "vote", "rank_score", "extra", "logged", "part", "turns", "failure")
        return {key: value for key, value in asdict(self).items() if key not in some or value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """`accuracy`, `length`, `truncated`, `gold`, `reward` and `parts` are of the greedy answers; accuracy, pass@k,
    maj@k and best-of-k of those that have a reference answer."""

    accuracy: Interval | None  # None: no example has a reference answer
    pass_at: dict[int, Interval]  # k → pass@k, mean over examples
    length: Interval  # tokens per answer
    truncated: float  # share of truncated answers
    gold: Interval | None  # the gold reward, if the task has one
    examples: int
    samples: int  # per example; 0: greedy only
    seed: int
    answers: tuple[Answer, ...]  # example by example
    reward: Interval | None = None  # by the rewards of a run
    parts: dict[str, Interval] = field(default_factory=dict)  # of the reward, by name
    logged: dict[str, float] = field(default_factory=dict)  # metrics that reward functions logged
    rows: dict[str, float] = field(default_factory=dict)  # metrics eval/… of the held-out rows of an offline run
    majority_at: dict[int, Interval] = field(default_factory=dict)  # k > 1 → maj@k, if the task has votes
    best_of: dict[int, Interval] = field(default_factory=dict)  # k > 1 → accuracy of the best of k by a reward model
    rows_step: int | None = None  # the step at which `rows` was recorded; None: it is measured anew

    @property
    def graded(self) -> int:
        """The number of examples with a reference answer."""
        return sum(answer.sample == 0 and answer.correct is not None for answer in self.answers)

    @property
    def scored(self) -> int:
        """The number of greedy answers with a reward; the reward failed on the others."""
        return sum(answer.reward is not None for answer in self.answers)

    def metrics(self) -> dict[str, float]:
        values: dict[str, Interval | float | None] = {"length": self.length.mean, "truncated": self.truncated}
        values |= {"accuracy": self.accuracy, "gold": self.gold}
        values |= {f"pass@{k}": interval for k, interval in self.pass_at.items()}
        values |= {f"maj@{k}": interval for k, interval in self.majority_at.items()}
        values |= {f"best-of-{k}": interval for k, interval in self.best_of.items()}
        values |= {f"parts/{name}": interval for name, interval in self.parts.items()} | {"reward": self.reward}
        values |= {f"logged/{name}": value for name, value in self.logged.items()}
        some = {"graded": self.graded} if 0 < self.graded < self.examples else {}
        if self.reward is not None and self.scored < self.examples:
            some["scored"] = self.scored
        found = flat_metrics(values | {"prompts": self.examples, **some})
        for name, part in self.by_part().items():
            found |= of_set(name, part.metrics())
        return found

    def by_part(self) -> dict[str, Evaluation]:
        """The evaluation of each task of a mixture by itself; none without a mixture."""
        groups: dict[str, list[list[Answer]]] = defaultdict(list)
        for answer in self.answers:
            if answer.part and answer.sample == 0:
                groups[answer.part].append([])
            if answer.part:
                groups[answer.part][-1].append(replace(answer, part=None))
        ks, has_votes = tuple(self.pass_at), bool(self.majority_at)
        return {
            name: _summary(some, samples=self.samples, ks=ks, seed=self.seed, has_votes=has_votes)
            for name, some in groups.items()
        }


def evaluate(  # noqa: PLR0913
    engine: Engine,
    tokenizer: Tokenizer,
    task: Task,
    *,
    examples: int,
    sampling: Sampling,
    samples: int = 0,
    ks: Sequence[int] = (),
    seed: int,
    scorer: HeldOutScorer | None = None,
    ranker: Ranker | None = None,
    conversing: Conversing | None = None,
    world: World,
) -> Evaluation:
    """Answers `examples` held-out examples greedily and, for pass@k, `samples` times with `sampling`.

    Greedy answers are also scored by `scorer`, and samples by `ranker` for best-of-k; every rank scores its share.
    A task with environments is played, as `conversing` says.
    """
    _check(examples=examples, sampling=sampling, samples=samples, ks=ks)
    mine = world.shard(held_out(task, examples))
    prompts = [_prompt(tokenizer, example, seed) for example in mine]
    greedy = replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    with closing(Conversing(tokenizer)) as own:
        about = (conversing or own).of(task)
        play = None if about is None else about(mine)
        completions = _generate(play, engine, prompts, greedy, count=1)
        if samples:
            sampled = _generate(play, engine, prompts, sampling, count=samples)
            completions = [first + rest for first, rest in zip(completions, sampled, strict=True)]
    if scorer is None:  # else it says what of a failure
        _refuse_failures(mine, completions)
    if isinstance(task, Batched):  # all at once; `correct` then remembers
        several = [(example, one.text) for example, some in zip(mine, completions, strict=True) for one in some]
        task.score_many([example for example, _ in several], [text for _, text in several])
    graded = [_answer_rows(task, example, answers) for example, answers in zip(mine, completions, strict=True)]
    if scorer is not None:
        _add_rewards(graded, scorer(mine, [answers[0] for answers in completions]))
    if ranker is not None:
        _add_ranks(graded, mine, ranker)
    rows = world.interleave(graded)
    by_example = [[Answer(**row) for row in example_rows] for example_rows in rows]
    has_votes = samples > 1 and callable(getattr(task, "vote", None))
    return _summary(by_example, samples=samples, ks=ks, seed=seed, has_votes=has_votes)


def held_out(task: Task, count: int) -> list[Example]:
    """Held-out examples of a task; refuses a task that has none."""
    found = task.held_out(count)
    if not found:
        raise UserError(
            f"task {task.name} has no held-out examples: hold some out (held_out_rows=100, of a file), or name a task "
            "that has some"
        )
    return found


def _check(*, examples: int, sampling: Sampling, samples: int, ks: Sequence[int]) -> None:
    if examples < 1:
        raise UserError(f"evaluation needs at least one example, got examples={examples}")
    if samples < 0:
        raise UserError(f"evaluation cannot draw samples={samples}: use 0 for greedy only")
    for k in ks:
        if not 1 <= k <= samples:
            raise UserError(f"pass@{k} needs 1 <= k <= samples, got samples={samples}: draw at least {max(k, 1)}")
    if samples and sampling.temperature == 0:
        raise UserError("pass@k at temperature 0 samples the same answer every time: set a temperature above 0")


def _prompt(tokenizer: Tokenizer, example: Example, seed: int) -> Prompt:
    stream = (seed, EVALUATION_STEP, name_number(example.id))
    return Prompt(tokens=tuple(tokenizer.prompt(example.prompt)), stream=stream)


def _generate(
    play: Play | None, engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, *, count: int
) -> list[list[Completion]]:
    if not prompts:  # with fewer examples than ranks some ranks have none
        return []
    if play is not None:
        return [conversations for _, conversations in play(engine, prompts, sampling, count)]
    return engine.generate(prompts, sampling, count=count)


def _refuse_failures(examples: Sequence[Example], completions: Sequence[Sequence[Completion]]) -> None:
    for example, some in zip(examples, completions, strict=True):
        for one in some:
            if one.failure:
                raise RunFailed(f"{one.failure} (held-out example {example.id})")


def _answer_rows(task: Task, example: Example, completions: Sequence[Completion]) -> list[dict[str, Any]]:
    """The fields of an `Answer` per completion, the greedy one first: plain values that ranks exchange."""
    vote: Callable[[Example, str], str | None] | None = getattr(task, "vote", None)  # of `Votes`
    return [
        {
            "id": example.id,
            "prompt": example.prompt_text,
            "answer": example.answer,
            "text": completion.text,
            "correct": task.correct(example, completion.text),
            "tokens": completion.sampled_tokens,
            "finish": completion.finish,
            "sample": sample,
            "gold": task.gold(example, completion.text) if isinstance(task, Gold) else None,
            "vote": vote(example, completion.text) if vote is not None and sample > 0 else None,
            "part": example.part or None,
            "turns": [asdict(turn) for turn in completion.turns] or None,
            "failure": completion.failure or None,
        }
        for sample, completion in enumerate(completions)
    ]


def _add_rewards(graded: Sequence[Sequence[dict[str, Any]]], scores: Sequence[Score]) -> None:
    for answers, score in zip(graded, scores, strict=True):
        if not score.is_missing:
            answers[0].update(reward=score.reward, parts=dict(score.parts))
        answers[0].update(score.remarks)


def _add_ranks(graded: Sequence[Sequence[dict[str, Any]]], examples: Sequence[Example], ranker: Ranker) -> None:
    sampled = [
        (example, row) for example, rows in zip(examples, graded, strict=True) for row in rows if row["sample"] > 0
    ]
    scores = ranker([example for example, _ in sampled], [row["text"] for _, row in sampled]) if sampled else []
    for (_, row), score in zip(sampled, scores, strict=True):
        row["rank_score"] = score


def _by_name(given: Iterable[Mapping[str, float] | None]) -> dict[str, list[float]]:
    """The values of each name, in order of the names."""
    found: dict[str, list[float]] = defaultdict(list)
    for values in given:
        for name, value in (values or {}).items():
            found[name].append(value)
    return dict(sorted(found.items()))


def _summary(
    by_example: Sequence[Sequence[Answer]], *, samples: int, ks: Sequence[int], seed: int, has_votes: bool
) -> Evaluation:
    count = len(by_example)
    greedy = [answers[0] for answers in by_example]
    gold = [answer.gold for answer in greedy if answer.gold is not None]
    rewards = [answer.reward for answer in greedy if answer.reward is not None]
    graded = [answers for answers in by_example if answers[0].correct is not None]
    sampled = [answers[1:] for answers in graded]
    right = [sum(bool(answer.correct) for answer in answers) for answers in sampled]
    several = [k for k in sorted(set(ks)) if k > 1] if graded else []
    is_ranked = any(answer.rank_score is not None for answers in sampled for answer in answers)
    return Evaluation(
        accuracy=wilson(sum(bool(answers[0].correct) for answers in graded), len(graded)) if graded else None,
        pass_at={
            k: wilson(math.fsum(pass_at_k(samples, c, k) for c in right), len(graded))
            for k in (sorted(set(ks)) if graded else ())
        },
        majority_at={k: _share([_majority(answers, k) for answers in sampled]) for k in several if has_votes},
        best_of={k: _share([_best(answers, k) for answers in sampled]) for k in several if is_ranked},
        length=mean_interval([answer.tokens for answer in greedy]),
        truncated=sum(answer.finish == "length" for answer in greedy) / count,
        gold=mean_interval(gold) if len(gold) == count else None,
        examples=count,
        samples=samples,
        seed=seed,
        answers=tuple(answer for answers in by_example for answer in answers),
        reward=mean_interval(rewards) if rewards else None,
        parts={name: mean_interval(values) for name, values in _by_name(a.parts for a in greedy).items()},
        logged={name: math.fsum(values) / len(values) for name, values in _by_name(a.logged for a in greedy).items()},
    )


def _majority(answers: Sequence[Answer], k: int) -> float:
    return majority_at_k([answer.vote for answer in answers], [float(bool(answer.correct)) for answer in answers], k)


def _best(answers: Sequence[Answer], k: int) -> float:
    ranks = [answer.rank_score if answer.rank_score is not None else -math.inf for answer in answers]
    return best_of_n(ranks, [float(bool(answer.correct)) for answer in answers], k)


def _share(values: Sequence[float]) -> Interval:
    """The mean of one value in [0, 1] per example; sums of fractions may exceed 1 by a rounding error."""
    return wilson(min(math.fsum(values), float(len(values))), len(values))
