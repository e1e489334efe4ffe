"""NYT Connections: sort sixteen words into four groups of four. The puzzles come from a file of the published shape,
or are the invented ones of `invented`.

    reward = 0.8 · right groups / groups + 0.2 · pairs found / pairs

A group is right if it has the four words of a group of the solution. `pairs` are the pairs of words that the solution
puts together and the answer too. An answer with a word twice, a word of its own, a group of another size or more groups
than the puzzle has scores 0; one with fewer groups earns what they are worth, so only all groups score 1.

Two puzzles with three words of a group in common are one leakage group: no group of the held-out puzzles is trained on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from typing import Any

from whet.errors import UserError
from whet.files.stored_rows import stored_rows
from whet.records import Example, Message, Score
from whet.tasks.maths.extraction import answer_block
from whet.tasks.puzzles.invented import invented_puzzles
from whet.tasks.space import HELD_OUT_SHARE, fingerprint, leakage_groups
from whet.tasks.stored import Sides, StoredTask, split_examples

SIZE = 4  # words of a group
GROUPS = 4  # groups of a puzzle
RIGHT, PAIRS = 0.8, 0.2
LEAKED = 3  # words of a group that two puzzles may not share across the split
TAG = re.compile(r"<group>(.*?)</group>", re.DOTALL | re.IGNORECASE)
BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.):]|group \d{1,2}:)\s+", re.IGNORECASE)
AROUND = " \t.*_`\"'()[]"  # characters around a word that do not belong to it
COMMA = "\0"  # in place of one inside a word
INSTRUCTION = (
    "Sort these {count} words into {groups} groups of four that belong together: {words}. Every word is in exactly one "
    "group. Answer with one line for each group, its four words separated by commas, between <answer> and </answer>."
)

Group = frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Connections(StoredTask):
    """NYT Connections from a file or address: rows with `answers`, each with `group` and four `members`."""

    path: str = ""  # of puzzles [{"id", "answers": [{"group", "members"}]}]; empty: 280 invented puzzles of short words
    groups: int = GROUPS  # 2 … 4: use only the first groups of each puzzle
    chat: bool = False  # ask in words, and grade the last <answer> block
    held_out_share: float = HELD_OUT_SHARE  # of the leakage groups of puzzles, by their hash
    held_out_rows: int | None = None  # in place of a share
    limit: int | None = None  # read only the first puzzles
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate"

    def __post_init__(self) -> None:
        if not 2 <= self.groups <= GROUPS:
            raise UserError(f"task {self.name}: groups is {self.groups}, must be between 2 and {GROUPS}")

    @property
    def name(self) -> str:
        return "connections"

    @cached_property
    def alphabet(self) -> str:
        texts = [text for side in self._sides for one in side for text in (_shown(one.prompt), one.answer)]
        return "".join(sorted(set().union(*texts)))

    def score(self, example: Example, text: str) -> Score:
        solution = [frozenset(members) for members in example.columns["groups"]]
        submitted = self._submitted(text, frozenset().union(*solution))
        right = sum(group in solution for group in submitted) / len(solution)
        together = sum(len(_pairs(group, solution)) for group in submitted)
        pairs = together / (len(solution) * SIZE * (SIZE - 1) // 2)
        return Score(
            reward=RIGHT * right + PAIRS * pairs, parts={"correct": float(right == 1), "groups": right, "pairs": pairs}
        )

    def correct(self, example: Example, text: str) -> bool:
        return self.score(example, text).parts["correct"] == 1

    def wrong_play(self, example: Example, *, seed: int) -> list[str]:
        """One right group by itself or four times, one with the others mixed, all but one, all mixed, all in one."""
        groups = example.columns["groups"]
        place = fingerprint("right", seed, example.id) % len(groups)
        right, others = groups[place], [group for group in groups if group is not groups[place]]
        plays = [[right], [right] * len(groups), others, _mixed(groups), [[word for group in groups for word in group]]]
        if len(others) > 1:
            plays.append([right, *_mixed(others)])
        return [self.written(play) for play in plays]

    @cached_property
    def _sides(self) -> Sides:
        puzzles = list(islice(self._puzzles() if self.path else invented_puzzles(self.groups), self.limit))
        if not puzzles:
            raise UserError(f"{self.path} has no puzzles")
        twins = puzzle_groups([groups for _, groups in puzzles])
        examples = [self._example(name, groups, twin) for (name, groups), twin in zip(puzzles, twins, strict=True)]
        return split_examples(examples, twins, self.held_out_share, self.held_out_rows)

    def _puzzles(self) -> Iterator[tuple[str, list[list[str]]]]:
        """The id and the groups of each puzzle; one whose words are not all different has no single solution."""
        for where, raw in stored_rows(self.path):
            if raw.problem:
                raise UserError(raw.problem)
            groups = _groups(raw.columns, where)[: self.groups]
            if len({word for group in groups for word in group}) == len(groups) * SIZE:
                yield str(raw.columns.get("id", raw.line)), groups

    def _example(self, name: str, groups: Sequence[Sequence[str]], twin: str) -> Example:
        words = sorted((word for group in groups for word in group), key=lambda word: fingerprint(name, word))
        request = self._asked(words)
        return Example(
            id=f"{self.name}:{name}",
            prompt=(Message(role="user", content=request),) if self.chat else f"{','.join(words)}>",
            answer=self.written(groups),
            columns={"groups": [list(group) for group in groups]},
            twin=twin,
        )

    def _asked(self, words: Sequence[str]) -> str:
        """The question in words."""
        return INSTRUCTION.format(count=len(words), groups=self.groups, words=", ".join(words))

    def written(self, groups: Sequence[Sequence[str]]) -> str:
        """The groups as an answer."""
        separator, end = (", ", "\n") if self.chat else (",", ";")
        return end.join(separator.join(group) for group in groups)

    def _submitted(self, text: str, words: Group) -> list[Group]:
        """The groups of an answer; none if it breaks a rule."""
        block = answer_block(text) if self.chat else None
        answer = text if block is None else block
        lines = TAG.findall(answer) or re.split(r"[\n;]" if not self.chat else r"\n", answer.strip())
        groups = [listed_words(line, words) for line in lines if line.strip()]
        every = [word for group in groups for word in group]
        is_legal = len(groups) <= self.groups and all(len(group) == SIZE for group in groups)
        return [frozenset(group) for group in groups] if is_legal and len(set(every)) == len(every) else []


def _mixed(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same words in other groups: each passes its first word on to the next."""
    return [[before[0], *group[1:]] for before, group in zip([groups[-1], *groups[:-1]], groups, strict=True)]


def _shown(prompt: str | tuple[Message, ...]) -> str:
    return prompt if isinstance(prompt, str) else "".join(message.content for message in prompt)


def puzzle_groups(puzzles: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """For each puzzle the name of its leakage group: those that share words of a group, directly or through others."""
    return leakage_groups([[some for group in one for some in combinations(sorted(group), LEAKED)] for one in puzzles])


def _groups(row: Mapping[str, Any], where: str) -> list[list[str]]:
    try:
        groups = [[_normal(str(word)) for word in answer["members"]] for answer in row["answers"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{where} is no puzzle: it needs answers, each with four members") from error
    if [len(group) for group in groups] != [SIZE] * GROUPS:
        sizes = ", ".join(str(len(group)) for group in groups) or "no"
        raise UserError(f"{where} has groups of {sizes} words: a puzzle has four groups of four")
    return groups


def listed_words(line: str, words: Group) -> list[str]:
    """The words of the puzzle that a line lists between commas; none if it holds anything else."""
    text = _normal(BULLET.sub("", line, count=1))
    inside = {word.replace(",", COMMA): word for word in words if "," in word}
    for hidden, word in inside.items():
        text = text.replace(word, hidden)
    found = [part if part in words else part.strip(AROUND) for part in map(str.strip, text.split(","))]
    listed = [inside.get(word, word) for word in found]
    return listed if all(word in words for word in listed) else []


def _pairs(group: Group, solution: Sequence[Group]) -> list[tuple[str, str]]:
    return [pair for pair in combinations(sorted(group), 2) if any(set(pair) <= right for right in solution)]


def _normal(word: str) -> str:
    return " ".join(word.upper().split())
