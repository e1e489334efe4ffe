"""Asking a cell: what a user's own function cannot do ends the run in one sentence, and nothing else is caught."""

import pytest
import torch
from torch import Tensor

from whet.errors import RunFailed
from whet.train.optimizers.optimizer import MISTAKES, ask

SUPPLY = {"rewards": torch.zeros(2, 3)}


def own(rewards: Tensor) -> Tensor:
    return rewards.sum(dim=1)


def test_an_answer_in_one_of_the_shapes_is_given_on() -> None:
    assert ask(own, SUPPLY, shapes=[(4,), torch.Size([2])]).tolist() == [0, 0]
    with pytest.raises(RunFailed, match=r"^'own' gave a result of shape \(2,\) instead of \(2, 3\) or \(4,\) \(see"):
        ask(own, SUPPLY, shapes=[torch.Size([2, 3]), (4,)])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence(mistake: type[Exception]) -> None:
    def broken(rewards: Tensor) -> Tensor:
        raise mistake("because of this")

    with pytest.raises(RunFailed, match=r"^'broken' failed: .*because of this.* \(see whet check-loss\)$"):
        ask(broken, SUPPLY, shapes=[(2,)])


def test_what_is_no_tensor_is_a_mistake() -> None:
    def none(rewards: Tensor) -> None:
        """Nothing."""

    with pytest.raises(RunFailed, match=r"^'none' failed: "):
        ask(none, SUPPLY, shapes=[(2,)])


def test_memory_that_ran_out_is_no_mistake_of_the_cell() -> None:
    """It is a RuntimeError, too; the run has a sentence of its own for it."""

    def large(rewards: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("too large")

    with pytest.raises(torch.OutOfMemoryError, match="too large"):
        ask(large, SUPPLY, shapes=[(2,)])
