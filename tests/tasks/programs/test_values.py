"""Values survive the way between processes with their exact types, and nothing that is received can be code."""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.tasks.sandbox.values import LARGEST_FRAME, Garbled, packed, receive, send, unpacked

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers() |
    st.fractions() | st.decimals(allow_nan=False) | st.just(int) | st.just(range(2, 2**70, 3))
)  # fmt: skip
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.sets(HASHABLE)
        | st.frozensets(HASHABLE)
        | st.dictionaries(HASHABLE, inner)
        | st.dictionaries(HASHABLE, inner).map(OrderedDict)
        | st.dictionaries(HASHABLE, st.integers()).map(Counter)
    ),
    max_leaves=12,
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["int", "list", "set", "dict", "range", "Fraction", "Decimal", "object", "type", "bytes"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


def refuse(_: Any) -> int:
    raise AssertionError("no object")


def there_and_back(value: Any) -> Any:
    return unpacked(json.loads(json.dumps(packed(value, refuse))), refuse)


@settings(max_examples=40)
@given(VALUES)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = there_and_back(value)
    assert type(back) is type(value)
    assert repr(back) == repr(value) or back == value  # NaN equals nothing; sets may be listed in another order


Point = namedtuple("Point", "x y")
Grade = IntEnum("Grade", {"good": 3})


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(1, 2), (1, 2)),
        (Grade.good, 3),
        (type("Text", (str,), {"__eq__": lambda *_: True})("a"), "a"),
        (type("Number", (int,), {"__eq__": lambda *_: True})(4), 4),
        (type("Items", (list,), {"__eq__": lambda *_: True})([5]), [5]),
        (10**5000, 10**5000),
        (-(2**63), -(2**63)),
        ("\ud800", "\ud800"),
        (Decimal("1.10"), Decimal("1.10")),
        (Fraction(1, 3), Fraction(1, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_become_their_exact_type(value: Any, plain: Any) -> None:
    back = there_and_back(value)
    assert type(back) is type(plain)
    assert back == plain


@given(ANY_JSON)
def test_anything_received_is_a_plain_value_or_refused(sent: Any) -> None:
    """Objects become what `find_object` makes of their number; no tag leads to anything else."""
    try:
        value = unpacked(sent, lambda number: number)
    except Garbled:
        return
    allowed = (bool, int, float, str, bytes, bytearray, complex, range, Fraction, Decimal, type)
    assert value is None or isinstance(value, (*allowed, list, tuple, set, frozenset, deque, dict))


NO_VALUES = [
    *(["eval", "1"], ["__import__", "os"], ["object", [1]], ["type", "print"], ["type", "nothing"], ["int", 5]),
    *([1], {}, ["set", [["list", []]]], ["dict", [[["list", []], 1]]]),
    *(["Fraction", ["0x1", "0x0"]], ["range", ["0x1", "0x1", "0x0"]]),
]


@pytest.mark.parametrize("sent", NO_VALUES, ids=str)
def test_what_is_no_value_is_refused(sent: Any) -> None:
    with pytest.raises(Garbled):
        unpacked(sent, lambda number: number)


@pytest.mark.parametrize(
    "content", [b"[1]", b"nonsense", b"[" * 10**5, b"\xff"], ids=["a list", "no JSON", "too deep", "no text"]
)
def test_a_message_that_is_none_is_refused(content: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(struct.pack("!I", len(content)) + content)
        with pytest.raises(Garbled):
            receive(there)


def test_messages_have_a_largest_size_on_both_sides() -> None:
    here, there = socket.socketpair()
    with here, there:
        with pytest.raises(Garbled, match="bytes"):
            send(here, {"value": "x" * LARGEST_FRAME})
        here.sendall(struct.pack("!I", LARGEST_FRAME + 1))
        with pytest.raises(Garbled, match="bytes"):
            receive(there)
