"""The grid that a language model and a network both play: one transition function, one score."""

from itertools import product

import numpy as np
import pytest

from tests.control.small_runs import control_config, learned
from whet.control.environments import Environments, make_environment
from whet.control.grid_world import STEPS, GridWorld
from whet.control.playing import play
from whet.tasks.check import check_task
from whet.tasks.puzzles.grid import (
    MOVES,
    Grid,
    GridTask,
    count_of,
    read_grid,
    reward_of,
    shortest_way,
    walked,
)

LETTERS = "".join(MOVES)


def test_all_grids_differ_and_are_read_as_they_are_written():
    grids = [Grid.numbered(3, number) for number in range(count_of(3))]
    assert len({grid.text for grid in grids}) == count_of(3) == 504
    assert all(read_grid(grid.text) == grid for grid in grids)


def test_shortest_ways_are_the_shortest_of_all_moves():
    """By trying all answers of up to four moves on a sample of grids."""
    for number in range(0, count_of(3), 7):
        grid = Grid.numbered(3, number)
        way = shortest_way(grid)
        assert reward_of(grid, way).reward == 1.0
        tried = ("".join(moves) for length in range(1, min(len(way), 5)) for moves in product(LETTERS, repeat=length))
        assert not any(reward_of(grid, moves).parts["correct"] for moves in tried)


def test_rewards_by_hand():
    grid = read_grid("Aoo/oxo/ooG")
    assert grid.moved("U") == grid.moved("L") == (0, 0)
    assert reward_of(grid, "RRDD").reward == reward_of(grid, "DDRR").reward == 1.0
    assert reward_of(grid, "URRDD").reward == pytest.approx(0.8 + 0.2 * 4 / 5)
    assert reward_of(grid, "RR").reward == pytest.approx(0.2 * 2 / 4)
    assert reward_of(grid, "RRDDU").reward == 0.0  # the goal was reached before the last move
    assert walked(grid, "DR")[0].agent == (1, 0)  # into the wall


def test_the_task_keeps_its_promises():
    for task in (GridTask(level=1), GridTask(level=2), GridTask(level=1, chat=True)):
        check_task(task)
        for example in task.held_out(10):
            assert task.correct(example, example.answer)
            assert not any(task.correct(example, play) for play in task.wrong_play(example, seed=0))
            assert task.score(example, "straight ahead").reward == 0.0
        training = {example.id for example in task.draw(200, seed=(0,))}
        assert not training & {example.id for example in task.held_out(100)}


def test_an_episode_returns_the_score_of_its_moves():
    world, rng = GridWorld(3), np.random.default_rng(0)
    for seed in range(60):
        observation, _ = world.reset(seed=seed)
        assert observation.sum(axis=(1, 2)).tolist() == [1.0, 1.0, 1.0]
        cells = [tuple(np.argwhere(layer)[0].tolist()) for layer in observation]
        grid = Grid(3, wall=cells[2], goal=cells[1], agent=cells[0])
        total, moves, is_over = 0.0, "", False
        while not is_over:
            action = LETTERS.index(shortest_way(grid)[0]) if seed % 2 else int(rng.integers(4))
            moves += LETTERS[action]
            seen, reward, is_over, is_cut, info = world.step(action)
            grid, total = grid.at(grid.moved(LETTERS[action])), total + reward
            assert seen[0][grid.agent] == 1.0
        assert not is_cut
        start = Grid(3, wall=cells[2], goal=cells[1], agent=cells[0])
        assert total == reward_of(start, moves).reward
        assert info["is_success"] == (grid.agent == grid.goal)
        assert len(moves) <= STEPS * 3
        assert not seed % 2 or total == 1.0


def test_a_network_learns_the_way():
    config = control_config(
        "x",
        environment={"name": "whet.control.grid_world:GridWorld", "size": 3},
        steps=60,
        algorithm={"preset": "ppo", "gae": {"gamma": 0.95, "lam": 0.9}},
        rollout={"environments": 16, "length": 32},
        update={"epochs": 8, "minibatch": 256},
        policy={"widths": [64, 64]},
    )
    named = config.environment
    worlds = Environments(lambda: make_environment(named.name, named.options), 10)
    episodes = play(learned(config).policy, worlds, range(100))
    assert np.mean([one.success for one in episodes]) > 0.9
    assert np.mean([one.reward for one in episodes]) > 0.9
