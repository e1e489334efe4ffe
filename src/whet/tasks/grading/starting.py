"""Starting a process for a user's code, and the sentence about its death."""

import signal
import time
from collections.abc import Mapping, Sequence

from whet.errors import RunFailed
from whet.tasks.grading.process import Child, ChildDied, ChildGarbled, ChildHung
from whet.tasks.grading.wire import OUT_OF_MEMORY, WorkerSetup, pack_setup, read_ready
from whet.user_code import output_log

# A failed allocation in C code, or the kernel's out-of-memory killer.
MEMORY_SIGNALS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)


def started(command: Sequence[str], variables: Mapping[str, str], setup: WorkerSetup, what: str) -> tuple[Child, bool]:
    """A process that has loaded `what`, and whether a function of it asks for `Sampled`."""
    log = output_log()
    child = Child(command, variables, printed=None if log is None else log.write)
    deadline = time.monotonic() + setup.load_limit_seconds
    try:
        child.send(pack_setup(setup), deadline=deadline)
        return child, read_ready(child.receive(deadline=deadline))
    except ChildHung:
        child.kill()
        raise RunFailed(f"{what} did not load within {setup.load_limit_seconds:g} s") from None
    except ChildDied as death:
        child.kill()
        raise RunFailed(death_of(f"the worker that loads {what}", death, "", setup.memory_limit_gb)) from None
    except ChildGarbled as found:
        child.kill()
        raise RunFailed(garbled(what, found)) from None
    except BaseException:
        child.kill()
        raise


def death_of(who: str, death: ChildDied, how: str, limit: float | None) -> str:
    """The error about a worker that exited; `how` goes between the culprit and the exit, `limit` is of its memory."""
    if death.code == OUT_OF_MEMORY:
        if limit is None:
            return f"{who} ran out of memory"
        return f"{who} needs more memory than its limit of {limit:g} GB: raise reward.memory_limit_gb"
    hint = "" if limit is None else f" or the limit reward.memory_limit_gb = {limit:g}"
    maybe = f" (if memory was short: the machine's{hint})" if death.code in MEMORY_SIGNALS else ""
    return f"{who}{how} {death}{maybe}"


def garbled(who: str, found: ChildGarbled) -> str:
    return (
        f"{who} broke the protocol of its worker, which sent {found}: a forked process must end with os._exit "
        "instead of returning, and nothing else may write to the worker's pipe"
    )
