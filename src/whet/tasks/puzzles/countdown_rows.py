"""Countdown from a file: rows with `nums`, `target` and, if there is one, a `solution`; graded as in `countdown`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from whet.errors import UserError
from whet.files.stored_rows import stored_rows
from whet.records import Example, Message, Score
from whet.tasks.puzzles.countdown import INSTRUCTION, countdown_score, grade, spelled
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.space import HELD_OUT_SHARE
from whet.tasks.stored import Sides, StoredTask, split_examples


@dataclass(frozen=True, kw_only=True)
class CountdownRows(StoredTask):
    """Countdown problems of a file: rows with `nums`, `target` and, if there is one, a `solution`."""

    path: str  # a file, a folder of files, an http(s) address, or a data set on the hub
    chat: bool = False  # ask in words, and grade the last <answer> block
    held_out_share: float = HELD_OUT_SHARE  # of the sets of numbers, by their hash
    held_out_rows: int | None = None  # in place of a share
    limit: int | None = None  # read only the first rows
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate"

    @property
    def name(self) -> str:
        return "countdown_rows"

    def score(self, example: Example, text: str) -> Score:
        return countdown_score(self._given(text), str(example.columns["question"]))

    def correct(self, example: Example, text: str) -> bool:
        return self.score(example, text).parts["correct"] == 1

    @cached_property
    def _sides(self) -> Sides:
        found: dict[str, Example] = {}
        for where, raw in islice(stored_rows(self.path), self.limit):
            if raw.problem:
                raise UserError(raw.problem)
            example = self._example(raw.columns, where)
            found.setdefault(example.id, example)  # the same problem twice is asked once
        if not found:
            raise UserError(f"{self.path} has no rows")
        examples = list(found.values())
        return split_examples(examples, [one.twin for one in examples], self.held_out_share, self.held_out_rows)

    def _example(self, row: Mapping[str, Any], where: str) -> Example:
        numbers, target, solution = row.get("nums"), row.get("target"), row.get("solution") or ""
        whole = isinstance(numbers, list) and len(numbers) > 1 and all(_is_whole(one) for one in (*numbers, target))
        if not whole or not isinstance(solution, str):
            raise UserError(f"{where} is no countdown problem: it needs nums (whole numbers above 0) and a target")
        assert isinstance(numbers, list)
        if solution and not grade(solution, numbers, int(str(target)))[1]:
            raise UserError(f"{where}: the solution {solution!r:.80} does not make {target} of {numbers}: correct it")
        question = f"{','.join(map(str, numbers))}:{target}"
        request = INSTRUCTION.format(question=spelled(question))
        return Example(
            id=f"countdown:{question}",
            prompt=(Message(role="user", content=request),) if self.chat else f"{question}>",
            answer=f"<answer>{solution}</answer>" if self.chat and solution else solution.replace(" ", ""),
            columns={"question": question},
            twin=",".join(map(str, sorted(numbers))),
        )

    def _given(self, text: str) -> str:
        return final_answer(text) if self.chat else text.strip()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
