"""The child process that runs a learner's file; `examination` talks to it in JSON lines.

Nothing inside an interpreter ends an endless loop: the operating system ends this process when it has used its CPU
time, and refuses it more memory than MEMORY.
"""

import contextlib
import io
import json
import os
import resource
import runpy
import signal
from pathlib import Path
from typing import Any

from whet.learn.catalogue import find
from whet.learn.exercise import Exercise, Functions, Remark
from whet.user_code import located

MEMORY = 4 * 2**30  # bytes of address space beyond those of torch
PRINTED = 2000  # characters of what the file printed that are told


def main() -> None:
    """Answers line by line until standard input ends."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open("r+b") as nothing:  # what the file reads and prints is no part of the conversation
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    _limit_memory()
    for line in questions:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        answer = examined(find(asked["exercise"]), Path(asked["file"]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def examined(exercise: Exercise, file: Path) -> dict[str, Any]:
    """How many checks passed, the remark of the first that did not, and what the file printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        passed, remark = judged(exercise, file)
    told = {"sentence": remark.sentence, "example": remark.example} if remark else None
    return {"passed": passed, "remark": told, "printed": printed.getvalue()[:PRINTED]}


def judged(exercise: Exercise, file: Path) -> tuple[int, Remark | None]:
    """How many checks passed, and the remark of the first that did not."""
    try:
        functions: Functions = runpy.run_path(str(file))
        for passed, check in enumerate(exercise.checks):
            remark = check(functions)
            if remark:
                return passed, remark
    except SyntaxError as error:
        return 0, Remark(f"line {error.lineno} is not Python: {error.msg}")
    except SystemExit:
        return 0, Remark("the file ends the program (`exit`): only define functions")
    except Exception as error:  # noqa: BLE001 - whatever a learner's file raises
        return 0, Remark(f"the file cannot be loaded or checked: {located(error)}")
    return len(exercise.checks), None


def _limit_memory() -> None:
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (OSError, ValueError):  # not this system's; the limit of time is left
        return


if __name__ == "__main__":
    main()
