"""Several workers that score the shares of a batch at the same time."""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Protocol

from whet.records import Example, Sampled, Score
from whet.tasks.grading.elastic import ElasticPool, Serving
from whet.tasks.protocol import Awaited


class Worker(Serving, Protocol):
    """A grader with a process of its own."""

    def grade(
        self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None
    ) -> list[Score]: ...


class WorkerPool(ElasticPool[Worker]):
    """Scores shares of whole prompts in whichever worker is free.

    Which prompts make a share depends on their number alone, so a function sees the same batches however fast the
    workers are, and however many join or leave.
    """

    def __init__(self, make: Callable[[], Worker], count: int, prompts_per_call: int | None) -> None:
        """`make` gives a worker, not started. `prompts_per_call`: the size of a share; None: `count` shares."""
        super().__init__(make, count)
        self._shares, self._prompts_per_call = count, prompts_per_call

    def shares(self, prompts: int) -> list[range]:
        size = self._prompts_per_call
        if size is not None:
            return [range(first, min(first + size, prompts)) for first in range(0, prompts, size)]
        count = min(self._shares, prompts)
        bounds = [prompts * share // count for share in range(count + 1)] if count else [0]
        return [range(low, high) for low, high in pairwise(bounds)]

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        self._look()
        future = self._begin(self._grade, examples, texts, sampled)
        return lambda: self._wait([future])[0]

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        if len(examples) != len(texts):
            raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
        self._look()
        prompts = [list(rows) for _, rows in groupby(range(len(examples)), key=lambda row: examples[row].id)]
        waiting = []
        for share in self.shares(len(prompts)):
            rows = [row for prompt in share for row in prompts[prompt]]
            of_rows = None if sampled is None else sampled.rows(rows)
            share_of = [examples[row] for row in rows], [texts[row] for row in rows], of_rows
            waiting.append(self._begin(self._grade, *share_of))
        return [score for scores in self._wait(waiting) for score in scores]

    def _grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> list[Score]:
        return self._serve(lambda worker: worker.grade(examples, texts, sampled))
