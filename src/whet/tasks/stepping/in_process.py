"""Environments in this process: packaged ones, which do not hang, and objects that are passed from Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from whet.records import Example
from whet.tasks.protocol import Environment
from whet.tasks.stepping.replies import BadReply, Reply, begun, checked, stepped
from whet.user_code import happened, printing_to_log


class OwnEnvironments:
    """Environments made by `make`; what one raises ends its own conversation.

    Those that say that they wait for other processes (`waits`) are asked side by side.
    """

    is_instant = True

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._live: dict[int, Environment] = {}

    def begin(self, examples: Sequence[Example]) -> list[Reply]:
        self._live = {}
        with printing_to_log():
            return [_answer("reset", partial(self._begun, number, one)) for number, one in enumerate(examples)]

    def step(self, texts: Mapping[int, str]) -> dict[int, Reply]:
        calls = [partial(stepped, self._live[number], text) for number, text in texts.items()]
        with printing_to_log():
            if len(calls) > 1 and all(getattr(self._live[number], "waits", False) for number in texts):
                with ThreadPoolExecutor(os.cpu_count()) as threads:
                    replies = list(threads.map(partial(_answer, "step"), calls))
            else:
                replies = [_answer("step", call) for call in calls]
        return dict(zip(texts, replies, strict=True))

    def close(self) -> None:
        self._live = {}

    def _begun(self, number: int, example: Example) -> dict[str, Any]:
        self._live[number] = self._make()
        return begun(self._live[number], example)


def _answer(method: str, call: Callable[[], dict[str, Any]]) -> Reply:
    try:
        return checked(call())
    except BadReply as error:
        return Reply(failure=f"the environment: {error}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code
        return Reply(failure=f"the environment's {method} {happened(error)}")
