"""Environments in worker processes: the same bytes, whatever their number; errors with their line; no torch in them."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from tests.control.small_runs import PROBES, built, control_config, one_step
from whet.control.environments import Environments, make_environment
from whet.control.processes import ProcessEnvironments
from whet.errors import RunFailed, UserError

CARTPOLE = partial(make_environment, "CartPole-v1", {}, max_steps=20)


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
    there = ProcessEnvironments(partial(make_environment, f"{PROBES}:ChosenReward", {}), 2, processes=2)
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
    loud = ProcessEnvironments(partial(make_environment, f"{file}:Loud", {}), 1, processes=1)
    try:
        loud.reset(0, 0)
        assert loud.step([1], [0])[0] == [1.0]
        loud.reset(0, 0)
        with pytest.raises(RunFailed, match=r"failed in step, with action 0: .*mine.py:6 in reward: ZeroDivisionError"):
            loud.step([0], [0])
    finally:
        loud.close()
    ends = ProcessEnvironments(partial(make_environment, f"{file}:Ends", {}), 1, processes=1)
    try:
        ends.reset(0, 0)
        with pytest.raises(RunFailed, match="environments 0 to 0 ended with exit code 3"):
            ends.step([0], [0])
    finally:
        ends.close()


def test_an_environment_that_is_not_there_is_named():
    with pytest.raises(UserError, match="NoSuch-v0"):
        ProcessEnvironments(partial(make_environment, "NoSuch-v0", {}), 2, processes=2)


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
