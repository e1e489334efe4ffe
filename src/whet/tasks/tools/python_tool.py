"""A tool that runs Python: the sandbox that grades programs, and what a program prints in it.

Every call is a process of its own, without network, files and other processes; nothing is kept between calls.
"""

from collections.abc import Callable
from functools import lru_cache

from whet.errors import UserError
from whet.tasks.sandbox.isolation import Limits
from whet.tasks.sandbox.notebook import RUNNER
from whet.tasks.sandbox.sandbox import Job, Sandbox, described, refusal

LIMITS = Limits(cpu_seconds=5, wall_seconds=10.0)
LONGEST_CODE = 20_000
LONGEST_OUTPUT = 4_000
SAID = "_said"


class PythonTool:
    """The tool, and the isolation that it demands."""

    def __init__(self, isolation: str = "full") -> None:
        self._isolation = isolation

    def note(self) -> str:
        """What isolates programs on this machine; an error if it is less than demanded."""
        report = _sandbox(self._isolation).report()
        if not report["levels"][self._isolation]:
            raise UserError(refusal(report, self._isolation))
        return described(report)

    def tool(self) -> Callable[..., object]:
        """The function that is called."""

        def python(code: str) -> str:
            """Runs a Python program and gives what it prints, and the value of a last line that is an expression.

            Args:
                code: the whole program; nothing is kept between calls, and there are no files and no network
            """
            return self._ran(code)

        python.side_by_side = True  # type: ignore[attr-defined] # its work is done in other processes
        return python

    def _ran(self, code: str) -> str:
        if len(code) > LONGEST_CODE:
            raise ValueError(f"the program has {len(code)} characters, more than {LONGEST_CODE}")
        call = f"{SAID} = _run({code!r}, {LONGEST_OUTPUT})\n"
        outcome = _sandbox(self._isolation).run(Job(RUNNER + call, tests=(), said=SAID))
        if outcome.timed_out:
            raise TimeoutError(f"the program took more than {LIMITS.cpu_seconds} s")
        if not outcome.ran:
            raise RuntimeError(outcome.error.removeprefix("ProgramEnded: ") or "the program did not end")
        return outcome.said or "(nothing was printed)"


@lru_cache
def _sandbox(isolation: str) -> Sandbox:
    """One server for all tools of a process."""
    return Sandbox(LIMITS, isolation=isolation)
