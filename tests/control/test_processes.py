"""Environments in worker processes: the same bytes, whatever their number; errors with their line; no torch in them."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.control.small_runs import PROBES, built, control_config, one_step
from whet.control.environments import Environments, Named
from whet.control.processes import ProcessEnvironments, read_message, write_message
from whet.errors import RunFailed, UserError

CARTPOLE = Named(name="CartPole-v1", options={}, max_steps=20)


def test_steps_are_those_of_environments_here():
    here, there = Environments(CARTPOLE, 5, history=2), ProcessEnvironments(CARTPOLE, 5, processes=3, history=2)
    try:
        assert len(there) == 5
        assert there.action_space == here.action_space
        rng = np.random.default_rng(0)
        for copy in range(5):
            here.reset(copy, copy)
            there.reset(copy, copy)
        for t in range(40):
            where = sorted(rng.choice(5, size=rng.integers(1, 6), replace=False).tolist())
            actions = rng.integers(0, 2, len(where)).tolist()
            for one, other in zip(here.step(actions, where), there.step(actions, where), strict=True):
                assert np.array_equal(one, other)
            assert np.array_equal(here.observations, there.observations)
            if t == 19:
                here.reset(where[0], 77)
                there.reset(where[0], 77)
    finally:
        there.close()


def test_training_does_not_depend_on_the_number_of_processes():
    weights = []
    for processes in (1, 2):
        config = control_config("CartPole-v1", rollout={"environments": 3, "length": 20, "processes": processes})
        control = built(config)
        for step in (1, 2):
            one_step(control, config, step)
        weights.append(control.policy.state_dict())
        control.collector.close()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_successes_come_back():
    there = ProcessEnvironments(Named(name=f"{PROBES}:ChosenReward", options={}), 2, processes=2)
    try:
        there.reset(0, 0)
        there.reset(1, 0)
        there.step([1, 0], [0, 1])
        assert there.successes == [True, False]
    finally:
        there.close()


def test_what_an_environment_prints_is_no_answer_and_what_it_raises_has_its_line(tmp_path):
    file = tmp_path / "mine.py"
    lines = (
        "import os",
        "from tests.control.probes import Probe",
        "class Loud(Probe):",
        "    def reward(self, action):",
        "        print('loud')",
        "        return 1.0 if action else 1 / 0",
        "class Ends(Probe):",
        "    def reward(self, action):",
        "        os._exit(3)",
    )
    file.write_text("\n".join(lines))
    loud = ProcessEnvironments(Named(name=f"{file}:Loud", options={}), 1, processes=1)
    try:
        loud.reset(0, 0)
        assert loud.step([1], [0])[0] == [1.0]
        loud.reset(0, 0)
        with pytest.raises(RunFailed, match=r"failed in step, with action 0: .*mine.py:6 in reward: ZeroDivisionError"):
            loud.step([0], [0])
    finally:
        loud.close()
    ends = ProcessEnvironments(Named(name=f"{file}:Ends", options={}), 1, processes=1)
    try:
        ends.reset(0, 0)
        with pytest.raises(RunFailed, match="environments 0 to 0 ended with exit code 3"):
            ends.step([0], [0])
    finally:
        ends.close()


def test_an_environment_that_is_not_there_is_named():
    with pytest.raises(UserError, match="NoSuch-v0"):
        ProcessEnvironments(Named(name="NoSuch-v0", options={}), 2, processes=2)


def test_a_worker_imports_no_torch():
    code = "import sys, whet.control.processes; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_a_message_is_read_as_it_was_written_and_a_part_of_one_is_none():
    arrays = [np.array([1.5, -0.0], np.float32), np.zeros((2, 0), np.int64), np.array([True, False])]
    stream = io.BytesIO()
    write_message(stream, {"step": [0, 2]}, *arrays)
    written = stream.getvalue()
    told, found = read_message(io.BytesIO(written))
    assert told == {"step": [0, 2]}
    assert all(
        one.dtype == other.dtype and np.array_equal(one, other) for one, other in zip(found, arrays, strict=True)
    )
    assert read_message(io.BytesIO(written[:-1])) is None
    assert read_message(io.BytesIO(written[:10])) is None
