"""What isolates a program, in order: namespaces and a root of its own for the server that forks the processes; then, in
each process, limits, no capabilities, Landlock and seccomp. What the kernel refuses is left out and said so.
"""

import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from whet.tasks.sandbox import kernel, landlock, seccomp

SCRATCH = "/scratch"  # in a root of its own
MECHANISMS = ("namespaces", "root", "processes", "landlock", "seccomp")
SHARED_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")
MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one program, and the same again of the process that tests it."""

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_mb: int = 512
    file_mb: int = 16
    processes: int = 64  # without seccomp, which refuses every new process; the kernel never limits root
    open_files: int = 64


@dataclass
class Isolation:
    """Which mechanisms are used, and why the others are not."""

    folder: str  # an empty directory of the host, for the new root or for scratch directories
    without: Sequence[str] = ()  # mechanisms that are left out, to see what a weaker machine does
    active: dict[str, str] = field(default_factory=dict)  # mechanism → how, as far as the server itself set it up
    refused: dict[str, str] = field(default_factory=dict)  # mechanism → why not

    def prepare(self) -> None:
        """Once, in the server."""
        self._attempt("namespaces", self._own_namespaces)
        if "namespaces" in self.active:
            self._attempt("root", self._own_root)
        else:
            self.refused.setdefault("root", "needs namespaces")

    def own_processes(self) -> None:
        """In the process that forks a program: the next process is the first of a PID namespace, and dies with all."""
        if "namespaces" in self.active:
            self._attempt("processes", self._own_process_namespace)
        else:
            self.refused.setdefault("processes", "needs namespaces")

    def confine(self, limits: Limits, scratch: str = "", *, is_program: bool) -> None:
        """In the process of a program, or of its tests: after this nothing can be undone."""
        if "root" in self.active and is_program:
            kernel.unshare(kernel.NEW_MOUNTS, "unshare")
            kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, _scratch_options(limits))
            scratch = SCRATCH
        os.chdir(scratch or "/")
        set_limits(limits)
        kernel.drop_capabilities()
        kernel.prctl(kernel.SET_NO_NEW_PRIVILEGES, "no new privileges", 1)
        kernel.prctl(kernel.SET_DUMPABLE, "dumpable", 0)
        kernel.die_with_parent()
        self._attempt("landlock", lambda: self._only_files(scratch))
        self._attempt("seccomp", _filtered)
        if "seccomp" not in self.active:
            kernel.limit(resource.RLIMIT_NPROC, limits.processes)

    def _attempt(self, name: str, set_up: Callable[[], str]) -> None:
        if name in self.without:
            self.refused[name] = "left out"
            return
        try:
            self.active[name] = set_up()
        except OSError as error:
            self.refused[name] = str(error.strerror or error)

    def _own_namespaces(self) -> str:
        user, group = os.geteuid(), os.getegid()
        flags = kernel.NEW_MOUNTS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_HOST_NAME
        kernel.unshare(kernel.NEW_USERS | flags, "unshare")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
        return "user, network, mounts, IPC, host name"

    def _own_root(self) -> str:
        kernel.mount("", "/", "", kernel.RECURSIVE | kernel.PRIVATE)
        root = self.folder
        kernel.mount("tmpfs", root, "tmpfs", kernel.NO_SETUID | kernel.NO_DEVICES, "size=1m,mode=755")
        for path in readable():
            _show(path, root)
        os.mkdir(root + SCRATCH)
        kernel.make_read_only(root)
        kernel.enter_root(root)
        return "only the Python library and shared libraries, read-only"

    def _own_process_namespace(self) -> str:
        kernel.unshare(kernel.NEW_PROCESSES, "unshare")
        return "a PID namespace for each program"

    def _only_files(self, scratch: str) -> str:
        found = landlock.version()
        if not found:
            raise OSError("the kernel has no Landlock")
        landlock.restrict(readable(), [scratch] if scratch else [])
        return f"version {found}"


def _filtered() -> str:
    seccomp.install()
    return "a list of allowed system calls"


def set_limits(limits: Limits) -> None:
    kernel.limit(resource.RLIMIT_CPU, limits.cpu_seconds)
    kernel.limit(resource.RLIMIT_AS, limits.memory_mb * MEGABYTE)
    kernel.limit(resource.RLIMIT_FSIZE, limits.file_mb * MEGABYTE)
    kernel.limit(resource.RLIMIT_NOFILE, limits.open_files)
    kernel.limit(resource.RLIMIT_CORE, 0)


@lru_cache
def readable() -> tuple[str, ...]:
    """The Python library and the shared libraries it needs."""
    library = os.path.join(sys.base_prefix, sys.platlibdir)
    places = {os.path.dirname(os.path.realpath(os.__file__)), library, os.path.join(sys.base_prefix, "lib")}
    outer: list[str] = []
    for place in (*SHARED_LIBRARIES, *sorted(places)):
        if os.path.exists(place) and not any(place.startswith(f"{other}/") or place == other for other in outer):
            outer.append(place)
    return tuple(outer)


def _scratch_options(limits: Limits) -> str:
    return f"size={2 * limits.file_mb}m,nr_inodes=1024,mode=700"


def _show(path: str, root: str) -> None:
    """Makes a path of the host visible at the same place below the new root."""
    target = root + path
    if os.path.islink(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
        kernel.mount(path, target, "", kernel.BIND | kernel.RECURSIVE)
    elif os.path.isfile(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        kernel.mount(path, target, "", kernel.BIND)


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
