"""Blocks of the buffer in checkpoints: linked where they are unharmed, written anew elsewhere."""

import os

import numpy as np
import pytest

from tests.off_policy.test_replay import filled, same_draws
from whet.control.off_policy import replay
from whet.control.off_policy.replay import ReplayBuffer
from whet.train.off_policy.replay_files import ReplayFiles


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """A buffer with two full blocks and a part of one, its files, and the directory of a first checkpoint."""
    monkeypatch.setattr(replay, "BLOCK", 10)
    buffer = filled(100, 1, [[2 if time % 4 == 3 else 0] for time in range(25)])
    files, first = ReplayFiles(buffer), tmp_path / "step-1"
    first.mkdir()
    files.write(first)
    return buffer, files, first


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def second(files, first):
    directory = first.with_name("step-2")
    directory.mkdir()
    files.write(directory)
    return directory


def brought_back(directory):
    buffer = ReplayBuffer(100, 1, width=4, actions=1)
    ReplayFiles(buffer).read(directory)
    return buffer


def test_full_blocks_are_linked_and_the_last_one_is_written(saved):
    buffer, files, first = saved
    filled(100, 1, [[0]] * 3, buffer=buffer, first=25)
    directory = second(files, first)
    assert names(directory) == [f"replay-0000{number}.safetensors" for number in range(3)]
    same = [os.path.samefile(first / name, directory / name) for name in names(directory)]
    assert same == [True, True, False]
    same_draws(brought_back(directory), buffer, 0)
    assert brought_back(first).count == 25


def test_a_damaged_block_is_written_anew(saved):
    buffer, files, first = saved
    path = first / "replay-00001.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    directory = second(files, first)
    assert not os.path.samefile(path, directory / path.name)
    same_draws(brought_back(directory), buffer, 0)


@pytest.mark.parametrize("how", ["without links", "without the older one"])
def test_blocks_that_cannot_be_linked_have_the_same_bytes(saved, monkeypatch, how):
    _, files, first = saved
    before = {name: (first / name).read_bytes() for name in names(first)}
    if how == "without links":

        def refused(*_):
            raise OSError("no links")

        monkeypatch.setattr(os, "link", refused)
    else:
        for path in first.iterdir():
            path.unlink()
    directory = second(files, first)
    assert {name: (directory / name).read_bytes() for name in names(directory)} == before


def test_a_resumed_run_links_too(saved):
    _, _, first = saved
    buffer = brought_back(first)
    files = ReplayFiles(ReplayBuffer(100, 1, width=4, actions=1))
    files.read(first)
    directory = second(files, first)
    assert os.path.samefile(first / "replay-00000.safetensors", directory / "replay-00000.safetensors")
    same_draws(brought_back(directory), buffer, 1)


def test_blocks_that_nothing_is_drawn_from_are_left_out(saved):
    buffer, files, first = saved
    filled(100, 1, [[0]] * 110, buffer=buffer, first=25)
    directory = second(files, first)
    assert names(directory)[0] == "replay-00003.safetensors"
    again = brought_back(directory)
    assert (again.count, again.oldest) == (135, 35)
    assert np.array_equal(
        again.draw(50, np.random.default_rng(0)).rewards, buffer.draw(50, np.random.default_rng(0)).rewards
    )
