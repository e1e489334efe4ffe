"""IFEval: prompts with instructions that a program can check (Zhou et al. 2023).

    reward = share of the instructions that the response follows     (reward: share)
             1 if it follows all, else 0                             (reward: all)

A response is correct if it follows all instructions, strictly: this is IFEval's prompt-level strict accuracy. The parts
are `prompt_loose`, `followed`, `followed_loose` and `instructions` (numbers; instruction-level accuracy is their
quotient), and the share by family of instructions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from whet.errors import UserError
from whet.files.stored_rows import stored_rows
from whet.records import Example, Message, Score
from whet.tasks.instructions.instruction_checks import CHECKS, arguments_of, follows, follows_loosely
from whet.tasks.instructions.languages import knows, langdetect, language_by_words
from whet.tasks.space import HELD_OUT_SHARE
from whet.tasks.stored import Sides, StoredTask, split_examples

REWARDS = ("share", "all")
DETECTORS = ("words", "langdetect")
FAMILIES = tuple(dict.fromkeys(name.partition(":")[0] for name in CHECKS))


@dataclass(frozen=True, kw_only=True)
class IFEval(StoredTask):
    """Instruction following: rows with `prompt`, `instruction_id_list` and `kwargs`, as IFEval is published."""

    path: str  # a file, a folder of files, an http(s) address, or a data set on the hub
    reward: str = "share"  # of the instructions that are followed; or "all": 1 if all are
    loose: bool = False  # reward by the loose criterion: also without the first or last line, and without asterisks
    languages: str = "words"  # how languages are told: by script and common words; or by the package "langdetect"
    chat: bool = True  # format prompts as user messages
    held_out_share: float = HELD_OUT_SHARE  # of the prompts, by their hash; 1 to evaluate on all
    held_out_rows: int | None = None  # in place of a share
    limit: int | None = None  # read only the first rows
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate"

    def __post_init__(self) -> None:
        for key, value, known in (("reward", self.reward, REWARDS), ("languages", self.languages, DETECTORS)):
            if value not in known:
                raise UserError(f"task ifeval: {key} is {value!r}, must be one of {', '.join(known)}")

    @property
    def name(self) -> str:
        return "ifeval"

    def score(self, example: Example, text: str) -> Score:
        strict, loose = self._followed(example, text)
        by_family = {family: self._share(example, strict, family) for family in FAMILIES}
        counted = loose if self.loose else strict
        return Score(
            reward=float(all(counted)) if self.reward == "all" else sum(counted) / len(counted),
            parts={
                "prompt_loose": float(all(loose)),
                "followed": float(sum(strict)),
                "followed_loose": float(sum(loose)),
                "instructions": float(len(strict)),
                **{family: share for family, share in by_family.items() if share is not None},
            },
        )

    def correct(self, example: Example, text: str) -> bool:
        return all(self._followed(example, text)[0])

    @cached_property
    def _sides(self) -> Sides:
        examples: list[Example] = []
        for where, raw in islice(stored_rows(self.path), self.limit):
            if raw.problem:
                raise UserError(raw.problem)
            examples.append(self._example(raw.columns, where, len(examples)))
        if not examples:
            raise UserError(f"{self.path} has no rows")
        return split_examples(examples, [one.twin for one in examples], self.held_out_share, self.held_out_rows)

    def _example(self, row: Mapping[str, Any], where: str, number: int) -> Example:
        prompt, names, given = row.get("prompt"), row.get("instruction_id_list"), row.get("kwargs")
        if not isinstance(prompt, str) or not prompt or not isinstance(names, list) or not isinstance(given, list):
            raise UserError(f"{where} is no row of IFEval: it needs prompt, instruction_id_list and kwargs")
        if not names or len(names) != len(given) or not all(isinstance(one, dict) for one in given):
            raise UserError(f"{where} has {len(names)} instructions and {len(given)} kwargs: each needs its own")
        arguments = [arguments_of(str(name), one, where) for name, one in zip(names, given, strict=True)]
        unknown = next((one["language"] for one in arguments if not self._tells(one.get("language"))), None)
        if unknown is not None:
            raise UserError(
                f"{where} asks for the language {unknown!r:.20}, which is not told by words: install langdetect, and "
                "set task.languages=langdetect"
            )
        return Example(
            id=f"ifeval:{row.get('key', number)}",
            prompt=(Message(role="user", content=prompt),) if self.chat else prompt,
            answer="",
            columns={"instructions": [[str(name), one] for name, one in zip(names, arguments, strict=True)]},
            twin=prompt,
        )

    def _tells(self, language: str | None) -> bool:
        return language is None or self.languages == "langdetect" or knows(language)

    def _followed(self, example: Example, text: str) -> tuple[list[bool], list[bool]]:
        """For each instruction whether it is followed, strictly and loosely."""
        instructions = example.columns["instructions"]
        strict = [follows(text, name, given, self._detector) for name, given in instructions]
        loose = [
            found or follows_loosely(text, name, given, self._detector)
            for found, (name, given) in zip(strict, instructions, strict=True)
        ]
        return strict, loose

    @property
    def _detector(self) -> Callable[[str], str]:
        return langdetect() if self.languages == "langdetect" else language_by_words

    def _share(self, example: Example, followed: list[bool], family: str) -> float | None:
        """The share of a family's instructions that are followed; None if there are none of it."""
        found = [
            one
            for one, (name, _) in zip(followed, example.columns["instructions"], strict=True)
            if name.partition(":")[0] == family
        ]
        return sum(found) / len(found) if found else None
