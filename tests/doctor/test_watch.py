"""Alarms of a run that trains: told once they have lasted, again when they become critical, the same after a resume."""

from tests.doctor.made import NEW, constant, evals, ramp
from whet.doctor.findings import Finding
from whet.doctor.watch import HELD, KEPT, Alarms, Watch, stride


def alarm(rule="r", level="warning"):
    return Finding(rule=rule, level=level, sentence="s")


def test_an_alarm_is_told_once_it_has_lasted():
    alarms = Alarms()
    assert HELD == 2
    assert alarms.look(1, [alarm()]) == []
    assert alarms.look(2, []) == []
    assert alarms.look(3, [alarm()]) == []
    (told,) = alarms.look(4, [alarm()])
    assert (told.step, told.until) == (3, 4)
    assert alarms.look(5, [alarm()]) == []
    assert alarms.lasted["r"].until == 5


def test_an_alarm_that_becomes_critical_is_told_again():
    alarms = Alarms()
    for step in (1, 2):
        alarms.look(step, [alarm()])
    (told,) = alarms.look(3, [alarm(level="critical")])
    assert (told.level, told.step) == ("critical", 1)
    assert alarms.look(4, [alarm()]) == []
    assert alarms.look(5, [alarm(level="critical")]) == []


def test_notes_are_not_told():
    alarms = Alarms()
    for step in range(5):
        assert alarms.look(step, [alarm(level="note"), alarm(level="ok")]) == []


def test_a_step_that_is_looked_at_again_counts_once():
    alarms = Alarms()
    assert alarms.look(1, [alarm()]) == []
    assert alarms.look(1, [alarm()]) == []
    assert len(alarms.look(2, [alarm()])) == 1


def test_restored_alarms_go_on_as_if_never_stopped():
    whole, before, after = Alarms(), Alarms(), Alarms()
    seen = [[alarm()], [alarm(), alarm("q")], [alarm("q")], [alarm(), alarm("q")], [alarm()], [alarm()]]
    told = [whole.look(step, findings) for step, findings in enumerate(seen)]
    again = [before.look(step, findings) for step, findings in enumerate(seen[:2])]
    after.restore(before.numbers())
    again += [after.look(step, findings) for step, findings in enumerate(seen[2:], start=2)]
    assert again == told
    assert after.numbers() == whole.numbers()


def test_a_long_run_is_looked_at_forty_times():
    assert [stride(steps) for steps in (1, 39, 40, 100, 4000)] == [1, 1, 1, 2, 100]


def test_a_watch_keeps_the_rollouts_of_the_first_look_and_of_the_last_ones():
    watch = Watch(NEW, steps=40, parameters=1000)
    for step in range(1, 10):
        watch.keep(step, [{"id": "a"}])
    assert sorted(watch._rollouts) == [1, *range(10 - KEPT, 10)]


def test_a_watch_sees_what_the_run_logs():
    rows = {row["step"]: {} for row in constant("x", 1.0)}
    for row in [*ramp("reward/mean", 0.2, 0.9), *constant("reward/std", 0.3), *evals(0.6, 0.5, 0.4, half=0.02)]:
        rows.setdefault(row["step"], {}).update(row)
    watch = Watch(NEW, steps=40, parameters=1000)
    told = {}
    for step in sorted(rows):
        metrics = {name: value for name, value in rows[step].items() if name != "step"}
        if step:
            told |= {one.rule: one for one in watch.look(step, metrics)}
        watch.log(step, metrics)
    assert told["reward-hacking"].level == "critical"
    assert told["reward-hacking"].causes[0] == "reward-misspecified"
    assert 20 <= told["reward-hacking"].step <= 25  # the second evaluation is at 10, with too few steps of reward
    assert "held-out-fell" in told
