"""The seccomp filter of a program: a list of the system calls that it may make, as classic BPF.

It can start threads and no process, open no socket (a connected pair alone, which asyncio needs), send no signal,
execute no file, and see or change no other process. Calls that are not listed fail with EPERM.
"""

import ctypes
import struct
from collections.abc import Mapping, Sequence

from whet.tasks.sandbox import kernel

SHARED = """
    read write close fstat newfstatat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
    pread64 pwrite64 readv writev faccessat faccessat2 pipe2 pselect6 ppoll epoll_create1 epoll_ctl epoll_pwait
    sched_yield mremap madvise dup dup3 nanosleep clock_nanosleep getpid gettid getppid exit exit_group uname
    flock fsync fdatasync truncate ftruncate getdents64 getcwd chdir fchdir renameat renameat2 mkdirat unlinkat
    readlinkat openat statx fstatfs statfs gettimeofday getrusage times sysinfo getuid geteuid getgid getegid getgroups
    getpgid getsid sigaltstack futex sched_getaffinity set_tid_address clock_gettime clock_getres set_robust_list rseq
    getrandom eventfd2 umask utimensat setitimer getitimer rt_sigsuspend rt_sigtimedwait copy_file_range sendfile
    restart_syscall getcpu membarrier getrlimit shutdown recvfrom sendto getsockopt wait4 waitid
"""
# Calls that newer architectures lack.
OLD = """
    stat lstat access pipe select poll epoll_create epoll_wait dup2 rename mkdir rmdir unlink readlink open getpgrp
    arch_prctl alarm pause time
"""

NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": dict(
        zip(
            (*SHARED.split(), *OLD.split()),
            (
                *(0, 1, 3, 5, 262, 8, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 20, 269, 439, 293, 270, 271, 291),
                *(233, 281, 24, 25, 28, 32, 292, 35, 230, 39, 186, 110, 60, 231, 63, 73, 74, 75, 76, 77, 217, 79),
                *(80, 81, 264, 316, 258, 263, 267, 257, 332, 138, 137, 96, 98, 100, 99, 102, 107, 104, 108, 115, 121),
                *(124, 131, 202, 204, 218, 228, 229, 273, 334, 318, 290, 95, 280, 38, 36, 130, 128, 326, 40, 219, 309),
                *(324, 97, 48, 45, 44, 55, 61, 247),
                *(4, 6, 21, 22, 23, 7, 213, 232, 33, 82, 83, 84, 87, 89, 2, 111, 158, 37, 34, 201),
            ),
            strict=True,
        )
    ),
    "aarch64": dict(
        zip(
            SHARED.split(),
            (
                *(63, 64, 57, 80, 79, 62, 222, 226, 215, 214, 134, 135, 139, 67, 68, 65, 66, 48, 439, 59, 72, 73),
                *(20, 21, 22, 124, 216, 233, 23, 24, 101, 115, 172, 178, 173, 93, 94, 160, 32, 82, 83, 45, 46, 61),
                *(17, 49, 50, 38, 276, 34, 35, 78, 56, 291, 44, 43, 169, 165, 153, 179, 174, 175, 176, 177, 158, 155),
                *(156, 132, 98, 123, 96, 113, 114, 99, 293, 278, 19, 166, 88, 103, 102, 133, 137, 285, 71, 128, 168),
                *(283, 163, 210, 207, 206, 209, 260, 95),
            ),
            strict=True,
        )
    ),
}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
FCNTL, IOCTL = {"x86_64": 72, "aarch64": 25}, {"x86_64": 16, "aarch64": 29}
PRLIMIT = {"x86_64": 302, "aarch64": 261}
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FOREIGN_CALLS = 0x40000000  # x32 on x86_64

ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
THREAD = 0x00010000  # CLONE_THREAD
NAMESPACES = 0x7E020080
UNIX, STREAM, KIND = 1, 1, 0xF
FILTER_MODE = 2

LOAD, RETURN, EQUAL, AT_LEAST, ANY_BIT, AND = 0x20, 0x06, 0x15, 0x35, 0x45, 0x54
CALL_NUMBER, CALL_ARCHITECTURE, ARGUMENTS = 0, 4, (16, 24)  # offsets in seccomp_data; low words are first

Instruction = tuple[int, int, int, int]  # code, instructions to skip if true, if false, operand
ALLOWED: Instruction = (RETURN, 0, 0, ALLOW)
REFUSED: Instruction = (RETURN, 0, 0, REFUSE | EPERM)

THREADS_ONLY = [
    (LOAD, 0, 0, ARGUMENTS[0]),
    (ANY_BIT, 2, 0, NAMESPACES),
    (ANY_BIT, 0, 1, THREAD),
    ALLOWED,
    REFUSED,
]
CONNECTED_PAIRS_ONLY = [
    (LOAD, 0, 0, ARGUMENTS[0]),
    (EQUAL, 0, 4, UNIX),
    (LOAD, 0, 0, ARGUMENTS[1]),
    (AND, 0, 0, KIND),
    (EQUAL, 0, 1, STREAM),
    ALLOWED,
    REFUSED,
]
OWN_PROCESS_ONLY = [(LOAD, 0, 0, ARGUMENTS[0]), (EQUAL, 0, 1, 0), ALLOWED, REFUSED]
OWNERS_OF_SIGNALS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: a file that signals another process
HARMLESS_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # terminal?, its size, FIONREAD, FIONBIO, CLOEXEC


def program(machine: str) -> list[Instruction]:
    """The filter: each rule loads what it needs and ends in a verdict, or falls through to the next."""
    return [
        (LOAD, 0, 0, CALL_ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURE[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, CALL_NUMBER),
        (AT_LEAST, 0, 1, FOREIGN_CALLS),
        (RETURN, 0, 0, KILL),
        *_listed(sorted(NUMBERS[machine].values())),
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, REFUSE | ENOSYS),  # its flags are out of a filter's sight: libc then calls clone
        *_rule(CLONE[machine], THREADS_ONLY),
        *_rule(SOCKETPAIR[machine], CONNECTED_PAIRS_ONLY),
        *_rule(PRLIMIT[machine], OWN_PROCESS_ONLY),
        *_rule(FCNTL[machine], _unless(ARGUMENTS[1], OWNERS_OF_SIGNALS)),
        *_rule(IOCTL[machine], _only(ARGUMENTS[1], HARMLESS_REQUESTS)),
        REFUSED,
    ]


def install() -> None:
    """Filters the calls of this process and of all its threads to come; needs PR_SET_NO_NEW_PRIVS."""
    code = b"".join(struct.pack("HBBI", *one) for one in program(kernel.machine()))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
    kernel.prctl(kernel.SET_SECCOMP, "seccomp", FILTER_MODE, ctypes.c_void_p(ctypes.addressof(header)))


def _listed(numbers: Sequence[int]) -> list[Instruction]:
    return [one for number in numbers for one in ((EQUAL, 0, 1, number), ALLOWED)]


def _rule(number: int, verdict: Sequence[Instruction]) -> list[Instruction]:
    """`verdict`, which always ends in a return, for this call alone."""
    return [(EQUAL, 0, len(verdict), number), *verdict]


def _only(argument: int, values: Sequence[int]) -> list[Instruction]:
    return [(LOAD, 0, 0, argument), *_listed(values), REFUSED]


def _unless(argument: int, values: Sequence[int]) -> list[Instruction]:
    refused = [one for value in values for one in ((EQUAL, 0, 1, value), REFUSED)]
    return [(LOAD, 0, 0, argument), *refused, ALLOWED]
