"""Examples → prompts → completions → graded rollouts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress
from typing import Any

from whet.engines.engine_protocol import Engine
from whet.errors import RunFailed
from whet.models.protocol import Tokenizer
from whet.records import Completion, Example, Prompt, Rollout, Sampled, Sampling, Score
from whet.streams import name_number
from whet.tasks.protocol import Awaited, Grader, Task
from whet.turns.conductor import Play

Group = list[Rollout]


def draw(task: Task, count: int, *, seed: tuple[int, ...]) -> list[Example]:
    """Exactly `count` training examples of the task."""
    examples = task.draw(count, seed=seed)
    if len(examples) != count:
        raise RunFailed(f"task {task.name} drew {len(examples)} examples instead of {count}: check its draw method")
    return examples


def tokenize_prompts(examples: Sequence[Example], tokenizer: Tokenizer, *, stream: tuple[int, ...]) -> list[Prompt]:
    """The tokenised prompts, each with a random stream named by `stream`, the example and its repetition."""
    seen: Counter[str] = Counter()
    prompts = []
    for example in examples:
        name = (*stream, name_number(example.id), seen[example.id])
        seen[example.id] += 1
        prompts.append(Prompt(tokens=tuple(tokenizer.prompt(example.prompt)), stream=name))
    return prompts


def sample(
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    group: int,
    scoring: "Scoring | None" = None,
    *,
    greedy: bool = False,
    play: Play | None = None,
) -> list[tuple[Prompt, list[Completion]]]:
    """`group` completions of each prompt, then the greedy one if `greedy`; `scoring` hears of finished groups.

    Of a task with environments they are conversations, as `play` conducts them.
    """
    if play is not None:
        played = play(engine, prompts, sampling, group)
        if not greedy:
            return played
        best = play(engine, prompts, replace(sampling, temperature=0.0), 1)
        return [(prompt, some + one) for (prompt, some), (_, one) in zip(played, best, strict=True)]
    if scoring is not None and scoring.is_early and not greedy:
        groups = engine.generate(prompts, sampling, count=group, on_group=scoring.on_group)
    else:
        groups = engine.generate(prompts, sampling, count=group)
    if greedy:
        likeliest = engine.generate(prompts, replace(sampling, temperature=0.0), count=1)
        groups = [completions + one for completions, one in zip(groups, likeliest, strict=True)]
    return list(zip(prompts, groups, strict=True))


class Scoring:
    """The scores of one round of rollouts: a share of its prompts is scored as soon as it is sampled.

    Shares are scored while others are sampled where the grader has processes for that (`Grader.submit`). Which prompts
    make a share does not depend on time, so the scores do not either.
    """

    def __init__(
        self, grader: Grader, examples: Sequence[Example], *, version: int, steps: int, finished: int | None = None
    ) -> None:
        """`version`: of the weights that sampled; `steps`: of the run; `finished`: of them, `version` if None."""
        self._grader, self._examples, self._version, self._steps = grader, examples, version, steps
        self._finished = version if finished is None else finished
        self._shares = grader.shares(len(examples))
        self._sampled: dict[int, list[Completion]] = {}
        self._waiting: dict[int, Awaited] = {}  # share → its scores

    @property
    def is_early(self) -> bool:
        """Whether a share can be scored before all prompts are sampled."""
        return len(self._shares) > 1

    def on_group(self, index: int, completions: list[Completion]) -> None:
        """The completions of one prompt are there."""
        self._sampled[index] = completions
        number = next(number for number, share in enumerate(self._shares) if index in share)
        share = self._shares[number]
        if number not in self._waiting and all(prompt in self._sampled for prompt in share):
            rows = [(self._examples[prompt], one) for prompt in share for one in self._sampled[prompt]]
            examples, done = [example for example, _ in rows], [one for _, one in rows]
            texts = [one.text for one in done]
            facts = sampled(done, step=self._finished, steps=self._steps)
            self._waiting[number] = self._grader.submit(examples, texts, facts)

    def groups(self, samples: Sequence[tuple[Prompt, list[Completion]]]) -> list[Group]:
        """Graded rollouts, one group per example, when all scores are there."""
        for index, (_, completions) in enumerate(samples):
            if index not in self._sampled:
                self.on_group(index, completions)
        scores = iter([score for number in range(len(self._shares)) for score in self._waiting[number]()])
        return [
            [_rollout(example, prompt, one, next(scores), self._version) for one in completions]
            for example, (prompt, completions) in zip(self._examples, samples, strict=True)
        ]


def grade(
    grader: Grader, examples: Sequence[Example], samples: Sequence[tuple[Prompt, list[Completion]]], *, version: int
) -> list[Group]:
    """Graded rollouts, one group per example, of samples that are all there."""
    return Scoring(grader, examples, version=version, steps=version).groups(samples)


def sampled(completions: Sequence[Completion], *, step: int, steps: int) -> Sampled:
    """What reward functions may ask for of these completions besides their texts."""
    return Sampled(
        tokens=tuple(completion.tokens for completion in completions),
        finish=tuple(completion.finish for completion in completions),
        step=step,
        steps=steps,
        logprobs=tuple(completion.logprobs for completion in completions),
        turns=tuple(completion.turns for completion in completions),
        failures=tuple(completion.failure for completion in completions),
    )


def _rollout(example: Example, prompt: Prompt, completion: Completion, score: Score, version: int) -> Rollout:
    prompt_length = len(prompt.tokens)
    return Rollout(
        example=example,
        tokens=prompt.tokens + completion.tokens,
        mask=(False,) * prompt_length + completion.mask,
        logprobs=(0.0,) * prompt_length + completion.logprobs,
        text=completion.text,
        finish=completion.finish,
        version=version,
        score=score,
        versions=completion.versions,
        turns=completion.turns,
    )


def spelled(groups: Sequence[Sequence[Mapping[str, Any]]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The rows of all groups, each with the number of its group and the text of every sampled token."""
    rows = chain.from_iterable(groups)
    chosen = list(set(chain.from_iterable(compress(row["tokens"], row["mask"]) for row in rows)))
    texts = dict(zip(chosen, tokenizer.decode_many([[token] for token in chosen]), strict=True))
    for number, group in enumerate(groups):
        for row in group:
            pieces = [texts[token] for token in compress(row["tokens"], row["mask"])]
            yield {"group": number, **row, "pieces": pieces}
