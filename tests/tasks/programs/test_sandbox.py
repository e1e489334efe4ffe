"""The sandbox: what it isolates with, what it does on weaker machines, limits, and what is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tiny import Whet
from tests.tasks.programs import hostile
from whet.errors import UserError
from whet.tasks.sandbox import kernel
from whet.tasks.sandbox.isolation import MECHANISMS, Limits
from whet.tasks.sandbox.sandbox import GUARANTEES, Job, Sandbox

pytestmark = pytest.mark.skipif(not kernel.machine(), reason="the sandbox knows Linux on x86_64 and aarch64")
NUMBERS = {"x86_64": {"unshare": 272, "prctl": 157}, "aarch64": {"unshare": 97, "prctl": 167}}
LANDLOCK, ENOSYS = 444, 38
GOOD = Job(hostile.GOOD, hostile.TESTS, names=["total"])


def quick(**options: object) -> Sandbox:
    return Sandbox(Limits(wall_seconds=60.0), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = quick(isolation="none")
    yield made
    made.close()


def run(sandbox: Sandbox, program: str, *tests: str, setup: str = "", names: tuple[str, ...] = ("f",)) -> list[bool]:
    return list(sandbox.run(Job(program, tests, setup=setup, names=names)).passed)


@pytest.mark.parametrize("missing", ["", *MECHANISMS])
def test_each_guarantee_holds_without_any_one_mechanism_of_two(missing: str) -> None:
    """Files are kept out twice (root, Landlock), the network twice (namespace, seccomp), signals three times."""
    sandbox = quick(without=[missing])
    report = sandbox.report()
    if set(MECHANISMS) - {missing, *report["active"]} - ({"root", "processes"} if missing == "namespaces" else set()):
        pytest.skip(f"this machine refuses {report['refused']}")
    expected = dict.fromkeys(GUARANTEES, True) | ({"processes": False} if missing == "seccomp" else {})
    assert report["cannot_reach"] == expected
    assert report["refused"].get(missing, "left out") == "left out"
    assert report["levels"] == {"none": True, "minimum": True, "full": missing != "seccomp"}
    sandbox.close()


def test_without_any_mechanism_programs_are_refused_unless_told() -> None:
    sandbox = quick(without=MECHANISMS)
    with pytest.raises(UserError, match=r"could reach network, files, processes, signals .*accept isolation=none"):
        sandbox.run(GOOD)
    sandbox.close()
    told = quick(without=MECHANISMS, isolation="none")
    assert told.run(GOOD).passed == (True, True, True)
    told.close()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UserError, match="isolation is 'some', must be one of none, minimum, full"):
        quick(isolation="some")


# A filter in front of everything, as containers have one: these system calls fail.
WEAKER = """
import ctypes, json, struct, sys
from whet.tasks.sandbox import kernel, seccomp
rules = [(seccomp.LOAD, 0, 0, 0)]
for number in {numbers}:
    rules += [(seccomp.EQUAL, 0, 1, number), (seccomp.RETURN, 0, 0, seccomp.REFUSE | {error})]
if {no_filter}:
    rules += [(seccomp.EQUAL, 0, 3, {prctl}), (seccomp.LOAD, 0, 0, 16), (seccomp.EQUAL, 0, 1, 22), seccomp.REFUSED]
rules.append(seccomp.ALLOWED)
code = b"".join(struct.pack("HBBI", *one) for one in rules)
buffer = ctypes.create_string_buffer(code, len(code))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(buffer)))
kernel.prctl(kernel.SET_NO_NEW_PRIVILEGES, "", 1)
kernel.prctl(kernel.SET_SECCOMP, "", 2, ctypes.c_void_p(ctypes.addressof(header)))
from whet.errors import UserError
from whet.tasks.sandbox.isolation import Limits
from whet.tasks.sandbox.sandbox import Job, Sandbox
sandbox = Sandbox(Limits(wall_seconds=60.0))
report = sandbox.report()
try:
    said = sandbox.run(Job({program!r}, {tests!r}, names=["total"])).passed
except UserError as error:
    said = str(error)
print(json.dumps([report, said]))
"""


def on_weaker_machine(*, landlock: bool, seccomp: bool, program: str = hostile.GOOD) -> tuple[dict, object]:
    numbers = NUMBERS[kernel.machine()]
    refused = [numbers["unshare"], *([] if landlock else [LANDLOCK])]
    values = {"numbers": refused, "error": 1, "no_filter": not seccomp, "prctl": numbers["prctl"]}
    code = WEAKER.format(**values, program=program, tests=hostile.TESTS)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    report, said = json.loads(made.stdout)
    return report, said


def test_a_container_without_namespaces_still_isolates_fully() -> None:
    report, said = on_weaker_machine(landlock=True, seccomp=True)
    if "landlock" not in report["active"]:
        pytest.skip(f"this machine refuses {report['refused']}")
    assert report["refused"]["namespaces"] == "unshare: Operation not permitted"
    assert set(report["active"]) == {"landlock", "seccomp"}
    assert report["levels"]["full"]
    assert said == [True, True, True]


def test_without_landlock_too_files_are_readable_and_that_is_refused() -> None:
    report, said = on_weaker_machine(landlock=False, seccomp=True)
    assert report["cannot_reach"] == {"network": True, "files": False, "processes": True, "signals": True}
    assert report["levels"] == {"none": True, "minimum": True, "full": False}
    assert isinstance(said, str)
    assert "could reach files" in said
    assert "accept isolation=minimum" in said


def test_without_seccomp_too_nothing_but_limits_is_left() -> None:
    report, said = on_weaker_machine(landlock=False, seccomp=False)
    assert report["active"] == {}
    assert report["levels"] == {"none": True, "minimum": False, "full": False}
    assert "accept isolation=none" in str(said)


ALONE = ("a memory bomb", "a list that grows", "anonymous memory", "a file of a gigabyte", "open files without end")


@pytest.mark.parametrize("name", ALONE)
def test_limits_hold_without_any_other_mechanism(sandbox: Sandbox, name: str) -> None:
    plain = Sandbox(Limits(memory_mb=256, wall_seconds=60.0), isolation="none", without=MECHANISMS)
    assert not any(plain.run(Job(hostile.LIMITS[name], hostile.TESTS, names=["total"])).passed)
    plain.close()


def test_a_loop_is_said_to_have_timed_out_and_an_exception_not() -> None:
    sandbox = Sandbox(Limits(cpu_seconds=1, wall_seconds=60.0), isolation="none")
    loop = sandbox.run(Job("def f():\n    while True: pass", ["assert f() == 1"], names=["f"]))
    assert (loop.timed_out, loop.ran, loop.passed) == (True, True, (False,))
    raised = sandbox.run(Job("def f(): return 1 / 0", ["assert f() == 1"], names=["f"]))
    assert (raised.timed_out, raised.error) == (False, "ZeroDivisionError: division by zero")
    sandbox.close()


def processes_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in listed]


@pytest.mark.parametrize("without", [(), MECHANISMS], ids=["isolated", "limits only"])
def test_nothing_is_left_behind(without: tuple[str, ...]) -> None:
    """No process, no file: also of a program that forks and goes to another session, without any isolation."""
    sandbox = quick(isolation="none", without=without)
    detached = "import os, time\nif 'fork' and not os.fork():\n    os.setsid()\n    time.sleep(1000)\n" + hostile.GOOD
    scratch = "open('left', 'w').write('x')\n" + hostile.GOOD
    for program in (hostile.HONEST["a thread left behind"], scratch, detached):
        sandbox.run(Job(program, hostile.TESTS, names=["total"]))
    assert sandbox._process is not None
    server, folder = sandbox._process.pid, Path(sandbox._folder)
    for _ in range(400):  # the last supervisor may be about to end
        if not processes_of(server):
            break
        time.sleep(0.05)
    assert [one for one in processes_of(server) if Path(f"/proc/{one}/cmdline").read_bytes()] == []
    assert list(folder.iterdir()) == []
    sandbox.close()
    assert not folder.exists()
    assert not Path(f"/proc/{server}").exists()


def test_a_server_that_was_ended_is_started_again(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(): return 1", "assert f() == 1") == [True]
    assert sandbox._process is not None
    sandbox._process.kill()
    sandbox._process.wait()
    assert run(sandbox, "def f(): return 1", "assert f() == 1") == [True]


def test_tests_run_beside_the_program_and_not_in_it(sandbox: Sandbox) -> None:
    program = "import os\nclass Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
    program += (
        "def walk(node):\n    return [node.v] + walk(node.next) if node else []\ndef add(n): return lambda m: n + m\n"
    )
    program += "def fail(kind): raise {'v': ValueError, 'o': type('Own', (Exception,), {})}[kind]('why')\n"
    program += "def numbers(): return map(abs, [-1, 2])\ndef given(*a, **k): return [a, k]\nCONSTANT = {'a': {1, 2}}\n"
    tests = [
        "a = Node(1); a.next = Node(2); assert walk(a) == [1, 2] and a.next.v == 2",
        "assert add(3)(4) == 7",
        "assert list(numbers()) == [1, 2] and sorted(numbers()) == [1, 2]",
        "try:\n    fail('v')\nexcept ValueError as error:\n    assert str(error) == 'why'\nelse:\n    assert False",
        "try:\n    fail('o')\nexcept ValueError:\n    pass",  # not that exception
        "assert given(1, (2,), b=b'x', c=1j) == [(1, (2,)), {'b': b'x', 'c': 1j}]",
        "assert CONSTANT == {'a': {1, 2}}",
        "assert given(int)[0] == (int,)",
        "assert given(lambda: 1)",  # a function of the tests stays with them
        "assert Node(1) == Node(1)",  # two objects
        "assert a == a and a",
    ]
    names = ("Node", "walk", "add", "fail", "numbers", "given", "CONSTANT")
    passed = [True, True, True, True, False, True, True, True, False, False, True]
    assert run(sandbox, program, *tests, names=names) == passed


def test_a_program_that_ends_fails_the_tests_that_follow(sandbox: Sandbox) -> None:
    program = "import os\ndef f(n): return n if n < 2 else os._exit(0)\n"
    tests = ["assert f(1) == 1", "try:\n    f(2)\nexcept:\n    pass", "assert f(1) == 1", "assert True"]
    assert run(sandbox, program, *tests) == [True, False, False, False]


def test_a_setup_that_fails_fails_all(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(): return 1", "assert f() == 1", setup="1 / 0") == [False]


def test_the_same_program_gives_the_same_values(sandbox: Sandbox) -> None:
    """Hashes of text and random numbers are fixed, in every server."""
    program = "import random\ndef f(): return [hash('a'), random.random(), list({'x', 'y', 'z', 'w'})]\n"

    seen = sandbox.run(Job(program, ["raise ValueError(repr(f()))"], names=["f"])).error
    other = quick(isolation="none")
    assert other.run(Job(program, ["raise ValueError(repr(f()))"], names=["f"])).error == seen
    assert "ValueError: [" in seen
    other.close()


def test_the_command_says_what_is_active(whet: Whet) -> None:
    told = whet("sandbox", "--json")
    assert told.code == 0, told.err
    report = json.loads(told.out)
    assert set(report) == {"active", "refused", "cannot_reach", "levels", "limits"}
    assert set(report["active"]) | set(report["refused"]) == set(MECHANISMS)
    lines = whet("sandbox").out.splitlines()
    assert lines[0].startswith("sandbox: isolation ")
    assert any("reach network" in line for line in lines)
