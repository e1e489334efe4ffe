"""Contract 4 for processes that train together: whichever of them is killed, the others end and the run goes on."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.contracts.command import Process, Zygote, as_rank, only_run, together, write_recipe
from tests.contracts.ranks import MARK, lost_the_other, nothing_left_of, recipe_with_workers
from tests.contracts.test_resumption import differing, outcome
from whet.distributed.world import TIMEOUT
from whet.runs.layout import by_step

STEPS = 6
KILL, TERM, STOP = "SIGKILL", "SIGTERM", "SIGSTOP"


@pytest.fixture(scope="module")
def recipe(beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ranks")
    return write_recipe(directory / "rl.yaml", recipe_with_workers(beginner, directory, steps=STEPS))


@pytest.fixture(scope="module")
def whole(zygote: Zygote, recipe: Path) -> dict[str, bytes]:
    zygote.run_ranks(2, "train", recipe, "--runs", recipe.parent / "whole")
    return outcome(only_run(recipe.parent / "whole"))


def go(zygote: Zygote, recipe: Path, root: Path, where: str, **environment: str) -> list[Process]:
    """Starts both ranks, or resumes them; `where` they send themselves a signal."""
    begun = root.is_dir() and any(root.iterdir())
    arguments = [only_run(root), "--resume"] if begun else [recipe, "--runs", root]
    return zygote.start_ranks(
        2, "train", *arguments, environment={MARK: root.parent.name, **environment}, hooks={"signal_in": where}
    )


def kill_one(zygote: Zygote, recipe: Path, root: Path, rank: int, where: str) -> None:
    ranks = go(zygote, recipe, root, f"{rank} {KILL} {where}")
    assert ranks[rank].wait() == -signal.SIGKILL, ranks[rank].said()
    lost_the_other(ranks[1 - rank], only_run(root), rank)
    nothing_left_of(root.parent.name)


def test_ranks_that_are_killed_one_by_one_and_interrupted_change_no_byte(
    zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    kill_one(zygote, recipe, root, 1, "3 whet.distributed.world:World.sum_gradients")
    assert list(by_step(only_run(root) / "checkpoints")) == [2]
    kill_one(
        zygote, recipe, root, 0, "1 whet.train.session.checkpoint_files:optimizer_items"
    )  # in the middle of a checkpoint
    assert list((only_run(root) / "checkpoints").glob(".tmp-*"))
    ranks = go(zygote, recipe, root, f"1 {TERM} 2 whet.train.online.rollouts:sample")
    assert [rank.wait() for rank in ranks] == [130, 130], [rank.said() for rank in ranks]
    saved = list(by_step(only_run(root) / "checkpoints"))[-1]
    assert saved == 4  # by all ranks after the step in which one was asked
    zygote.run_ranks(2, "train", only_run(root), "--resume")
    assert differing(outcome(only_run(root)), whole) == []


MOMENTS = {
    "at the first meeting": ("0", "1 whet.runs.directory:RunDirectory.create"),
    "loading the model": ("1", "1 whet.train.online.loop:build_learner"),
    "in the first evaluation": ("1", "1 whet.train.session.session:evaluate_held_out"),
    "in the first best model": ("0", "1 whet.runs.checkpoints:_seal"),
    "in a rollout": ("0", "3 whet.train.online.rollouts:sample"),
    "grading": ("1", "3 whet.rollout:Scoring.groups"),
    "in an update": ("0", "3 whet.distributed.world:World.sum_gradients"),
    "while the writer saves": ("1", "1 whet.train.session.session:Session._save"),
    "in a later evaluation": ("0", "2 whet.train.session.session:evaluate_held_out"),
    "both in a rollout": ("01", "5 whet.train.online.rollouts:sample"),
    "both at the end": ("01", "1 whet.train.session.session:Session._finish"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_a_kill_at_this_moment_changes_no_byte(
    name: str, zygote: Zygote, recipe: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """And another one, of the writer, while the run is being rewound for going on."""
    root, (killed, where) = tmp_path / "runs", MOMENTS[name]
    ranks = go(zygote, recipe, root, f"{killed} {KILL} {where}")
    codes = [rank.wait() for rank in ranks]
    assert codes == [-9 if str(rank) in killed else 1 for rank in (0, 1)], [rank.said() for rank in ranks]
    assert not any("Traceback" in rank.said() for rank in ranks)
    nothing_left_of(tmp_path.name)
    if root.is_dir() and any(root.iterdir()):
        kill_one(zygote, recipe, root, 0, "1 whet.runs.logs:cut_log")
    last = go(zygote, recipe, root, f"2 {KILL} 1 whet.train.online.rollouts:sample")
    assert [rank.wait() for rank in last] == [0, 0], [rank.said() for rank in last]
    assert differing(outcome(only_run(root)), whole) == []


def test_a_rank_that_falls_silent_is_waited_for_as_long_as_was_said(
    zygote: Zygote, recipe: Path, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    ranks = go(zygote, recipe, root, f"1 {STOP} 1 whet.train.online.rollouts:sample", **{TIMEOUT: "1"})
    assert ranks[0].wait() == 1
    (sentence,) = [line for line in ranks[0].said().splitlines() if line.startswith("whet: ")]
    assert "step 1: rank 1 of the run did not answer within 1 s" in sentence
    assert TIMEOUT in sentence
    assert f"continue with: whet train {only_run(root)} --resume" in sentence
    assert "Traceback" not in ranks[0].said()
    os.kill(ranks[1].pid, signal.SIGCONT)  # and whoever wakes up finds that the others have left
    lost_the_other(ranks[1], only_run(root), 0)
    nothing_left_of(tmp_path.name)


@pytest.mark.slow
def test_a_rank_that_is_lost_after_the_end_loses_nothing(zygote: Zygote, recipe: Path, tmp_path: Path) -> None:
    # The first barrier is that of the checkpoint; the second is the last thing that a run does.
    hooks = {"signal_in": f"1 {KILL} 2 whet.distributed.world:World.barrier"}
    ranks = zygote.start_ranks(2, "train", recipe, "steps=1", "--runs", tmp_path / "runs", hooks=hooks)
    assert [rank.wait() for rank in ranks] == [0, -signal.SIGKILL], ranks[0].said()
    assert (only_run(tmp_path / "runs") / "final_results.json").exists()


def test_a_rank_that_nobody_joins_says_so(zygote: Zygote, recipe: Path, tmp_path: Path) -> None:
    """Each waits at a port of its own."""
    both = [
        zygote.start(
            "train", recipe, "--runs", tmp_path / "runs", environment=as_rank({**together(2), TIMEOUT: "0.5"}, rank)
        )
        for rank in (0, 1)
    ]
    for rank, alone in enumerate(both):
        assert alone.wait() == 1
        (line,) = alone.said().splitlines()
        assert line.startswith(f"whet: rank {rank} did not meet all 2 processes of the run at 127.0.0.1:")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_port_on_which_somebody_else_listens_is_not_waited_for_without_limit(
    zygote: Zygote, recipe: Path, tmp_path: Path
) -> None:
    """Torch waits for ever for the answer of whoever accepted its connection."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        taken = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": where.partition(":")[2], TIMEOUT: "0.5"}
        ranks = zygote.start_ranks(2, "train", recipe, "--runs", tmp_path / "runs", environment=taken)
        assert [rank.wait() for rank in ranks] == [2, 1], [rank.said() for rank in ranks]
    assert f"whet: {where} is in use: choose another MASTER_PORT" in ranks[0].said()
    assert ranks[1].said().startswith(f"whet: rank 1 did not meet all 2 processes of the run at {where} within 0.5 s")


def test_ranks_with_different_recipes_do_not_begin(zygote: Zygote, recipe: Path, tmp_path: Path) -> None:
    shared = together(2)
    ranks = [
        zygote.start("train", recipe, *more, "--runs", tmp_path / "runs", environment=as_rank(shared, rank))
        for rank, more in enumerate(([], ["lr=0.5", "seed=7"]))
    ]
    for rank in ranks:
        assert rank.wait() == 2
        assert rank.said().splitlines() == [
            "whet: rank 1 and rank 0 differ in seed, optimizer: start all ranks with the same command and recipe"
        ]
    assert not (tmp_path / "runs").exists()
