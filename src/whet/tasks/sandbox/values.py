"""Values between the process of a program and that of its tests: JSON, with a tag for what JSON lacks.

Reading makes exact built-in types (and a few of the standard library), whatever was sent. Everything else is an object
that stays in the process of the program and is named by a number.
"""

import builtins
import json
import math
import socket
import struct
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

LARGEST_FRAME = 16 * 2**20  # bytes
SMALL = 2**63
SEQUENCES: Mapping[str, type[Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
MAPPINGS: Mapping[str, type[Any]] = {"Counter": Counter, "OrderedDict": OrderedDict, "dict": dict}


class Garbled(Exception):
    """What was received is no value."""


def packed(value: Any, name_object: Callable[[Any], int]) -> Any:
    """A value as JSON. Instances of subclasses are sent as their built-in type, as a named tuple is a tuple."""
    if value is None or isinstance(value, bool):
        return value
    for tag, kind in MAPPINGS.items():
        if isinstance(value, kind):
            return [tag, [[packed(key, name_object), packed(one, name_object)] for key, one in value.items()]]
    for tag, kind in SEQUENCES.items():
        if isinstance(value, kind):
            return [tag, [packed(one, name_object) for one in value]]
    for kind, write in WRITE.items():
        if isinstance(value, kind):
            return write(value)
    name = str(getattr(value, "__name__", ""))
    if isinstance(value, type) and vars(builtins).get(name) is value:
        return ["type", name]
    return ["object", name_object(value)]


def _packed_int(value: int) -> Any:
    number = int.__int__(value)
    return number if -SMALL < number < SMALL else ["int", hex(number)]


def _packed_float(value: float) -> Any:
    number = float.__float__(value)
    return number if math.isfinite(number) else ["float", repr(number)]


WRITE: Mapping[type[Any], Callable[[Any], Any]] = {
    str: str.__str__,
    int: _packed_int,
    float: _packed_float,
    bytes: lambda value: ["bytes", bytes(value).decode("latin-1")],
    bytearray: lambda value: ["bytearray", bytes(value).decode("latin-1")],
    complex: lambda value: ["complex", [repr(value.real), repr(value.imag)]],
    range: lambda value: ["range", [hex(one) for one in (value.start, value.stop, value.step)]],
    Fraction: lambda value: ["Fraction", [hex(value.numerator), hex(value.denominator)]],
    Decimal: lambda value: ["Decimal", str(value)],
}


def unpacked(sent: Any, find_object: Callable[[int], Any]) -> Any:
    """The value of what `packed` made; `Garbled` for anything else."""
    try:
        return _unpacked(sent, find_object)
    except (AttributeError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise Garbled(f"no value: {type(error).__name__}") from error


def _unpacked(sent: Any, find_object: Callable[[int], Any]) -> Any:
    if sent is None or isinstance(sent, bool | str | int | float):
        return sent
    tag, content = sent
    if tag in SEQUENCES:
        return SEQUENCES[tag](_unpacked(one, find_object) for one in content)
    if tag in MAPPINGS:
        return MAPPINGS[tag]({_unpacked(key, find_object): _unpacked(one, find_object) for key, one in content})
    if tag == "object":
        return find_object(int(content))
    return READ[tag](content)


def _type(name: str) -> type[Any]:
    found = vars(builtins)[name]
    if not isinstance(found, type):
        raise ValueError(f"{name} is no type")
    return found


def _bytes(content: str) -> bytes:
    return content.encode("latin-1")


READ: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": float,
    "bytes": _bytes,
    "bytearray": lambda content: bytearray(_bytes(content)),
    "complex": lambda content: complex(float(content[0]), float(content[1])),
    "range": lambda content: range(*(int(one, 16) for one in content)),
    "Fraction": lambda content: Fraction(*(int(one, 16) for one in content)),
    "Decimal": Decimal,
    "type": _type,
}


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """One message, with its length before it."""
    content = json.dumps(message).encode()
    if len(content) > LARGEST_FRAME:
        raise Garbled(f"a message of {len(content)} bytes: the most are {LARGEST_FRAME}")
    connection.sendall(struct.pack("!I", len(content)) + content)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message; EOFError at the end, `Garbled` if it is none."""
    (size,) = struct.unpack("!I", _exactly(connection, 4))
    if size > LARGEST_FRAME:
        raise Garbled(f"a message of {size} bytes: the most are {LARGEST_FRAME}")
    try:
        message = json.loads(_exactly(connection, size))
    except (ValueError, RecursionError) as error:
        raise Garbled("no JSON") from error
    if not isinstance(message, dict):
        raise Garbled("no message")
    return message


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(min(size - len(content), 2**20))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)
