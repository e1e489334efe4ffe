"""Spelling a word backward. The words are made of syllables, so that there are as many as a run needs.

reward = 1                   if the answer is the reversed word, in any case
         0.2 · in place      otherwise: the share of letters in the right place, out of the longer text
"""

from dataclasses import dataclass

from whet.records import Example, Score
from whet.tasks.procedural import PARTIAL_WEIGHT, Procedural, share_in_place
from whet.tasks.puzzles.final_answer import final_answer
from whet.tasks.space import Problem, Space

ONSETS = ("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl", "ch", "sh", "gr")
VOWELS = ("a", "e", "i", "o", "u", "ea", "oo", "ai")
ENDS = ("", "n", "r", "s", "t", "l", "ck", "nd")
SHORTEST = 1  # syllables at level 1
AROUND = " \t\n.,;:!*_`\"'()[]<>"


@dataclass(frozen=True, kw_only=True)
class SpellBackward(Procedural):
    """Spelling of an invented word backward, of 1 (level 1) to 4 syllables (level 4)."""

    name = "spell_backward"
    highest_level = 4
    instruction = (
        "Spell this word backward (example: sun -> nus): {question}. Answer with the reversed word between <answer> "
        "and </answer>."
    )

    @property
    def _characters(self) -> str:
        return "abcdefghijklmnopqrstuvwxyz"

    @property
    def _space(self) -> Space:
        syllables = self.level + SHORTEST - 1
        return Space(sizes=((len(ONSETS) * len(VOWELS)) ** syllables * len(ENDS),), problem=self._problem)

    def _problem(self, kind: int, index: int) -> Problem:
        assert kind == 0
        index, end = divmod(index, len(ENDS))
        word = ""
        for _ in range(self.level + SHORTEST - 1):
            index, onset = divmod(index, len(ONSETS))
            index, vowel = divmod(index, len(VOWELS))
            word += ONSETS[onset] + VOWELS[vowel]
        word += ENDS[end]
        return Problem(question=word, answer=word[::-1], twin=min(word, word[::-1]))

    def _last(self, text: str) -> str:
        return final_answer(text).strip(AROUND).lower()

    def score(self, example: Example, text: str) -> Score:
        given = self._given(text)
        right, partial = float(given == example.answer), share_in_place(given, example.answer)
        return Score(reward=right or PARTIAL_WEIGHT * partial, parts={"correct": right, "partial": partial})
