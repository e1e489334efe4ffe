"""Landlock (Linux 5.13 and later): which files a process may reach. Needs no privileges."""

import ctypes
import os
import struct
from collections.abc import Sequence

from whet.tasks.sandbox import kernel

CREATE, ADD, RESTRICT = 444, 445, 446  # the same on all architectures
VERSION = 1  # flag that asks for the version of the interface
BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1, 2, 4, 8
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # version → number of rights, each one bit
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15  # the rights that a rule about a single file may give
CREATED = 0b111111111110 | 1 << 12 | 1 << 13 | 1 << 14  # in the scratch directory: everything but devices and execution
DEVICES = 1 << 6 | 1 << 11  # creating character and block devices
TCP = 0b11  # bind and connect, from version 4
SCOPES = 0b11  # abstract sockets and signals of other processes, from version 6


def version() -> int:
    """The version of the kernel's interface; 0 if it has none."""
    try:
        return kernel.system_call(CREATE, "landlock", 0, 0, VERSION)
    except OSError:
        return 0


def restrict(readable: Sequence[str], writable: Sequence[str]) -> None:
    """From now on this process reads only `readable` and `writable`, writes only `writable`, and has no TCP."""
    found = version()
    every = (1 << FILE_RIGHTS[min(found, 5)]) - 1
    attributes = struct.pack("QQQ", every, TCP if found >= 4 else 0, SCOPES if found >= 6 else 0)
    size = 8 if found < 4 else 16 if found < 6 else 24
    rules = kernel.system_call(CREATE, "landlock", ctypes.c_char_p(attributes), size, 0)
    try:
        for path in readable:
            _allow(rules, path, (READ_FILE | READ_DIRECTORY | EXECUTE) & every)
        for path in writable:
            _allow(rules, path, CREATED & ~DEVICES & every)
        kernel.system_call(RESTRICT, "landlock", rules, 0)
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        given = rights if os.path.isdir(path) else rights & OF_FILES
        rule = struct.pack("=Qi", given, place)
        kernel.system_call(ADD, f"landlock {path}", rules, BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(place)
