"""A notebook: cells without a file, in a running event loop, in the main thread or not."""

import asyncio
import threading
import time

import pytest

from tests.api.tiny import TINY, contents
from whet.api.run import Run

CELLS = (
    "import asyncio, os, threading\nimport whet",
    "calls = []\ndef right(completions, answer, **columns):\n"
    "    calls.append((os.getpid(), threading.current_thread()))\n"
    "    return [float(a == b) for a, b in zip(completions, answer)]",
    "async def patient(completions):\n    await asyncio.sleep(0)\n    return [-0.01 * len(t) for t in completions]",
    "seen = []\nrun = whet.train('grpo-sorting', steps=3, rewards=[right, (patient, 0.5), lambda completions: "
    "[0.1 * i for i in range(len(completions))]], root=ROOT, save={'every_steps': 1}, "
    "on_step=lambda step, metrics: seen.append(step) or step < 2, **TINY)",
    "first = run.finished\nrun = whet.train(resume=run, rewards=[right, (patient, 0.5), lambda completions: "
    "[0.1 * i for i in range(len(completions))]])",
    "shown = run._repr_html_()\nsampled = run.sample(2, n=1)\nrun",
)


def execute(root):
    """As a kernel does: source without a file, one namespace."""
    names = {"__name__": "__main__", "ROOT": str(root), "TINY": TINY}
    for number, cell in enumerate(CELLS):
        exec(compile(cell, f"<cell {number}>", "exec"), names)
    return names


def check(names, capsys):
    run = names["run"]
    assert isinstance(run, Run)
    assert (names["first"], run.finished, names["seen"]) == (False, True, [1, 2])
    assert {process for process, _ in names["calls"]} == {__import__("os").getpid()}
    uses = [function["use"] for function in run.config["reward"]["functions"]]
    assert uses == ["<python>:right", "<python>:patient", "<python>:lambda"]
    assert run.metrics["parts/patient"][1] < 0
    assert "3 of 3 steps" in names["shown"]
    assert len(names["sampled"]) == 2
    said = capsys.readouterr().err
    assert "step 3/3" in said  # plain lines
    assert "\x1b" not in said
    assert f"continue with: whet.train(resume='{run.path}', …)" in said


def test_inside_a_running_event_loop(tmp_path, capsys):
    async def kernel():
        return execute(tmp_path)

    check(asyncio.run(kernel()), capsys)


def test_in_another_thread(tmp_path, capsys):
    done = []
    thread = threading.Thread(target=lambda: done.append(execute(tmp_path)))
    thread.start()
    thread.join()
    check(done[0], capsys)
    assert {caller for _, caller in done[0]["calls"]} == {thread}


def test_two_runs_at_once_find_their_own_functions(tmp_path):
    """Both call theirs `score`."""
    import whet

    def begin(value, found):
        def score(completions):
            time.sleep(0.05)
            return [value] * len(completions)

        found.append(whet.train("grpo-sorting", steps=2, rewards=[score], root=tmp_path, progress=False, **TINY))

    runs = {value: [] for value in (1.0, 2.0)}
    threads = [threading.Thread(target=begin, args=item) for item in runs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value, (run,) in runs.items():
        assert run.metrics["reward/mean"][1:] == [value, value]


def test_stopped_and_resumed_is_bit_for_bit_never_stopped(tmp_path):
    import whet

    def short(completions, answer):
        return [float(a == b) - 0.01 * len(a) for a, b in zip(completions, answer, strict=True)]

    def squared(logprobs, logprobs_old, advantages):
        return -(logprobs - logprobs_old).exp() * advantages * advantages.abs()

    keys = {"steps": 4, "algorithm": {"surrogate": squared}, "rewards": [short], "progress": False}
    whole = whet.train("grpo-sorting", root=tmp_path, **keys, **TINY)
    stopped = whet.train("grpo-sorting", root=tmp_path, on_step=lambda step, _: step < 2, **keys, **TINY)
    assert [row["step"] for row in stopped.metrics] == [0, 1, 2]
    resumed = whet.train(resume=stopped, algorithm={"surrogate": squared}, rewards=[short], progress=False)
    assert contents(resumed) == contents(whole)
    assert resumed.config["algorithm"]["surrogate"] == "<python>:squared"
    with pytest.raises(whet.UserError, match="is finished"):
        whet.train(resume=resumed, algorithm={"surrogate": squared}, rewards=[short])
