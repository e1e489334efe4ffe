"""One generator of reasoning-gym as a source of problems: training and held-out ones, and their scores."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import count as integers
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from whet.errors import UserError, nearest
from whet.imports import optional_package
from whet.limited_process import LimitedProcess, ProcessEnded
from whet.tasks.gym import scorer_worker
from whet.tasks.space import fingerprint, is_held_out, permutation

REMEDY = "pip install 'whet[reasoning-gym]'"
HELD_OUT_PART = 10  # every tenth problem may be held out
HELD_OUT_HALF = 0.5  # of the questions: a generator of few questions keeps the others for training
SECONDS = 2.0  # CPU time for one score
_WORKER = LimitedProcess(Path(scorer_worker.__file__))


class Posed(NamedTuple):
    """A problem without its metadata."""

    question: str
    answer: str  # scores full marks; empty if the generator has none


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A generator with its options; problem number i is made from (options, seed, i)."""

    name: str
    config: Mapping[str, Any]
    level: int  # of its curriculum, for all attributes, from 1 on; 0: its default options
    levels: Mapping[str, int]  # of single attributes of its curriculum, from 1 on
    size: int  # number of problems
    seed: int
    held_out_examples: int

    @property
    def source(self) -> dict[str, Any]:
        """As JSON, for examples and for the process that scores."""
        names = ("name", "config", "level", "levels", "size", "seed")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def label(self) -> str:
        """Names the generator with its options in ids."""
        return f"{self.name}:{fingerprint(json.dumps(self.source, sort_keys=True)):016x}"

    def require_values(self) -> None:
        """Refuses values of options that the generator refuses."""
        self._ask({})

    @cached_property
    def _posed(self) -> dict[int, Posed]:
        return {}

    def posed(self, index: int) -> Posed:
        """Problem number `index`; made once."""
        if index not in self._posed:
            self._posed[index] = Posed(**self._ask({"index": index}))
        return self._posed[index]

    def training(self, count: int, seed: tuple[int, ...]) -> list[int]:
        """`count` training problems; none repeats before all have been drawn."""
        return list(islice(self._laps(seed), count))

    @cached_property
    def held_out(self) -> list[int]:
        """The evaluation problems: different questions, none of which is trained on."""
        found: dict[str, int] = {}
        for index in permutation(self._reserved, fingerprint("held out")):
            question = self.posed(index).question
            if is_held_out(question, HELD_OUT_HALF):
                found.setdefault(question, index)
            if len(found) == self.held_out_examples:
                break
        if not found:
            raise UserError(f"{self._what} has too few different questions to hold one out: change its options")
        return list(found.values())

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply = _WORKER.ask({"source": self.source, **what})
        except (TimeoutError, ProcessEnded) as error:
            raise UserError(f"{self._what} makes no problem of these options: its process {error}") from error
        if "failed" in reply:
            raise UserError(f"{self._what} refuses its options: {reply['failed']}")
        return reply

    @property
    def _reserved(self) -> int:
        return max(1, self.size // HELD_OUT_PART)

    @property
    def _what(self) -> str:
        return f"task reasoning_gym: the generator {self.name}"

    def _laps(self, seed: tuple[int, ...]) -> Iterator[int]:
        asked = {self.posed(index).question for index in self.held_out}
        for lap in integers():
            is_empty = True
            for place in permutation(self.size - self._reserved, fingerprint("training", lap, *seed)):
                index = self._reserved + place
                if self.posed(index).question not in asked:
                    is_empty = False
                    yield index
            if is_empty:
                raise UserError(f"{self._what} has no question that is not held out: lower held_out_examples")


def check_source(source: Mapping[str, Any]) -> None:
    """Refuses an unknown generator and options that it does not take, and says what it takes."""
    factory = optional_package("reasoning_gym.factory", "task reasoning_gym", remedy=REMEDY)
    name = source["name"]
    known = [one for one in factory.DATASETS if one != "composite"]
    if name not in known:
        hint = " (several generators: datasets)" if name == "composite" else nearest(str(name), known)
        raise UserError(f"task reasoning_gym: there is no generator {name!r}{hint} (it has {len(known)})")
    what = f"task reasoning_gym: the generator {name}"
    accepted = [one.name for one in fields(factory.DATASETS[name][1])]
    for key in source["config"]:
        if key in ("size", "seed"):
            raise UserError(f"{what}: {key} is an option of the task, not of config: set task.{key}")
        if key not in accepted:
            raise UserError(f"{what} has no option {key!r}{nearest(key, accepted)} (options: {', '.join(accepted)})")
    if source["level"] or source["levels"]:
        _check_levels(what, factory, source)


def _check_levels(what: str, factory: Any, source: Mapping[str, Any]) -> None:
    if not factory.has_curriculum(source["name"]):
        raise UserError(f"{what} has no curriculum: leave level out and set its options (config)")
    attributes = factory.create_curriculum(source["name"]).attributes
    most = highest_level(source["name"])
    if not 0 <= source["level"] <= most:
        raise UserError(f"{what}: level is {source['level']}, must be between 1 and {most} (0: its default options)")
    for name, level in source["levels"].items():
        if name not in attributes:
            raise UserError(
                f"{what} has no level of {name!r}{nearest(name, attributes)} (it has {', '.join(attributes)})"
            )
        if type(level) is not int or not 1 <= level <= len(attributes[name].levels):
            raise UserError(f"{what}: the level of {name} is {level!r}, must be 1 to {len(attributes[name].levels)}")


def highest_level(name: str) -> int:
    """The last level of a generator's curriculum; 0 if it has none."""
    factory = optional_package("reasoning_gym.factory", "task reasoning_gym", remedy=REMEDY)
    if not factory.has_curriculum(name):
        return 0
    return max((len(one.levels) for one in factory.create_curriculum(name).attributes.values()), default=0)


def scored(source: Mapping[str, Any], index: int, answer: str) -> float | None:
    """The score from 0 to 1, by the library's own scorer in a process with limits; None if it raised or hung."""
    return _scored(json.dumps(source, sort_keys=True), index, answer)


@lru_cache(maxsize=4096)
def _scored(source: str, index: int, answer: str) -> float | None:
    """Cached, because an evaluation asks for reward and correctness of one answer."""
    try:
        question = {"source": json.loads(source), "index": index, "answer": answer, "seconds": SECONDS}
        reply = _WORKER.ask(question)
    except (TimeoutError, ProcessEnded):
        return None
    score = reply.get("score")
    return None if score is None else float(score)
