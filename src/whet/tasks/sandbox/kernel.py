"""Calls of Linux that Python lacks: namespaces, mounts, capabilities, prctl. An OSError says which one was refused."""

import ctypes
import os
import platform
import resource
from collections.abc import Mapping
from typing import Any

NEW_MOUNTS, NEW_HOST_NAME, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USERS, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000

READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
DETACH = 2
HERE = -100  # AT_FDCWD
WHOLE_TREE = 0x8000  # AT_RECURSIVE

SET_PARENT_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP = 1, 4, 22
SET_SUBREAPER, SET_NO_NEW_PRIVILEGES = 36, 38
CAPABILITY_VERSION = 0x20080522

NUMBERS: Mapping[str, Mapping[str, int]] = {  # of system calls that have no function in every libc
    "x86_64": {"pivot_root": 155, "capset": 126, "mount_setattr": 442},
    "aarch64": {"pivot_root": 41, "capset": 91, "mount_setattr": 442},
}

_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """The architecture whose system calls are known; empty on others and on 32-bit Pythons."""
    name = platform.machine()
    return name if name in NUMBERS and ctypes.sizeof(ctypes.c_void_p) == 8 and platform.system() == "Linux" else ""


def checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(number: int, what: str, *arguments: Any) -> int:
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return checked(_libc.syscall(ctypes.c_long(number), *given), what)


def prctl(option: int, what: str, first: Any = 0, second: Any = 0) -> None:
    given = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in (first, second)]
    checked(_libc.prctl(option, *given, ctypes.c_ulong(0), ctypes.c_ulong(0)), what)


def unshare(flags: int, what: str) -> None:
    checked(_libc.unshare(flags), what)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    given = [one.encode() if one else None for one in (source, target, kind)]
    checked(_libc.mount(*given, ctypes.c_ulong(flags), options.encode() if options else None), f"mount {target}")


def make_read_only(target: str) -> None:
    """The mount and all below it: nothing can be written, and no set-user-ID program or device is honoured."""
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SETUID | NO_DEVICES, 0, 0, 0)
    number = NUMBERS[machine()]["mount_setattr"]
    path = ctypes.c_char_p(target.encode())
    system_call(number, f"mount_setattr {target}", HERE, path, WHOLE_TREE, ctypes.byref(attributes), 32)


def enter_root(root: str) -> None:
    """Makes `root`, a mount, the root of the file system and detaches the old one."""
    os.chdir(root)
    dot = ctypes.c_char_p(b".")
    system_call(NUMBERS[machine()]["pivot_root"], "pivot_root", dot, dot)
    checked(_libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def drop_capabilities() -> None:
    """All of them; PR_SET_NO_NEW_PRIVS keeps a file from giving them back."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    system_call(NUMBERS[machine()]["capset"], "capset", ctypes.byref(header), ctypes.byref(none))


def die_with_parent() -> None:
    prctl(SET_PARENT_DEATH_SIGNAL, "parent-death signal", 9)


def limit(kind: int, value: int) -> None:
    """Sets both limits, or lowers to what is allowed."""
    _, most = resource.getrlimit(kind)
    allowed = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (allowed, allowed))
