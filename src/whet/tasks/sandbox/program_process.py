"""The process of a program: loads it, then answers requests about its functions. It never sees a test.

Nothing here is trusted once the program runs. All that it can do is send values, which the other side checks.
"""

import operator
import random
import socket
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from whet.tasks.sandbox.values import packed, receive, send, unpacked

TEXT_OF_ERRORS = 500


def serve(connection: socket.socket) -> None:
    objects: list[Any] = []  # kept, so that no other object gets the id of one
    places: dict[int, int] = {}
    module = ModuleType("program")
    sys.modules["program"] = module  # where dataclasses look up annotations, and copies of objects their class
    namespace: dict[str, Any] = module.__dict__

    def name_object(value: Any) -> int:
        if id(value) not in places:
            places[id(value)] = len(objects)
            objects.append(value)
        return places[id(value)]

    random.seed(0)
    sys.argv = ["program"]
    program = receive(connection)["program"]
    try:
        exec(compile(program, "<program>", "exec"), namespace)  # noqa: S102
    except BaseException as error:  # noqa: BLE001
        send(connection, {"number": 0, **_raised(error)})
        return
    send(connection, {"number": 0, "value": None})
    while True:
        request = receive(connection)
        try:
            value = _answer(request, namespace, objects)
            reply = {"value": packed(value, name_object)}
        except BaseException as error:  # noqa: BLE001
            reply = _raised(error)
        send(connection, {"number": request["number"], **reply})


def _answer(request: dict[str, Any], namespace: dict[str, Any], objects: list[Any]) -> Any:
    if request["do"] == "name":
        return namespace[request["name"]]
    target = objects[request["target"]]
    given = [unpacked(one, objects.__getitem__) for one in request["given"]]
    if request["do"] == "call":
        return target(*given, **{name: unpacked(one, objects.__getitem__) for name, one in request["named"].items()})
    return OPERATIONS[request["do"]](target, *given)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "get": getattr,
    "set": setattr,
    "items": list,
    "length": len,
    "item": operator.getitem,
    "text": str,
}


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:TEXT_OF_ERRORS]
    except Exception:  # noqa: BLE001
        text = ""
    return {"raised": type(error).__name__, "text": text}
