"""The result of a check before a run: ok, failed, or not tried with the reason."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from whet.errors import RunFailed, UserError

Outcome = Literal["ok", "failed", "not tried"]
Check = Callable[[], str]  # gives the sentence of its result, or raises one of the two below


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a check found, in a sentence."""

    check: str
    outcome: Outcome
    sentence: str


class CheckFailed(Exception):
    """The check found a fault; the message is the sentence of its result."""


class NotTried(Exception):
    """The check does not apply here, or needs what is not here; the message says why."""


def run_checks(checks: Mapping[str, Check]) -> Iterator[Result]:
    """The result of each check, in order, as soon as it is there.

    What ends a run with an error in one sentence is a fault that the check has found; later checks that the same
    error stops are not tried, so that one fault is told once.
    """
    stopped_by: dict[str, str] = {}  # the error → the first check that it stopped
    for name, check in checks.items():
        try:
            yield Result(check=name, outcome="ok", sentence=check())
        except CheckFailed as found:
            yield Result(check=name, outcome="failed", sentence=str(found))
        except (UserError, RunFailed) as error:
            first = stopped_by.setdefault(str(error), name)
            if first == name:
                yield Result(check=name, outcome="failed", sentence=str(error))
            else:
                yield Result(check=name, outcome="not tried", sentence=f"stopped by the error that `{first}` tells")
        except NotTried as reason:
            yield Result(check=name, outcome="not tried", sentence=str(reason))
