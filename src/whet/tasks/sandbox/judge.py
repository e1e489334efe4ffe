"""The process that tests a program: the tests run here, and the program in another process, behind `Remote` objects.

A test such as `assert f(3) == [1, 2]` sends the call, gets a value of exact built-in types and compares it here, so the
program sees neither tests nor expected values, and no code of its own takes part in a comparison.
"""

import builtins
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from whet.tasks.sandbox.values import Garbled, packed, receive, send, unpacked

LONGEST_ERROR = 500  # characters
LONGEST_TEXT = 20_000  # of a text that is asked for


class ProgramEnded(BaseException):
    """The program is gone, late, or sent no value. Not an Exception: no `except Exception` of a test may catch it."""


class ProgramError(Exception):
    """The program raised an exception of its own, or one that is no Exception, like SystemExit."""


class Link:
    """Requests to the process of the program; after one that fails there are no more."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._number = 0
        self._objects: dict[int, Remote] = {}
        self.ended = ""  # why, once it has
        self.is_late = False

    def load(self, program: str) -> None:
        self._exchange({"program": program})

    def ask(self, do: str, **request: Any) -> Any:
        self._number += 1
        return self._exchange({"number": self._number, "do": do, **request})

    def of(self, target: "Remote", do: str, *given: Any, **named: Any) -> Any:
        """What the program answers about one of its objects."""
        number = object.__getattribute__(target, "_number")
        sent = {name: packed(one, self._place) for name, one in named.items()}
        return self.ask(do, target=number, given=[packed(one, self._place) for one in given], named=sent)

    def _exchange(self, request: Mapping[str, Any]) -> Any:
        if self.ended:
            raise ProgramEnded(self.ended)
        try:
            self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
            send(self._connection, request)
            reply = receive(self._connection)
            if reply.get("number") != self._number:
                raise Garbled("an answer to another question")
            if "raised" not in reply:
                return unpacked(reply["value"], self._remote)
        except TimeoutError:
            self.is_late = True
            self._end("the program took too long")
        except (EOFError, OSError):
            self._end("the program ended its process")
        except (Garbled, KeyError) as error:
            self._end(f"the program sent {error}")
        raise _exception(reply["raised"], reply.get("text"), is_next=request.get("do") == "next")

    def _end(self, why: str) -> NoReturn:
        self.ended = why
        raise ProgramEnded(why)

    def _remote(self, number: int) -> "Remote":
        return self._objects.setdefault(number, Remote(self, number))

    def _place(self, value: Any) -> int:
        if not isinstance(value, Remote):
            raise TypeError(f"a test cannot pass a {type(value).__name__} to the program")
        number: int = object.__getattribute__(value, "_number")
        return number


class Remote:
    """An object of the program that is no plain value: a function, a class, an instance, an iterator.

    It equals nothing but itself and is always true, whatever the program's `__eq__` and `__bool__` say.
    """

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return _link(self).of(self, "call", *given, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _link(self).of(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _link(self).of(self, "set", name, value)

    def __getitem__(self, at: Any) -> Any:
        return _link(self).of(self, "item", at)

    def __iter__(self) -> Iterator[Any]:
        return iter(_exactly(list, _link(self).of(self, "items")))

    def __len__(self) -> int:
        length: int = _exactly(int, _link(self).of(self, "length"))
        return length

    def __str__(self) -> str:
        text: str = _exactly(str, _link(self).of(self, "text"))
        return text

    def __bool__(self) -> bool:
        return True


def _link(remote: Remote) -> Link:
    link: Link = object.__getattribute__(remote, "_link")
    return link


def _exactly(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program gave a {type(value).__name__} in place of a {kind.__name__}")
    return value


def judged(job: Mapping[str, Any], connection: socket.socket, deadline: float) -> dict[str, Any]:
    """The verdict on a program: whether it compiles, whether it loads, and which tests it passes."""
    tests: Sequence[str] = job["tests"]
    verdict: dict[str, Any] = {"syntax": False, "ran": False, "late": False, "passed": [False] * len(tests)}
    try:
        compile(job["program"], "<program>", "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001
        return {**verdict, "error": _shown(error)}
    verdict["syntax"] = True
    link = Link(connection, deadline)
    try:
        link.load(job["program"])
        verdict["ran"] = True
        namespace = _namespace(job, link)
        problems = [_problem(test, namespace, link) for test in tests]
        if job["said"]:
            verdict["said"] = _exactly(str, link.ask("name", name=job["said"]))[:LONGEST_TEXT]
    except BaseException as failure:  # noqa: BLE001
        problems = [_shown(failure)] * max(1, len(tests))
    verdict["passed"] = [not problem for problem in problems[: len(tests)]]
    return {**verdict, "late": link.is_late, "error": next(filter(None, problems), "")}


def _namespace(job: Mapping[str, Any], link: Link) -> dict[str, Any]:
    """The names that tests see: the objects of the program that they are about, and what their setup defines."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    for name in job["names"]:
        try:
            namespace[name] = link.ask("name", name=name)
        except KeyError:  # a test that uses it fails
            namespace[name] = _missing(name)
    exec(compile(job["setup"], "<setup>", "exec", dont_inherit=True), namespace)  # noqa: S102
    return namespace


def _missing(name: str) -> Any:
    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NameError(f"the program does not define {name}")

    return missing


def _problem(test: str, namespace: dict[str, Any], link: Link) -> str:
    """Why a test fails; empty if it passes."""
    try:
        exec(compile(test, "<test>", "exec", dont_inherit=True), namespace)  # noqa: S102
    except BaseException as error:  # noqa: BLE001
        return _shown(error)
    return link.ended


def _exception(name: Any, text: Any, *, is_next: bool) -> Exception:
    """The built-in exception of this name, for tests that expect one; else a `ProgramError`.

    The end of an iteration counts only where the next item was asked for: `map` in a test would take it for its own.
    """
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    message = text if isinstance(text, str) else ""
    is_end = kind in (StopIteration, StopAsyncIteration)
    if isinstance(kind, type) and issubclass(kind, Exception) and (is_next or not is_end):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError and its like take other arguments
            return ProgramError(f"{name}: {message}")
    return ProgramError(f"{name!s:.80}: {message}")


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
