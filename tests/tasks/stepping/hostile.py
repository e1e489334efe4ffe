"""A task whose environments misbehave as their example says; it is loaded by name in worker processes."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from whet.records import Example, Score

DEEDS = (
    *("good", "raises", "hangs", "exits", "sys-exit", "megabytes", "bytes", "surrogate", "nan", "not-done", "two"),
    *("prints", "infinite", "no-text"),
)
TURN = 3  # in which it happens


def example(deed: str, number: int = 0) -> Example:
    return Example(id=f"{deed}-{number}", prompt=f"{number}>", answer="ok", columns={"deed": deed})


class Hostile:
    """Echoes what it is told until turn 5, unless the example says otherwise."""

    name = "hostile"

    def draw(self, count: int, *, seed: tuple[int, ...]) -> list[Example]:
        return [example(DEEDS[number % len(DEEDS)], number) for number in range(count)]

    def held_out(self, count: int) -> list[Example]:
        return [example("good", 10**6 + number) for number in range(count)]

    def score(self, example: Example, text: str) -> Score:
        return Score(reward=float(text == "ok"), parts={})

    def correct(self, example: Example, text: str) -> bool:
        return text == example.answer

    def environment(self) -> "Echo":
        return Echo()


class Echo:
    def __init__(self) -> None:
        self.turns, self.deed, self.heard = 0, "", list[str]()

    def reset(self, example: Example) -> str:
        self.turns, self.deed, self.heard = 0, str(example.columns["deed"]), []
        return ""

    def step(self, text: str) -> Any:
        self.turns += 1
        self.heard.append(text)
        if self.turns == TURN and self.deed != "good":
            return self._misbehave()
        return "+".join(self.heard), 0.5, self.turns == 5

    def outcome(self) -> str:
        return "ok" if self.turns == 5 else ""

    def _misbehave(self) -> Any:  # noqa: C901, PLR0911, PLR0912 - one branch for each deed
        match self.deed:
            case "raises":
                raise KeyError("lost")
            case "hangs":
                time.sleep(10**6)
            case "exits":
                os._exit(7)
            case "sys-exit":
                sys.exit(3)
            case "megabytes":
                return "x" * 2**20, 0.0, False
            case "bytes":
                return b"\xff\xfe", 0.0, False
            case "surrogate":
                return b"\xff\xfe".decode("utf-8", "surrogateescape"), 0.0, False
            case "nan":
                return "", float("nan"), False
            case "infinite":
                return "", float("inf"), False
            case "not-done":
                return "", 0.0, "maybe"
            case "two":
                return "", 0.0
            case "no-text":
                return None, 0.0, False
            case "prints":
                print('{"number": 0, "reply": {}}', flush=True)
                os.write(2, b"to standard error\n")
                return "fine", 0.0, True
        raise AssertionError(self.deed)


class Forgetful(Hostile):
    """Its answers depend on the process: it cannot be played anew."""

    def environment(self) -> "Echo":
        return Counting()


class Counting(Echo):
    def step(self, text: str) -> Any:
        observation, reward, done = super().step(text)
        return f"{observation} {os.getpid()}", reward, done


TEXTS: Sequence[str] = ("a", "b", "c", "d", "e")
