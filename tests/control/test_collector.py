"""What is collected: seeds of episodes, cut fragments, groups with one start, episodes that a resumed run repeats."""

import numpy as np
import pytest
import torch

from tests.control.small_runs import built, control_config, one_step
from whet.control.seeds import EVALUATION, TRAINING, episode_seed
from whet.errors import RunFailed

FRAGMENTS = {"environments": 3, "length": 20}


def test_no_evaluation_begins_as_a_training_episode_did():
    training = {episode_seed(TRAINING, 0, 0, copy, episode) for copy in range(50) for episode in range(50)}
    evaluation = {episode_seed(EVALUATION, 0, number) for number in range(1000)}
    assert len(training) > 2490
    assert not training & evaluation


def test_steps_are_those_of_the_episodes():
    """The rewards of CartPole are 1, so returns are lengths; fragments end where episodes do, or are cut."""
    control = built(control_config("CartPole-v1", rollout=FRAGMENTS))
    first, second = control.collector.collect(1), control.collector.collect(2)
    for rollout in (first, second):
        assert rollout.count == 60
        assert int(rollout.fragments.lengths.sum()) == 60
        assert sorted(set(range(len(rollout.fragments.starts))) - set(rollout.cut.tolist())) == [
            index for index, last in enumerate(rollout.fragments.last) if rollout.ended.T.reshape(-1)[last]
        ]
        assert list(rollout.returns) == list(rollout.lengths)
        # Within a fragment a state follows the one before it: the cart moves by its velocity.
        rows = rollout.observations
        follows = torch.ones(60, dtype=torch.bool)
        follows[rollout.fragments.last] = False
        moved = rows[1:, 0] - (rows[:-1, 0] + 0.02 * rows[:-1, 1])
        assert moved[follows[:-1]].abs().max() < 1e-6
    # An episode that the first rollout cut goes on in the second.
    assert torch.equal(first.beyond[-1], second.observations[40])


def test_a_rollout_is_repeated_by_its_number():
    config = control_config("CartPole-v1", rollout=FRAGMENTS)
    one, two = (built(config).collector.collect(1) for _ in range(2))
    assert torch.equal(one.actions, two.actions)
    assert not torch.equal(one.actions, built(config).collector.collect(2).actions)


def test_a_group_has_one_start():
    rollout = {"environments": 3, "length": 0, "group": 4}
    config = control_config("CartPole-v1", rollout=rollout, algorithm={"preset": "grpo"})
    found = built(config).collector.collect(1)
    starts = found.observations[found.fragments.starts].view(3, 4, 4)
    assert (starts == starts[:, :1]).all()
    assert len({tuple(row) for row in starts[:, 0].tolist()}) == 3
    assert found.fragments.lengths.tolist() == list(found.lengths)
    assert len(found.cut) == 0


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_a_collector_goes_on_in_the_middle_of_episodes(kind):
    policy = {"kind": kind, "widths": [16], "history": 4 if kind == "transformer" else 1, "heads": 2, "layers": 1}
    config = control_config("CartPole-v1", rollout=FRAGMENTS, policy=policy, normalize={"rewards": True})
    whole, stopped = built(config), built(config)
    for step in (1, 2, 3):
        one_step(whole, config, step)
        one_step(stopped, config, step)
    resumed = built(config)
    resumed.policy.load_state_dict(stopped.policy.state_dict())
    for name in ("collector", "scale"):
        old, new = getattr(stopped, name), getattr(resumed, name)
        new.restore(old.numbers(), old.tensors())
    expected, found = whole.collector.collect(4), resumed.collector.collect(4)
    for name in ("observations", "actions", "rewards", "beyond"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.returns == expected.returns
    assert resumed.collector.metrics() == whole.collector.metrics()
    assert torch.equal(resumed.scale(found), whole.scale(expected))


def test_an_environment_that_cannot_be_repeated_is_refused():
    config = control_config("CartPole-v1", rollout=FRAGMENTS)
    before, after = built(config), built(config)
    before.collector.collect(1)
    saved = before.collector.tensors()
    saved["observations"] = torch.from_numpy(np.nextafter(saved["observations"].numpy(), 9))
    with pytest.raises(RunFailed, match="did not come to the same state"):
        after.collector.restore(before.collector.numbers(), saved)


def test_an_environment_that_raises_ends_the_run_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    lines = (
        "from tests.control.probes import Probe",
        "class Broken(Probe):",
        "    def reward(self, action):",
        "        1 / 0",
    )
    file.write_text("\n".join(lines))
    config = control_config("ChosenReward", environment=f"{file}:Broken")
    with pytest.raises(RunFailed, match=r"failed in step, with action [01]: .*mine.py:4 in reward: ZeroDivisionError"):
        built(config).collector.collect(1)
