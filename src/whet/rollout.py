"""Examples → prompts → completions → graded rollouts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, compress, islice
from typing import Any

from whet.engines.engine_protocol import Engine
from whet.errors import RunFailed
from whet.models.protocol import Tokenizer
from whet.records import Completion, Example, Prompt, Rollout, Sampling, Score
from whet.streams import name_number
from whet.tasks.protocol import Grader, Task

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
    engine: Engine, prompts: Sequence[Prompt], sampling: Sampling, group: int, *, greedy: bool = False
) -> list[tuple[Prompt, list[Completion]]]:
    """`group` completions of each prompt, followed by the greedy one if `greedy`."""
    groups = engine.generate(prompts, sampling, count=group)
    if greedy:
        likeliest = engine.generate(prompts, replace(sampling, temperature=0.0), count=1)
        groups = [completions + one for completions, one in zip(groups, likeliest, strict=True)]
    return list(zip(prompts, groups, strict=True))


def grade(
    grader: Grader, examples: Sequence[Example], samples: Sequence[tuple[Prompt, list[Completion]]], *, version: int
) -> list[Group]:
    """Graded rollouts, one group per example."""
    pairs = [
        (example, prompt, completion)
        for example, (prompt, completions) in zip(examples, samples, strict=True)
        for completion in completions
    ]
    scores = grader.grade([example for example, _, _ in pairs], [completion.text for _, _, completion in pairs])
    rollouts = [_rollout(*pair, score, version) for pair, score in zip(pairs, scores, strict=True)]
    rest = iter(rollouts)
    return [list(islice(rest, len(completions))) for _, completions in samples]


def _rollout(example: Example, prompt: Prompt, completion: Completion, score: Score, version: int) -> Rollout:
    prompt_length = len(prompt.tokens)
    return Rollout(
        example=example,
        tokens=prompt.tokens + completion.tokens,
        mask=(False,) * prompt_length + (True,) * len(completion.tokens),
        logprobs=(0.0,) * prompt_length + completion.logprobs,
        text=completion.text,
        finish=completion.finish,
        version=version,
        score=score,
    )


def spelled(groups: Sequence[Sequence[Mapping[str, Any]]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The rows of all groups, each with the text of every sampled token."""
    rows = list(chain.from_iterable(groups))
    chosen = list(set(chain.from_iterable(compress(row["tokens"], row["mask"]) for row in rows)))
    texts = dict(zip(chosen, tokenizer.decode_many([[token] for token in chosen]), strict=True))
    for row in rows:
        yield {**row, "pieces": [texts[token] for token in compress(row["tokens"], row["mask"])]}
