"""The grader of a mixture: each task's completions go to a grader of its own, a user's task to a worker process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.records import Example, Sampled, Score
from whet.tasks.grading.in_one_call import InOneCall
from whet.tasks.mixture import MixedTasks, members
from whet.tasks.protocol import Grader


class MixedGrader(InOneCall):
    """Sends every completion to the grader of its task."""

    def __init__(self, mixture: MixedTasks, graders: Mapping[str, Grader]) -> None:
        self._mixture, self._graders = mixture, graders

    def grade(
        self,
        examples: Sequence[Example],
        texts: Sequence[str],
        sampled: Sampled | None = None,  # noqa: ARG002 - as the protocol has it
    ) -> list[Score]:
        scores: dict[int, Score] = {}
        for label, grader in self._graders.items():
            places = [place for place, example in enumerate(examples) if example.part == label]
            own = [self._mixture.owner(examples[place])[1] for place in places]
            found = grader.grade(own, [texts[place] for place in places]) if places else []
            scores |= dict(zip(places, found, strict=True))
        return [scores[place] for place in range(len(examples))]

    def close(self) -> None:
        for grader in self._graders.values():
            grader.close()


def mixed_grader(mixture: MixedTasks, tasks: Sequence[Any], make: Callable[..., Grader]) -> MixedGrader:
    """The grader of a mixture of these tasks; `make(name, options, task=…)` makes that of one of them."""
    named = members(tasks)
    return MixedGrader(
        mixture, {one.label: make(one.name, one.options, task=mixture.parts[one.label]) for one in named}
    )
