r"""The child process that asks math-verify; `equality` talks to it in JSON lines.

Sympy computes 10^{10^{10}} when it is asked to, which no exception interrupts. The operating system ends this process
when an answer takes too long, and refuses it more memory than MEMORY. Imports nothing of whet.
"""

import json
import logging
import resource
import signal
import sys
from typing import Any

MEMORY = 4 * 2**30  # bytes of address space


def main() -> None:
    """Answers line by line until standard input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except Exception as error:  # noqa: BLE001  (an installation that does not fit together)
        _say({"problem": f"{type(error).__name__}: {error}"})
        return
    logging.disable(logging.CRITICAL)  # it writes a traceback for every answer that it cannot read
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    latex = [LatexExtractionConfig(boxed_match_priority=0)]  # the other kind is passed to `eval` by sympy

    def parsed(answer: str) -> list[Any]:
        return parse(f"\\boxed{{{answer}}}", latex, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[no-any-return]

    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        try:
            expected, found = parsed(asked["expected"]), parsed(asked["found"])
            same = bool(expected and found) and verify(expected, found, timeout_seconds=None)
        except Exception:  # noqa: BLE001  (whatever sympy raises, also out of memory or depth)
            same = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say({"same": same})


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
