"""A text as a task: the prompt is a window of it, the answer the text that follows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whet.data.corpus.documents import CorpusSource
from whet.data.corpus.text_store import TextStore, text_store
from whet.errors import UserError
from whet.records import Example, Score
from whet.tasks.space import HELD_OUT_SHARE, WORD, fingerprint

GOLDEN = (5**0.5 - 1) / 2  # multiples of the golden ratio fill the largest gap
WINDOWS = ("characters", "words")


@dataclass(frozen=True, kw_only=True)
class CorpusTask:
    """Windows of a text, to be continued: for language modelling, and for RL with a reward at every token.

    Of several documents each window lies within one. An answer that reaches the end of its document ends there: the
    token that ends a document in language modelling is no part of it, so that it is neither real nor wrong. A document
    that is shorter than a window gives up to its second half to the answer; one of a single character has no window.
    """

    path: str  # tiny-shakespeare, python-stdlib, a file, a folder, an address, or a data set of the hub
    column: str = "text"  # of rows: the column that holds the text
    split: str = "train"  # of a data set of the hub
    subset: str = ""  # of a data set of the hub
    limit: int | None = None  # use the first documents only
    held_out_share: float = HELD_OUT_SHARE  # the last part of the text
    prompt_characters: int = 32  # of real text before what is to be continued
    shortest_prompt: int | None = None  # training prompts have from so many characters on; null: all have as many
    answer_characters: int = 64  # of the real text after it
    windows: str = "characters"  # where a prompt may begin and end: anywhere, or between words (for BPE)
    documents: str = "joined"  # tokens attend over ends of documents, or "separate": within one; also held out
    eval_windows: int = 0  # held-out windows whose loss is measured, evenly spread; 0: all

    def __post_init__(self) -> None:
        for key, allowed in (("windows", WINDOWS), ("documents", ("joined", "separate"))):
            if getattr(self, key) not in allowed:
                raise UserError(f"task corpus: {key} is {getattr(self, key)!r}, must be {' or '.join(allowed)}")
        for key in ("prompt_characters", "answer_characters"):
            if getattr(self, key) < 1:
                raise UserError(f"task corpus: {key} is {getattr(self, key)}, must be 1 or more")
        if self.shortest_prompt is not None and not 1 <= self.shortest_prompt <= self.prompt_characters:
            raise UserError(
                f"task corpus: shortest_prompt is {self.shortest_prompt}, must be between 1 and prompt_characters"
            )
        if not 0 < self.held_out_share < 1:
            raise UserError(f"task corpus: held_out_share is {self.held_out_share}, must be between 0 and 1")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"task corpus: limit is {self.limit}, must be 1 or more")

    @property
    def name(self) -> str:
        return "corpus"

    @property
    def source(self) -> CorpusSource:
        return CorpusSource(path=self.path, column=self.column, split=self.split, subset=self.subset, limit=self.limit)

    @cached_property
    def _stored(self) -> TextStore:
        return text_store(self.source, held_out_share=self.held_out_share)

    @cached_property
    def text(self) -> TextStore:
        """The whole text, if it has windows."""
        store = self._stored
        shortest = min(store.split, store.size - store.split)
        needed = 4 * (self.prompt_characters + self.answer_characters)
        if shortest < needed:
            whole = f" (whole ones of its {store.documents:,} documents)" if store.documents > 1 else ""
            raise UserError(
                f"{self.path} has {store.split:,} bytes of training and {store.size - store.split:,} of held-out text"
                f"{whole}, too few for its windows, which need {needed:,} on each side: add text, raise "
                "task.held_out_share, or lower task.prompt_characters and task.answer_characters"
            )
        return store

    @property
    def alphabet(self) -> str:
        return self._stored.alphabet

    def training_text(self) -> Iterator[str]:
        """The training text, chunk by chunk."""
        return self._stored.chunks(0, self._stored.split)

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        side, drawn = (0, self.text.split), [fingerprint("corpus", *seed, number) for number in range(count)]
        return [self._example(one / WORD, side, self._length(one)) for one in drawn]

    def held_out(self, count: int) -> list[Example]:
        """Windows that are spread over the held-out text: each in the largest gap that those before it leave."""
        side = (self.text.split, self.text.size)
        most = max(1, (side[1] - side[0]) // (4 * (self.prompt_characters + self.answer_characters)))
        count = min(count, most)
        found = (self._example(number * GOLDEN % 1, side, self.prompt_characters) for number in range(count))
        return list({example.id: example for example in found}.values())  # a short document has one window

    def score(self, example: Example, text: str) -> Score:
        """The share of characters that are those of the text at the same place."""
        longest = max(len(example.answer), len(text))
        matched = sum(a == b for a, b in zip(example.answer, text, strict=False)) / max(1, longest)
        return Score(reward=matched, parts={"matched": matched})

    def correct(self, example: Example, text: str) -> bool | None:  # noqa: ARG002
        """None: a text can go on in many ways. Held-out text is measured by its likelihood instead."""
        return None

    def _length(self, drawn: int) -> int:
        """The length of a training prompt: a model with learned positions has to practise all of them."""
        if self.shortest_prompt is None:
            return self.prompt_characters
        spread = self.prompt_characters - self.shortest_prompt + 1
        return self.shortest_prompt + fingerprint("length", drawn) % spread

    def _example(self, where: float, side: tuple[int, int], characters: int) -> Example:
        """The window that begins at this fraction of one side of the text, or of one of its documents."""
        at_word = self.windows == "words"
        room = 4 * (self.prompt_characters + self.answer_characters)  # bytes: a character has at most four
        if self.text.documents > 1:
            where, side = self._document(where, side)
            characters, room = self._within(side, characters)
        begin, end = side
        place = begin + int(where * max(1, end - begin - room))
        prompt, place = self.text.text_at(place, characters, side=side, at_word=at_word)
        if at_word:
            prompt = self._whole_words(prompt)
        after = place + len(prompt.encode())
        answer, _ = self.text.text_at(after, self.answer_characters, side=(after, end), at_word=False)
        if not answer:  # a word that runs to the end of the text
            prompt, place = self.text.text_at(begin, characters, side=side, at_word=False)
            after = place + len(prompt.encode())
            answer, _ = self.text.text_at(after, self.answer_characters, side=(after, end), at_word=False)
        return Example(id=f"byte {place}", prompt=prompt, answer=answer)

    def _document(self, where: float, side: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        """The document at this fraction of a side, or the next one that has two characters; and the fraction of it."""
        begin, end = side
        first, last = np.searchsorted(self.text.starts, [begin, end]).tolist()
        place = begin + where * (end - begin)
        chosen = int(np.searchsorted(self.text.starts, place, side="right")) - 1
        for number in (*range(chosen, last), *range(first, chosen)):
            start, after = (
                int(self.text.starts[number]),
                int(self.text.starts[number + 1]) if number + 1 < last else end,
            )
            if len(self.text.text_at(start, 2, side=(start, after), at_word=False)[0]) == 2:
                return (place - start) / (after - start) if number == chosen else 0.0, (start, after)
        raise UserError(
            f"{self.path} has no document of two characters on one side, and a window has a prompt and an answer: "
            "add text"
        )

    def _within(self, document: tuple[int, int], characters: int) -> tuple[int, int]:
        """The characters of a prompt in this document, and the bytes after the first one of its last window."""
        begin, end = document
        window = self.prompt_characters + self.answer_characters
        tail = self.text.data[max(begin, end - 4 * window) : end].decode("utf-8", errors="ignore")[-window:]
        answer = min(self.answer_characters, (len(tail) + 1) // 2)
        return min(characters, len(tail) - answer), len(tail.encode()) - 1

    @staticmethod
    def _whole_words(prompt: str) -> str:
        """The prompt without the beginning of a word at its end; one word alone stays as it is."""
        for place in range(len(prompt) - 1, 0, -1):
            if prompt[place].isspace() and not prompt[place - 1].isspace():
                return prompt[:place]
        return prompt
