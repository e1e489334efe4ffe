"""Tickets: a simulation with random speeds, deaths, joins and dynamic sampling, and the table of a run by hand."""

import random
import subprocess
import sys
from itertools import count

import pytest

from whet.train.rollout_pool.schedule import Assignments, Part, Ticket, Tickets, divided, useful_workers

SCHEDULES = 10_000


def consumed(tickets, draws_of_steps):
    """(step, draw, version) of everything that a run consumes; `draws_of_steps`: how many draws each step needs."""
    numbers = count(1)
    found = []
    for step, draws in enumerate(draws_of_steps, start=1):
        for _ in range(draws):
            ticket, _ = tickets.take(step, lambda: next(numbers))
            found.append((step, ticket.draw, ticket.version))
    return found


def test_the_tickets_of_a_run_by_hand():
    """S = 2: the first step issues draws 1, 2, 3 of version 0, every later one issues as many as the last consumed."""
    #            step 1 consumes 1; step 2 issues 4 and consumes 2; step 3 needs three and issues 5 (two are ahead), …
    expected = [(1, 1, 0), (2, 2, 0), (3, 3, 0), (3, 4, 1), (3, 5, 2), (4, 6, 3), (5, 7, 3), (6, 8, 3), (7, 9, 4)]
    assert consumed(Tickets(2), [1, 1, 3, 1, 1, 1, 1]) == expected


def test_without_staleness_every_draw_is_of_the_weights_of_its_step():
    assert consumed(Tickets(0), [1, 3, 2]) == [(1, 1, 0), (2, 2, 1), (2, 3, 1), (2, 4, 1), (3, 5, 2), (3, 6, 2)]


@pytest.mark.parametrize("staleness", range(6))
def test_one_draw_a_step_is_of_version_t_minus_1_minus_s(staleness):
    found = consumed(Tickets(staleness), [1] * 20)
    assert found == [(step, step, max(0, step - 1 - staleness)) for step in range(1, 21)]


@pytest.mark.parametrize("after", range(1, 7))
def test_what_is_outstanding_is_enough_to_go_on(after):
    draws = [1, 2, 1, 3, 1, 1, 2, 1]
    whole = consumed(Tickets(2), draws)
    first, numbers = Tickets(2), count(1)
    begun = []
    for step, some in enumerate(draws[:after], start=1):
        begun += [(step, *_pair(first.take(step, lambda: next(numbers))[0])) for _ in range(some)]
    again = Tickets(2, first.outstanding)
    for step, some in enumerate(draws[after:], start=after + 1):
        begun += [(step, *_pair(again.take(step, lambda: next(numbers))[0])) for _ in range(some)]
    assert begun == whole


def _pair(ticket):
    return ticket.draw, ticket.version


class Simulation:
    """A run whose workers are slow, die, leave and join at random; events are counted, so a deadlock shows."""

    def __init__(self, tickets, timing, draws_of_steps, *, parts=1, segments=1):
        self.tickets, self.timing, self.draws = tickets, timing, draws_of_steps
        self.parts, self.segments = parts, segments
        self.assignments, self.numbers, self.names = Assignments(), count(1), count()
        self.workers = {}  # name → remaining work and version, or None without a part
        self.sampled = {}  # part → versions of its segments
        self.events = 0
        for _ in range(timing.randint(1, 4)):
            self.workers[next(self.names)] = None

    def run(self):
        found = []
        for step, draws in enumerate(self.draws, start=1):
            for _ in range(draws):
                ticket, issued = self.tickets.take(step, lambda: next(self.numbers))
                for new in issued:
                    self.assignments.publish(step - 1)
                    for number in range(self.parts):
                        part = Part(new.draw, number, self.parts)
                        self.sampled[part] = []
                        self.assignments.add(part, new.version, new.version + self.segments - 1)
                mine = [Part(ticket.draw, number, self.parts) for number in range(self.parts)]
                self.assignments.due(ticket.draw)
                answers = [self.sampled[part] for part in mine]
                while min(map(len, answers)) < self.segments:
                    self.event()
                found.append((step, ticket.draw, ticket.version, list(map(tuple, answers))))
            for _ in range(self.timing.randint(0, 3)):  # while the trainer updates
                self.event()
        return found

    def event(self):
        self.events += 1
        assert self.events < 20_000, "nobody samples the draw that is waited for"
        for name in [name for name, has in self.workers.items() if has is None]:
            given = self.assignments.give(name)
            if given is not None:
                if given[1] < self.assignments.newest:
                    assert given[1] in self.assignments.versions, "its weights may be removed"
                self.workers[name] = self.timing.randint(1, 6), given[1]
        happens = self.timing.random()
        if happens < 0.1 and self.workers:
            gone = self.timing.choice(list(self.workers))
            self.assignments.lose(gone)
            del self.workers[gone]
        elif (happens < 0.2 and len(self.workers) < 5) or not self.workers:
            self.workers[next(self.names)] = None
        else:
            self.work(self.timing.choice(list(self.workers)))

    def work(self, name):
        if self.workers[name] is None:
            return
        left, version = self.workers[name]
        self.workers[name] = left - 1, version
        if left == 1:
            part = self.assignments.finish(name)
            self.sampled[part].append(version)
            self.workers[name] = None
            if (more := self.segments - len(self.sampled[part])) > 0:
                self.assignments.add(part, version + 1, version + more)


def check(found, staleness, segments=1):
    """What every run must keep, told from what was consumed alone."""
    assert [draw for _, draw, _, _ in found] == list(range(1, len(found) + 1)), "in order, each once"
    for step, _, version, parts in found:
        assert 0 <= step - 1 - version <= staleness, "stale or from the future"
        # Every part once, every segment once; each with weights of one step more, as far as the step has them.
        assert set(parts) == {tuple(min(version + number, step - 1) for number in range(segments))}
        assert all(0 <= step - 1 - used <= staleness for part in parts for used in part)
    firsts = {step: version for step, _, version, _ in reversed(found)}
    if len(firsts) == len(found):  # one draw a step: as stale as is allowed, so workers are never idle without need
        assert all(version == max(0, step - 1 - staleness) for step, version in firsts.items())


def test_ten_thousand_random_schedules():
    for seed in range(SCHEDULES):
        rng = random.Random(seed)
        staleness = rng.randint(0, 4)
        draws = [rng.choice((1, 1, 1, 2, 4)) for _ in range(rng.randint(1, 8))]
        shape = {"parts": rng.choice((1, 1, 2, 3)), "segments": rng.choice((1, 1, max(1, staleness)))}
        one, other = (
            Simulation(Tickets(staleness), random.Random(seed + shift), draws, **shape) for shift in (1, 10**9)
        )
        found = one.run()
        check(found, staleness, shape["segments"])
        assert other.run() == found, "the timing of workers changes what is consumed"


class OneTooMany(Tickets):
    """Tops up to S + 2 tickets."""

    def __init__(self, staleness):
        super().__init__(staleness + 1)


class FromTheFuture(Tickets):
    """Issues tickets of weights that do not exist yet."""

    def take(self, step, next_draw):
        ticket, issued = super().take(step, next_draw)
        return Ticket(ticket.draw, ticket.version + 1), [Ticket(one.draw, one.version + 1) for one in issued]


class OutOfOrder(Tickets):
    """Consumes the newest first."""

    def take(self, step, next_draw):
        ticket, issued = super().take(step, next_draw)
        if len(self._outstanding) > 1:
            self._outstanding.rotate()
        return ticket, issued


@pytest.mark.parametrize("planted", [OneTooMany, FromTheFuture, OutOfOrder])
def test_a_planted_mistake_is_caught(planted):
    caught = 0
    for seed in range(50):
        simulation = Simulation(planted(2), random.Random(seed), [1, 1, 1, 1, 1, 2, 1])
        try:
            check(simulation.run(), 2)
        except AssertionError:
            caught += 1
    assert caught == 50


def test_tickets_and_pool_need_no_torch():
    code = "import sys, whet.train.rollout_pool.ticket_pool; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_part_of_a_lost_worker_goes_to_the_next_that_is_free():
    assignments = Assignments()
    one, two, three = Part(1, 0, 2), Part(1, 1, 2), Part(2, 0, 2)
    for part in (three, one, two):
        assignments.add(part, 0)
    assert assignments.give(0) is None  # there are no weights yet
    assignments.publish(0)
    assert assignments.give(0) == (one, 0)
    assert assignments.give(1) == (two, 0)
    assert assignments.lose(0) == one
    assert assignments.lose(7) is None  # it had none
    assert assignments.finish(1) == two
    assert assignments.give(1) == (one, 0)  # before draw 2
    assert assignments.losses == {one: 1}
    assert assignments.versions == {0}
    assert [str(two), str(Part(3))] == ["part 2 of 2 of draw 1", "draw 3"]


def test_a_segment_waits_for_its_weights_unless_a_step_waits_for_it():
    assignments, part = Assignments(), Part(5)
    assignments.publish(3)
    assignments.add(part, 4, last=6)
    assert (assignments.give(0), assignments.is_early(part), assignments.versions) == (None, True, set())
    assignments.publish(4)
    assignments.publish(5)
    assert assignments.versions == {4, 5}  # also those of the segment behind it
    assert assignments.give(0) == (part, 4)  # not the newest: that would depend on time
    assignments.finish(0)
    assignments.add(part, 5, last=6)
    assert assignments.give(0) == (part, 5)
    assignments.finish(0)
    assignments.add(part, 6, last=6)
    assert assignments.give(0) is None
    assignments.due(5)
    assert assignments.give(0) == (part, 5)


def test_parts_are_whole_batches_where_there_are_enough():
    assert divided(8, 1, 3) == [range(8)]
    assert divided(8, 2, 2) == [range(4), range(4, 8)]
    assert divided(10, 3, 2) == [range(2), range(2, 6), range(6, 10)]  # five batches of two
    assert divided(8, 3, 4) == [range(2), range(2, 5), range(5, 8)]  # two batches are too few
    for prompts in range(1, 30):
        for parts in range(1, prompts + 1):
            for batch in range(1, 32):
                found = divided(prompts, parts, batch)
                assert [place for part in found for place in part] == list(range(prompts))
                assert len(found) == parts
                assert all(found)
                if -(-prompts // batch) >= parts:
                    assert all(part.start % batch == 0 for part in found)


def test_a_worker_for_every_part_under_way():
    assert [useful_workers(10, 1), useful_workers(10, 1, 4), useful_workers(3, 1, 4)] == [2, 8, 3]
