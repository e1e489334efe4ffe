"""The pool with workers in threads: losses, limits, joining and leaving."""

import random
import threading

import pytest

from whet.errors import RunFailed
from whet.records import Sampling
from whet.train.rollout_pool.orders import Order
from whet.train.rollout_pool.schedule import Part
from whet.train.rollout_pool.ticket_pool import MOST_LOSSES, NoPlace, RolloutPool, WorkerLost


def order(draw):
    return Order(part=Part(draw), version=0, prompts=(), sampling=Sampling(max_tokens=1), group=1, greedy=False)


def answer(pool, draw):
    (only,) = pool.answer(Part(draw))
    return only


class Fake:
    """A worker that does what `work` says: an answer, or an exception."""

    def __init__(self, number, work):
        self.number, self.work, self.is_ended = number, work, threading.Event()

    name, last_output = "fake", "Traceback: out of luck"

    def start(self):
        self.work(self, None)

    def sample(self, order):
        return self.work(self, order.part.draw)

    def end(self):
        self.is_ended.set()

    close = end


@pytest.fixture
def pool_of(monkeypatch):
    monkeypatch.setattr("whet.train.rollout_pool.ticket_pool.PAUSE_SECONDS", 0.0)
    pools = []

    def make(work, count):
        pools.append(RolloutPool(lambda number: Fake(number, work), count))
        pools[-1].publish(0, "", "")
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_answers_come_back_by_draw_whoever_dies(pool_of):
    rng, lock = random.Random(1), threading.Lock()

    def unreliable(worker, draw):
        with lock:
            is_lost = rng.random() < 0.05
        if is_lost:
            raise WorkerLost("was killed by SIGKILL")
        return b"%d" % (draw or 0)

    pool = pool_of(unreliable, 4)
    for draw in range(1, 101):
        pool.submit(order(draw))
    assert [answer(pool, draw) for draw in range(100, 0, -1)] == [b"%d" % draw for draw in range(100, 0, -1)]
    assert pool.versions == set()
    notes = pool.notes()
    assert any("is sampled by another one" in note and "fake" in note for note in notes)
    assert pool.notes() == []


@pytest.mark.parametrize("where", ["while it starts", "with one draw"])
def test_a_worker_that_keeps_dying_ends_the_run_with_its_last_words(pool_of, where):
    def doomed(worker, draw):
        if (draw is None) == (where == "while it starts"):
            raise WorkerLost("ended with exit code 7")
        return b""

    pool = pool_of(doomed, 1)
    pool.submit(order(3))
    with pytest.raises(RunFailed) as caught:
        answer(pool, 3)
    message = str(caught.value)
    assert message.startswith("rollout worker 0 (fake) ended with exit code 7, the 5th time in a row")
    assert message.endswith("its last output: Traceback: out of luck")
    assert ("in draw 3" in message) == (where == "with one draw")


def test_a_draw_that_ends_every_worker_ends_the_run(pool_of):
    """Each of the workers succeeds in between, so none of them fails often in a row."""
    seen = []

    def poisoned(worker, draw):
        if draw == 2:
            seen.append(worker.number)
            raise WorkerLost("was killed by SIGKILL")
        return b"fine"

    pool = pool_of(poisoned, 3)
    pool.submit(order(1))
    assert answer(pool, 1) == b"fine"  # before the pool can fail
    for draw in range(2, 40):
        pool.submit(order(draw))
    with pytest.raises(RunFailed, match=f"the {MOST_LOSSES}th time in a row, in draw 2"):
        answer(pool, 2)
    assert len(seen) == MOST_LOSSES


def test_what_no_other_worker_could_do_better_ends_the_run_at_once(pool_of):
    def stale(worker, draw):
        if draw is not None:
            raise RunFailed("the weights are stale")

    pool = pool_of(stale, 2)
    pool.submit(order(1))
    with pytest.raises(RunFailed, match="the weights are stale"):
        answer(pool, 1)


def test_workers_join_and_leave(pool_of):
    """Two orders wait for each other, so one worker alone cannot finish them; one that leaves finishes its own."""
    together, alone = threading.Barrier(2, timeout=20), threading.Event()
    names = []

    def work(worker, draw):
        if draw in (1, 2):
            together.wait()
        elif draw is not None:
            names.append(worker.number)
            alone.set()
        return b"done"

    pool = pool_of(work, 1)
    pool.submit(order(1))
    pool.submit(order(2))
    pool.resize(2)
    assert [answer(pool, 1), answer(pool, 2)] == [b"done", b"done"]
    pool.resize(1)
    for draw in range(3, 9):
        pool.submit(order(draw))
        answer(pool, draw)
    assert set(names) == {0}
    pool.resize(0)
    pool.submit(order(9))
    alone.clear()
    assert not alone.wait(0.2)  # nobody is there
    pool.resize(3)
    assert answer(pool, 9) == b"done"


def test_a_worker_without_a_place_is_done_without_unless_it_is_the_only_one(pool_of):
    has_room, ready = threading.Event(), threading.Event()

    def crowded(worker, draw):
        if draw is None and worker.number == 0:
            ready.set()
        if draw is None and worker.number == 1:
            assert ready.wait(20)
            if not has_room.wait(0.01):
                raise NoPlace("found no node")
        return b"%d" % worker.number

    pool = pool_of(crowded, 2)
    for draw in range(1, 30):
        pool.submit(order(draw))
        assert answer(pool, draw) == b"0"
    while not (notes := pool.notes()):
        pass
    assert set(notes) == {"rollout worker 1 found no node; the others go on, and it is tried again"}
    has_room.set()
    answers = set()
    while b"1" not in answers:
        draw += 1
        pool.submit(order(draw))
        answers.add(answer(pool, draw))

    def full(worker, draw):
        raise NoPlace("found no node")

    pool = pool_of(full, 1)
    pool.submit(order(1))
    with pytest.raises(RunFailed, match="no rollout worker could be started: worker 0 found no node"):
        answer(pool, 1)


def test_closing_ends_a_worker_in_the_middle(pool_of):
    begun = threading.Event()
    fakes = []

    def endless(worker, draw):
        if draw is not None:
            fakes.append(worker)
            begun.set()
            assert worker.is_ended.wait(20)
            raise WorkerLost("was killed by SIGKILL")

    pool = pool_of(endless, 1)
    pool.submit(order(1))
    assert begun.wait(20)
    pool.close()
    assert fakes[0].is_ended.is_set()
    assert pool.notes() == []  # it was asked to
