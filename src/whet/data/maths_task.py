r"""Mathematical problems of a file, asked with an instruction and compared by the value of the final answer.

reward = correct + format_weight · format

correct = 1 if the final answer equals that of the row (docs/tasks/maths.md), else 0
format  = 1 if it is marked once, by \boxed{…}, an <answer> block or "####", else 0
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from whet.data.task import DataTask
from whet.errors import UserError
from whet.records import Example, Message, Score
from whet.tasks.matching import Matcher
from whet.tasks.maths.extraction import final_answer, is_marked_once

QUESTION = "{question}"
INSTRUCTION = r"Reason step by step, and put your final answer within \boxed{}."


@dataclass(frozen=True, kw_only=True)
class MathsTask(DataTask):
    """GSM8K, MATH-500, word problems, or any file with a problem and an answer per row."""

    usual_names: ClassVar[bool] = True
    match: str = "maths"  # how a completion gives the answer: maths, or another way of the task data
    chat: bool = True  # send a problem that is plain text as a user's message
    instruction: str = INSTRUCTION  # follows the problem; with {question} in it, it is a template around the problem
    last_number: bool = False  # of match: maths; the last number is the answer of a completion that marks none
    format_weight: float = 0.0  # of the part `format` of the reward: 1 for one marked final answer

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.format_weight <= 1:
            raise UserError(f"task maths: format_weight is {self.format_weight}, must be from 0 to 1")

    @property
    def name(self) -> str:
        return "maths"

    def score(self, example: Example, text: str) -> Score:
        parts = {"correct": float(self.correct(example, text) or False)}
        if self.format_weight:
            parts["format"] = float(is_marked_once(text))
        return Score(reward=parts["correct"] + self.format_weight * parts.get("format", 0.0), parts=parts)

    @cached_property
    def _matcher(self) -> Matcher:
        return Matcher(way=self.match, pattern=self.pattern, last_number=self.last_number)

    def _prepared(self, example: Example) -> Example:
        """With the instruction; an answer that is nothing but the answer is put in a box, to be a completion."""
        answer = example.answer
        if self.match == "maths" and final_answer(answer) is None and self._matcher.expected(answer) is not None:
            answer = f"\\boxed{{{answer.strip()}}}"
        return replace(example, prompt=self._asked(example.prompt), answer=answer)

    def _asked(self, prompt: str | tuple[Message, ...]) -> str | tuple[Message, ...]:
        if not self.instruction:
            return prompt
        if isinstance(prompt, str):
            return self._instructed(prompt)
        place = max((place for place, turn in enumerate(prompt) if turn.role == "user"), default=None)
        if place is None:
            return prompt
        turn = replace(prompt[place], content=self._instructed(prompt[place].content))
        return (*prompt[:place], turn, *prompt[place + 1 :])

    def _instructed(self, question: str) -> str:
        if QUESTION in self.instruction:
            return self.instruction.replace(QUESTION, question)
        return f"{question}\n{self.instruction}"
