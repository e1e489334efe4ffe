"""Environments in worker processes: whatever one does costs its own conversation, in a sentence, and nothing hangs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.tasks.stepping import hostile
from tests.tasks.stepping.hostile import TEXTS, Hostile, example
from whet.errors import UserError
from whet.tasks.loading import guarded_task
from whet.tasks.selection.mixture import Mixture
from whet.tasks.stepping.environment_pool import Limits, WorkerEnvironments, environments_of
from whet.tasks.stepping.in_process import OwnEnvironments
from whet.tasks.stepping.replies import Environments, Reply

HOSTILE = f"{Path(hostile.__file__)}:Hostile"
FORGETFUL = f"{Path(hostile.__file__)}:Forgetful"
FAILURES = {
    "raises": "KeyError: 'lost'",
    "sys-exit": "SystemExit",
    "megabytes": "1,048,576 characters, more than 262,144: shorten it",
    "bytes": "step gave b'\\xff\\xfe', not a text",
    "surrogate": "half of a surrogate pair, which is no valid text: decode it as UTF-8",
    "nan": "the reward nan",
    "infinite": "the reward inf",
    "not-done": "done = 'maybe', not True or False",
    "two": "a tuple, not an observation, a reward and whether it is done",
    "no-text": "step gave None, not a text",
}
FATAL = {
    "hangs": "took longer than 1 s for one answer and was stopped: see reward.time_limit_seconds",
    "exits": "ended its process: the worker ended with exit code 7",
}


def made(name: str = HOSTILE, workers: int = 1) -> Environments:
    found = environments_of(guarded_task(name, {}), Limits(time_limit_seconds=1.0, workers=workers))
    assert isinstance(found, WorkerEnvironments)
    return found


@pytest.fixture(scope="module", params=[1, 2])
def pool(request: pytest.FixtureRequest) -> Iterator[Environments]:
    found = made(workers=request.param)
    yield found
    found.close()


def played(environments: Environments, deeds: list[str]) -> list[list[Reply]]:
    """All replies of each conversation, until it is done or lost."""
    replies = [[one] for one in environments.begin([example(deed, number) for number, deed in enumerate(deeds)])]
    for text in TEXTS:
        live = [number for number, some in enumerate(replies) if not some[-1].done and not some[-1].failure]
        for number, reply in environments.step(dict.fromkeys(live, text)).items():
            replies[number].append(reply)
    return replies


def is_whole(replies: list[Reply]) -> bool:
    observations = [reply.observation for reply in replies]
    return observations == ["", "a", "a+b", "a+b+c", "a+b+c+d", "a+b+c+d+e"] and replies[-1].outcome == "ok"


@pytest.mark.parametrize("deed", FAILURES)
def test_what_one_answers_costs_its_own_conversation(pool: Environments, deed: str) -> None:
    before, bad, after = played(pool, ["good", deed, "good"])
    assert is_whole(before)
    assert is_whole(after)
    assert len(bad) == 1 + hostile.TURN
    assert FAILURES[deed] in bad[-1].failure


@pytest.mark.parametrize("deed", FATAL)
def test_the_others_of_a_process_that_ended_are_played_anew(pool: Environments, deed: str) -> None:
    """They were in the middle of their conversations; what they answer afterwards is what they would have answered."""
    *good, bad, late = played(pool, ["good", "good", "good", deed, "good"])
    assert all(map(is_whole, [*good, late]))
    assert FATAL[deed] in bad[-1].failure
    assert len(bad) == 1 + hostile.TURN


def test_several_can_end_their_process_in_one_round(pool: Environments) -> None:
    replies = played(pool, ["exits", "good", "exits", "good", "exits"])
    assert [is_whole(some) for some in replies] == [False, True, False, True, False]
    assert all("ended with exit code 7" in replies[number][-1].failure for number in (0, 2, 4))


def test_what_is_printed_does_not_reach_the_protocol(pool: Environments) -> None:
    (replies,) = played(pool, ["prints"])
    assert replies[-1] == Reply(observation="fine", done=True, outcome="")


def test_the_number_of_processes_changes_nothing() -> None:
    deeds = ["good", "raises", "good", "exits", "good"]
    pools = [made(workers=count) for count in (1, 3)]
    one, three = (played(some, deeds) for some in pools)
    assert one == three
    for some in pools:
        some.close()


def test_one_that_answers_otherwise_when_it_is_played_anew_is_lost() -> None:
    pool = made(FORGETFUL)
    good, bad = played(pool, ["good", "exits"])
    assert "ended with exit code 7" in bad[-1].failure
    assert "must depend on the example and the texts alone" in good[-1].failure
    pool.close()


def test_in_this_process_the_same_answers_are_refused() -> None:
    environments = OwnEnvironments(Hostile().environment)
    for deed, sentence in FAILURES.items():
        good, bad = played(environments, ["good", deed])
        assert is_whole(good)
        assert sentence in bad[-1].failure


def test_a_task_without_environments_has_none() -> None:
    assert environments_of(guarded_task("sorting", {}), Limits()) is None


def test_a_mixture_with_one_that_is_played_is_refused() -> None:
    tasks: list[str | Mapping[str, object]] = ["sorting", {"name": "guessing"}]
    with pytest.raises(UserError, match="guessing is played in turns with an environment, which a mixture"):
        environments_of(Mixture(tasks=tasks), Limits())
