"""The child process that applies a user's regular expressions; `matching` talks to it in JSON lines.

A pattern such as `(a+)+$` can take years on one completion. The operating system ends this process when an answer takes
too long. Imports nothing of whet, so it starts fast.
"""

import json
import re
import signal
import sys


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The first group that took part in the last match, or all of it."""
    found = None
    for one in pattern.finditer(text):
        found = next((group for group in one.groups() if group is not None), one[0])
    return found


def main() -> None:
    """Answers line by line until standard input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        found = last_match(re.compile(asked["pattern"]), asked["text"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps({"found": found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
