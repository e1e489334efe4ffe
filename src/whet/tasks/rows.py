"""A task from a JSON-lines file with the columns `prompt`, `answer` and any others."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from whet import files
from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.space import HELD_OUT_SHARE, epoch_places, fingerprint, first_held_out, is_held_out

RESERVED = ("prompts", "completions")  # argument names of reward functions


class StoredTask(ABC):
    """A task whose examples are rows of a file or data set."""

    @cached_property
    @abstractmethod
    def _sides(self) -> tuple[list[Example], list[Example]]:
        """The training and the evaluation examples, in row order."""

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        """The training examples in shuffled epochs; the seed ends with the step, from 1."""
        training, (*run, step) = self._sides[0], seed
        places = epoch_places(len(training), (step - 1) * count, count, "training", *run)
        return [training[place] for place in places]

    def held_out(self, count: int) -> list[Example]:
        return first_held_out(self._sides[1], count)


@dataclass(frozen=True, kw_only=True)
class RowsTask(StoredTask):
    """Rows of a .jsonl or .jsonl.gz file, graded by exact match with `answer`."""

    path: str
    held_out_share: float = HELD_OUT_SHARE  # of the prompts, by their hash; 0 trains on all rows
    chat: bool = False  # format plain-text prompts as user messages
    limit: int | None = None  # read only the first rows

    def __post_init__(self) -> None:
        if not 0 <= self.held_out_share < 1:
            raise UserError(f"task rows: held_out_share is {self.held_out_share}, must be at least 0 and below 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"task rows: limit is {self.limit}, must be 1 or more rows")
        training, evaluation = self._sides
        if not training and not evaluation:
            raise UserError(f"{self.path} has no rows")
        if not training:
            raise UserError(f"{self.path} has no rows left for training: lower held_out_share or add rows")
        if not evaluation and self.held_out_share > 0:
            raise UserError(f"{self.path} has no rows left for evaluation: raise held_out_share or add rows")

    @property
    def name(self) -> str:
        return "rows"

    def score(self, example: Example, text: str) -> Score:
        right = float(self.correct(example, text) or False)
        return Score(reward=right, parts={"correct": right})

    def correct(self, example: Example, text: str) -> bool | None:
        return None if example.answer == "" else text.strip() == example.answer.strip()

    @cached_property
    def _sides(self) -> tuple[list[Example], list[Example]]:
        examples = [self._formatted(example) for example in islice(read_rows(Path(self.path)), self.limit)]
        prompts = {_prompt_text(example.prompt) for example in examples}
        held_out = {prompt for prompt in prompts if is_held_out(prompt, self.held_out_share)}
        if not held_out and self.held_out_share > 0 and len(prompts) > 1:  # possible in a small file
            held_out = {min(prompts, key=lambda prompt: fingerprint("side", prompt))}
        training = [example for example in examples if _prompt_text(example.prompt) not in held_out]
        return training, [example for example in examples if _prompt_text(example.prompt) in held_out]

    def _formatted(self, example: Example) -> Example:
        if not self.chat or not isinstance(example.prompt, str):
            return example
        return replace(example, prompt=(Message(role="user", content=example.prompt),))


def read_rows(path: Path) -> Iterator[Example]:
    """The examples of a file; errors name the line, blank lines are skipped."""
    for number, line in files.lines(path):
        yield _example(line, number, f"{path}:{number}")


def _example(line: bytes, number: int, where: str) -> Example:
    row = files.json_object(line, where)
    if "prompt" not in row:
        raise UserError(f"{where} has no 'prompt' (it has: {', '.join(row) or 'nothing'})")
    prompt = files.prompt(row.pop("prompt"), where)
    answer = row.pop("answer", "")
    if not isinstance(answer, str):
        raise UserError(f"{where}: 'answer' must be a string, not {files.json_type(answer)}: put it in quotes")
    for name in RESERVED:
        if name in row:
            raise UserError(f"{where}: the column name '{name}' is reserved: rename it")
    return Example(id=f"row-{number}", prompt=prompt, answer=answer, columns=row)


def _prompt_text(prompt: str | tuple[Message, ...]) -> str:
    """The text that is hashed for the split; plain text and a conversation always differ."""
    return prompt if isinstance(prompt, str) else json.dumps([[m.role, m.content] for m in prompt])
