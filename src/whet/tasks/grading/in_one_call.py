"""What graders share that score a batch as a whole."""

from collections.abc import Sequence
from functools import partial

from whet.records import Example, Sampled, Score
from whet.tasks.protocol import Awaited


class InOneCall:
    """A grader that scores a batch as a whole, when it is asked for the result."""

    def grade(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None = None) -> list[Score]:
        raise NotImplementedError

    def shares(self, prompts: int) -> list[range]:
        return [range(prompts)]

    def submit(self, examples: Sequence[Example], texts: Sequence[str], sampled: Sampled | None) -> Awaited:
        return partial(self.grade, examples, texts, sampled)
