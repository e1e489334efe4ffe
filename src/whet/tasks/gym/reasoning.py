"""Problems of reasoning-gym (Stojanovski et al. 2025): any of its generators, or a weighted mixture of them.

    reward = accuracy + format_weight · format

`accuracy` is 1 if the library's own scorer gives the answer full marks, else partial_weight · its score. The answer is
what stands in the last <answer> block. An example holds generator, options and number of its problem, from which the
process that scores makes it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from whet.errors import UserError, nearest
from whet.records import LARGEST_REWARD, PART, Example, Message, Score
from whet.tasks.blending import alternated, blended, exact_weights
from whet.tasks.gym.generators import Generator, check_source, scored
from whet.tasks.gym.think_format import SYSTEM_PROMPT, format_share, formatted
from whet.tasks.maths.extraction import answer_block

OF_A_DATASET = ("name", "weight", "config", "level", "levels")


@dataclass(frozen=True, kw_only=True)
class ReasoningGym:
    """Problems of reasoning-gym's generators, scored by its own scorers; needs the package reasoning-gym."""

    dataset: str = ""  # a generator by name, e.g. spell_backward
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)  # options of the generator
    level: int = 0  # of the generator's curriculum, from 1 on; 0: its default options
    levels: Mapping[str, int] = field(default_factory=dict, hash=False)  # of single attributes of the curriculum
    datasets: Sequence[Any] = ()  # several in place of one: each {name, weight, config, level, levels}
    size: int = 10_000  # problems of each generator
    seed: int = 0  # of the problems
    held_out_examples: int = 200  # problems of each generator that are kept for evaluation, at most
    partial_weight: float = 0.2  # factor of scores below full marks; 1: as the library scores, 0: right or wrong
    format_weight: float = 0.0  # reward for the format <think>…</think> <answer>…</answer>
    system_prompt: str = SYSTEM_PROMPT  # asks for the format; empty: none

    name = "reasoning_gym"

    def __post_init__(self) -> None:
        if bool(self.dataset) == bool(self.datasets):
            raise UserError("task reasoning_gym needs either dataset (a generator's name) or datasets (several)")
        if self.datasets and (self.config or self.level or self.levels):
            raise UserError("task reasoning_gym: config, level and levels are of one dataset: write them in datasets")
        if not 0 <= self.partial_weight <= 1:
            raise UserError(f"task reasoning_gym: partial_weight is {self.partial_weight}, must be from 0 to 1")
        if not 0 <= self.format_weight <= LARGEST_REWARD:
            raise UserError(f"task reasoning_gym: format_weight is {self.format_weight}, must be 0 or more")
        for option in ("size", "held_out_examples"):
            if getattr(self, option) < 1:
                raise UserError(f"task reasoning_gym: {option} is {getattr(self, option)}, must be 1 or more")
        _ = self._generators

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        draws = [partial(self._drawn, generator) for generator in self._generators]
        return blended(draws, self._weights, count, seed)

    def held_out(self, count: int) -> list[Example]:
        sources = [[self._example(one, index) for index in one.held_out[:count]] for one in self._generators]
        return alternated(sources, count)

    def score(self, example: Example, text: str) -> Score:
        found = self._score(example, text)
        full = float(found == 1)
        accuracy, kept = full or self.partial_weight * (found or 0.0), format_share(text)
        return Score(
            reward=accuracy + self.format_weight * kept,
            parts={"correct": full, "accuracy": accuracy, "format": kept, "failed": float(found is None)},
        )

    def correct(self, example: Example, text: str) -> bool:
        return self._score(example, text) == 1

    @cached_property
    def _generators(self) -> list[Generator]:
        own = {"name": self.dataset, "config": self.config, "level": self.level, "levels": self.levels}
        return [self._generator(one) for one in (self.datasets or [own])]

    @cached_property
    def _weights(self) -> Any:
        given = [one.get("weight", 1) if isinstance(one, Mapping) else 1 for one in self.datasets] or [1]
        return exact_weights(dict(zip([g.label for g in self._generators], given, strict=True)), "task reasoning_gym")

    def _generator(self, given: Any) -> Generator:
        one = {"name": given} if isinstance(given, str) else given
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            raise UserError(f"task reasoning_gym: datasets has {given!r}, must be a name or a mapping with one")
        for key in one:
            if key not in OF_A_DATASET:
                known = ", ".join(OF_A_DATASET)
                raise UserError(
                    f"task reasoning_gym: a dataset has no {key!r}{nearest(str(key), OF_A_DATASET)} ({known})"
                )
        source: dict[str, Any] = {"config": {}, "level": 0, "levels": {}, **one}
        source.pop("weight", None)
        check_source(source)
        found = Generator(**source, size=self.size, seed=self.seed, held_out_examples=self.held_out_examples)
        found.require_values()
        return found

    def _drawn(self, generator: Generator, count: int, seed: tuple[int, ...]) -> list[Example]:
        return [self._example(generator, index) for index in generator.training(count, seed)]

    def _example(self, generator: Generator, index: int) -> Example:
        posed = generator.posed(index)
        question = Message(role="user", content=posed.question)
        system = (Message(role="system", content=self.system_prompt),) if self.system_prompt else ()
        part = {PART: generator.name} if self.datasets else {}
        return Example(
            id=f"{generator.label}:{index}",
            prompt=(*system, question),
            answer=formatted(posed.answer) if posed.answer else "",
            columns={"dataset": generator.name, "index": index, "source": generator.source, **part},
            twin=posed.question,
        )

    def _score(self, example: Example, text: str) -> float | None:
        """The scorer's; 0 without an answer block, None if the scorer raised or hung."""
        answer = answer_block(text)
        return 0.0 if answer is None else scored(example.columns["source"], example.columns["index"], answer.strip())
