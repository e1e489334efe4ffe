"""A judge behind a real server: honest, biased, unreadable, down."""

import pytest

from tests.evaluate.judge_server import judging
from whet.engines.http.transport import Connection
from whet.errors import RunFailed, UserError
from whet.evaluate.pairwise_judge import OUTCOMES, Compared, ask_judge, read_choice

QUICK = Connection(retries=2, backoff_seconds=0.01, timeout_seconds=10, concurrency=4)


def pairs(*texts):
    return [Compared(id=f"p{i}", prompt=f"Question {i}", own=own, start=start) for i, (own, start) in enumerate(texts)]


def longer(first, second):
    """An honest judge: it likes the longer answer wherever it stands."""
    if len(first) == len(second):
        return "Both do.\nVERDICT: TIE"
    return f"Answer A and B differ.\n\nVERDICT: {'A' if len(first) > len(second) else 'B'}"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("VERDICT: A", "first"),
        ("I first thought VERDICT: A, but no.\n**Verdict:** B", "second"),
        ("Verdict: [[A]]", "first"),
        ("VERDICT: Answer B.", "second"),
        ("verdict: a tie", "tie"),
        ("VERDICT: Tie", "tie"),
        ("B", "second"),
        (" **A**. ", "first"),
        ("A is better than B", "unreadable"),
        ("Verdict: both are fine", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_reading_a_verdict(text, choice):
    assert read_choice(text) == choice


@pytest.mark.parametrize(
    ("own_first", "own_second", "expected"),
    [
        ("first", "second", 1.0),  # ours was chosen in either place
        ("second", "first", 0.0),
        ("first", "first", 0.5),  # whatever came first was chosen
        ("second", "second", 0.5),
        ("tie", "tie", 0.5),
        ("first", "tie", 0.5),
        ("unreadable", "second", 0.5),
    ],
)
def test_both_orders(own_first, own_second, expected):
    assert OUTCOMES.get((own_first, own_second), 0.5) == expected


def test_an_honest_judge_is_believed():
    with judging(longer) as server:
        verdicts = ask_judge(
            server.url, "m", pairs(("aaa", "b"), ("a", "bbb"), ("aa", "bb"), ("c", "c")), connection=QUICK
        )
    assert verdicts.outcomes == (1.0, 0.0, 0.5, 0.5)
    assert (verdicts.contradictions, verdicts.unreadable) == (0, 0)
    assert len(server.requests) == 6  # equal answers are not asked about, all others twice
    asked = [request["messages"][-1]["content"] for request in server.requests]
    assert sum("[Answer A]\naaa\n\n[Answer B]\nb\n" in text for text in asked) == 1
    assert sum("[Answer A]\nb\n\n[Answer B]\naaa\n" in text for text in asked) == 1
    assert all("Question" in text for text in asked)
    assert {request["temperature"] for request in server.requests} == {0.0}


def test_a_judge_that_likes_the_first_place_decides_nothing():
    with judging(lambda first, second: "VERDICT: A") as server:
        verdicts = ask_judge(server.url, "m", pairs(("a", "b"), ("c", "d")), connection=QUICK)
    assert verdicts.outcomes == (0.5, 0.5)
    assert verdicts.contradictions == 2


def test_unreadable_answers_are_counted_and_decide_nothing():
    with judging(lambda first, second: "Hm." if first == "a" else "VERDICT: B") as server:
        verdicts = ask_judge(server.url, "m", pairs(("a", "b")), connection=QUICK)
    assert verdicts.outcomes == (0.5,)
    assert (verdicts.contradictions, verdicts.unreadable) == (0, 1)


def test_a_server_that_comes_back_is_asked_again_and_one_that_does_not_fails_the_run():
    with judging(longer, failures=2) as server:
        assert ask_judge(server.url, "m", pairs(("aaa", "b")), connection=QUICK).outcomes == (1.0,)
    assert len(server.requests) == 4
    with judging(longer, failures=100) as server, pytest.raises(RunFailed, match=r"failed 3 times.*503: loading"):
        ask_judge(server.url, "m", pairs(("aaa", "b")), connection=QUICK)


def test_the_key_is_sent_and_asked_for(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    keyed = Connection(api_key_env="JUDGE_KEY", retries=0)
    with judging(longer) as server:
        ask_judge(server.url, "m", pairs(("aaa", "b")), connection=keyed)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer s3cret"}
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserError, match="JUDGE_KEY holds no API key"):
        ask_judge(server.url, "m", pairs(("aaa", "b")), connection=keyed)


def test_a_judge_that_does_not_end_is_given_up_on():
    endless = r"^http://127\S*/v1 sent an answer of more than \d+ bytes"
    with (
        judging(lambda first, second: "VERDICT: A " * (1 << 18)) as server,
        pytest.raises(RunFailed, match=endless),
    ):
        ask_judge(server.url, "m", pairs(("a", "b")), connection=QUICK)
    with judging(lambda first, second: "VERDICT: A \ud800") as server:
        assert ask_judge(server.url, "m", pairs(("a", "b")), connection=QUICK).contradictions == 1
