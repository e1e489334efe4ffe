"""The prompts of a data set as a task; the reward comes from reward functions, or from a match with the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

from whet.data.formats import answers_of, prompt_key
from whet.data.sources import Loaded, Placed, Source, load_rows
from whet.data.split import first_places, repeated, salt_of, split_places
from whet.errors import UserError, nearest
from whet.files.disk_rows import changed, picked
from whet.files.mapping import Settings, mapping_text, suggestion
from whet.records import Example, Score
from whet.tasks.matching import Matcher
from whet.tasks.space import HELD_OUT_SHARE
from whet.tasks.stored import Sides, StoredTask

OF_A_SET = ("path", "format", "columns", "split", "subset", "limit", "weight")


@dataclass(frozen=True, kw_only=True)
class DataTask(StoredTask):
    """Prompts of files or data sets, scored by a match with their answers, or by reward functions alone."""

    usual_names: ClassVar[bool] = False  # read a prompt and an answer by their usual names where no format fits
    repeats: ClassVar[bool] = False  # whether several rows may have the same prompt; else the first is used
    path: str = ""  # as data.path
    sets: Sequence[Any] = ()  # several in place of one: each a path, or a mapping of its keys (`OF_A_SET`)
    format: str = "auto"  # as data.format
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)  # as data.columns
    split: str = "train"  # of a dataset on the hub
    subset: str = ""  # of a dataset on the hub
    chat: bool = False  # send a prompt that is plain text as a user's message
    match: str = ""  # how a completion gives the answer: exact, number, boxed, choice, regex, maths; empty: it does not
    pattern: str = ""  # of match: regex
    held_out_share: float = HELD_OUT_SHARE  # of the conversations, chosen by their hash
    held_out_rows: int | None = None  # in place of a share
    max_skipped: float = 0.01  # share of broken rows above which reading is refused
    limit: int | None = None  # read only the first rows
    streaming: bool = False  # keep the rows in a temporary file instead of in memory
    max_prompt_tokens: int | None = None  # None: what leaves room for a token in the model's context
    overlong_prompts: str = "filter"  # leave longer prompts out; or "truncate": the oldest turns and tokens go first

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.sets):
            raise UserError(f"task {self.name} needs the option 'path', or 'sets' for several of them")
        _ = self._matcher

    @property
    def name(self) -> str:
        return "data"

    def score(self, example: Example, text: str) -> Score:
        if self._matcher is None:
            return Score(reward=0.0, parts={})
        right = float(self.correct(example, text) or False)
        return Score(reward=right, parts={"correct": right})

    def correct(self, example: Example, text: str) -> bool | None:
        """None without `match`, or where the row has no answer."""
        if self._matcher is None or example.answer == "":
            return None
        return self._matcher.is_right(example.answer, text)

    def vote(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """The answer that a completion gives, for a majority vote."""
        return None if self._matcher is None else self._matcher.vote(text)

    @cached_property
    def _matcher(self) -> Matcher | None:
        if self.pattern and not self.match:
            raise UserError(f"task {self.name}: pattern is for match=regex: set match, or leave the pattern out")
        return Matcher(way=self.match, pattern=self.pattern) if self.match else None

    @cached_property
    def _sides(self) -> Sides:
        sources = self._sources()
        loaded = load_rows(*sources)
        paths = [source.path for source in sources]
        sides = split_places(
            loaded.rows,
            self.held_out_share,
            held_out_rows=self.held_out_rows,
            salt=salt_of(*paths),
            of=" and ".join(paths),
        )
        examples = changed(loaded.placed, lambda placed: self._prepared(_example(placed)))
        training, evaluation = (
            self._matchable(self._distinct(picked(examples, places)), loaded, side)
            for places, side in zip(sides, ("training", "held-out"), strict=True)
        )
        return repeated(training, loaded.weights), evaluation

    def _distinct(self, examples: Sequence[Example]) -> Sequence[Example]:
        return examples if self.repeats else _first_of_prompts(examples)

    def _prepared(self, example: Example) -> Example:
        """An example of the rows as it is asked and answered in this task."""
        return example

    def _sources(self) -> list[Source]:
        shared: dict[str, Any] = {"chat": self.chat, "max_skipped": self.max_skipped, "as_prompts": True}
        shared |= {"streaming": self.streaming, "usual_names": self.usual_names}
        shared |= {"duplicates": "keep" if self.repeats else "drop"}
        if not self.sets:
            own = {one.name: getattr(self, one.name) for one in fields(self) if one.name in OF_A_SET}
            return [Source(**own, **shared, settings=self._settings)]
        return sources_of(self.sets, shared)

    @property
    def _settings(self) -> Settings:
        """Where its options are written: `data.columns` is short for `task.columns` of the task `data`."""
        return "data" if self.name == "data" else "task"

    def _matchable(self, examples: Sequence[Example], loaded: Loaded, side: str) -> Sequence[Example]:
        """The examples with an answer that completions can be compared with."""
        matcher = self._matcher
        if matcher is None:
            return examples
        is_usable = bytes(matcher.expected(example.answer) is not None for example in examples)
        missing = is_usable.count(0)
        if missing <= self.max_skipped * len(examples):
            return picked(examples, compress(range(len(examples)), is_usable)) if missing else examples
        first = examples[is_usable.index(0)]
        problem = f"{missing} of {len(examples)} {side} prompts have no answer for match={self.match}"
        seen = f"the answer of {first.id} is {first.answer!r:.40}; repair the rows, or raise max_skipped to do without"
        if "answer" not in loaded.names and not any(example.answer for example in examples):
            settings: Settings = "set" if self.sets else self._settings
            write = suggestion(loaded.names, "answer", settings=settings) or mapping_text({"answer": "…"}, settings)
            seen = f"no column is called answer, the columns are {', '.join(loaded.names)}: write {write}"
        raise UserError(f"{self.path or f'task {self.name}'}: {problem}: {seen}")


def sources_of(sets: Sequence[Any], shared: Mapping[str, Any]) -> list[Source]:
    """The sources of several sets, each a path or a mapping, with options that they share."""
    found = []
    for one in sets:
        own = {"path": one} if isinstance(one, str) else one
        if not isinstance(own, Mapping) or not isinstance(own.get("path"), str):
            raise UserError(f"data: {one!r:.60} is not a set: write a path, or path with {', '.join(OF_A_SET[1:])}")
        for key in own:
            if key not in OF_A_SET:
                raise UserError(f"data: a set has no key {key!r}{nearest(key, OF_A_SET)} (keys: {', '.join(OF_A_SET)})")
        found.append(Source(**own, **shared, settings="set"))
    return found


def _example(placed: Placed) -> Example:
    """The prompt of a row; its answer is the first completion."""
    row = placed.record
    answer = next(iter(answers_of(row)), "")
    return Example(id=row.id, prompt=row.prompt, answer=answer, twin=row.twin, columns=placed.columns)


def _first_of_prompts(examples: Sequence[Example]) -> Sequence[Example]:
    """The first example of each prompt."""
    earliest = first_places(prompt_key(example) for example in examples)
    is_first = bytes(place == first for place, first in enumerate(earliest))
    return picked(examples, compress(range(len(examples)), is_first)) if 0 in is_first else examples
