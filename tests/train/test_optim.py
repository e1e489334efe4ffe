"""The optimizer: schedules and steps by hand, state that survives the disk, and numbers that are none."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.contracts.fake_ranks import on_ranks
from tests.small import small_model
from whet.config import OptimizerConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.train.optimizers.optimizer import (
    NotFinite,
    descend,
    finite,
    learning_rate,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
    state_bytes,
)

ALONE = World.alone()


def rates(schedule: str, *, warmup: int, steps: int, **more: float) -> list[float]:
    config = OptimizerConfig(lr=2.0, schedule=schedule, warmup_steps=warmup, **more)  # type: ignore[arg-type]
    return [learning_rate(step, steps, config) for step in range(1, steps + 1)]


def test_schedules_by_hand() -> None:
    warm = [0.5, 1.0, 1.5, 2.0]
    assert rates("constant", warmup=4, steps=7) == [*warm, 2.0, 2.0, 2.0]
    assert rates("linear", warmup=4, steps=8) == [*warm, 2.0, 1.5, 1.0, 0.5]
    assert rates("linear", warmup=0, steps=4) == [2.0, 1.5, 1.0, 0.5]  # no step has rate 0: none is wasted
    half = math.sqrt(0.5)
    assert rates("cosine", warmup=0, steps=4) == pytest.approx([2.0, 1 + half, 1.0, 1 - half])
    assert rates("cosine", warmup=1, steps=3) == pytest.approx([2.0, 2.0, 1.0])
    assert rates("linear", warmup=9, steps=3) == pytest.approx([2 / 9, 4 / 9, 6 / 9])
    assert rates("wsd", warmup=2, steps=10, decay_share=0.4) == [1.0, 2.0, *[2.0] * 4, 2.0, 1.5, 1.0, 0.5]
    assert rates("wsd", warmup=2, steps=4, decay_share=1.0) == [1.0, 2.0, 2.0, 1.0]  # the decay follows the warm-up
    assert rates("wsd", warmup=0, steps=3, decay_share=0.0) == [2.0, 2.0, 2.0]
    assert rates("linear", warmup=0, steps=4, min_lr_share=0.5) == [2.0, 1.75, 1.5, 1.25]
    assert rates("constant", warmup=0, steps=2, min_lr_share=0.5) == [2.0, 2.0]
    assert rates("linear", warmup=0, steps=7, warmup_share=0.4) == rates("linear", warmup=3, steps=7)  # rounded up
    assert OptimizerConfig(warmup_share=0.07).warmup(100) == 7  # 0.07 · 100 is 7.000000000000001
    with pytest.raises(ValueError, match="warmup_steps and warmup_share are both set"):
        OptimizerConfig(warmup_steps=1, warmup_share=0.1)


class Two(nn.Module):
    """A matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[2.0, -3.0]]))
        self.vector = nn.Parameter(torch.tensor([4.0]))


def two() -> Any:
    return Two()


def test_matrices_decay_and_vectors_do_not() -> None:
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1, weight_decay=0.5))
    descend([(policy.matrix.sum() + policy.vector.sum()) * 0], [optimizer], ALONE, max_grad_norm=1.0)
    assert torch.allclose(policy.matrix, torch.tensor([[2.0, -3.0]]) * (1 - 0.1 * 0.5))
    assert policy.vector.item() == 4.0


def test_two_steps_of_adam_by_hand() -> None:
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1, beta1=0.9, beta2=0.95, epsilon=1e-8))
    descend([3 * policy.vector.sum()], [optimizer], ALONE, max_grad_norm=1e9)
    assert policy.vector.item() == pytest.approx(4.0 - 0.1)  # the first step has the size of the rate
    descend([-1 * policy.vector.sum()], [optimizer], ALONE, max_grad_norm=1e9)
    mean = (0.9 * 0.1 * 3 + 0.1 * -1) / (1 - 0.9**2)
    square = (0.95 * 0.05 * 9 + 0.05 * 1) / (1 - 0.95**2)
    assert policy.vector.item() == pytest.approx(3.9 - 0.1 * mean / math.sqrt(square))


def test_epsilon_by_hand() -> None:
    """The first step is rate · g / (|g| + ε)."""
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1, epsilon=3.0))
    descend([3 * policy.vector.sum()], [optimizer], ALONE, max_grad_norm=1e9)
    assert policy.vector.item() == pytest.approx(4.0 - 0.1 * 3 / (3 + 3))


@pytest.mark.parametrize(("name", "frozen"), [("matrix", "vector"), ("vector", "matrix")])
def test_only_what_is_trained_has_a_place_in_the_optimizer(name: str, frozen: str) -> None:
    policy = two()
    trained = policy.get_parameter(name)
    policy.get_parameter(frozen).requires_grad_(False)
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1))
    assert [group["params"] for group in optimizer.param_groups] == [[trained]]
    assert optimizer.param_groups[0]["fused"]
    descend([trained.sum() * 1], [optimizer], ALONE, max_grad_norm=1.0)
    assert torch.equal(policy.get_parameter(frozen), two().get_parameter(frozen))
    tensors = optimizer_tensors(optimizer, policy)
    assert tensors.keys() == {f"exp_avg/{name}", f"exp_avg_sq/{name}", f"step/{name}"}
    again = make_optimizer(policy, OptimizerConfig(lr=0.1))
    restore_optimizer(again, policy, tensors)
    assert list(again.state) == [trained]


def test_state_goes_where_steps_are_taken() -> None:
    """To the weights, or to where they come from when they are needed."""
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1))
    descend([policy.matrix.sum() + policy.vector.sum()], [optimizer], ALONE, max_grad_norm=1.0)
    tensors = optimizer_tensors(optimizer, policy)
    away = two().to("meta")
    for model, device, expected in ((away, None, "meta"), (two(), torch.device("meta"), "meta"), (two(), None, "cpu")):
        restored = torch.optim.SGD(model.parameters(), lr=0.1)
        restore_optimizer(restored, model, tensors, device)
        assert {tensor.device.type for state in restored.state.values() for tensor in state.values()} == {expected}


def test_ranks_follow_the_sum_of_their_gradients() -> None:
    """3 on the one and 1 on the other: one of the ranks alone would go another way."""

    def work(world: World) -> tuple[Any, list[float]]:
        policy = two()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
        loss = 3 * policy.vector.sum() if world.rank else policy.vector.sum()
        return descend([loss], [optimizer], world, max_grad_norm=1e9), [
            policy.vector.item(),
            *policy.matrix[0].tolist(),
        ]

    for descent, found in on_ranks(2, work):
        assert (descent.loss, descent.grad_norms) == (16.0, (4.0,))
        assert found == [4.0 - 0.5 * 4, 2.0, -3.0]


def test_the_rate_reaches_every_parameter() -> None:
    optimizer = make_optimizer(two(), OptimizerConfig(lr=0.1))
    set_learning_rate(optimizer, 0.025)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.025]


def test_losses_are_added_and_the_norm_is_that_before_clipping() -> None:
    policy = two()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    losses = [3 * policy.matrix[0, 0], 4 * policy.vector.sum(), 0 * policy.matrix.sum()]
    descent = descend(losses, [optimizer], ALONE, max_grad_norm=1.0)
    assert descent is not None
    assert descent.loss == pytest.approx(3 * 2 + 4 * 4)
    assert descent.grad_norms == pytest.approx((5.0,))
    assert policy.matrix[0, 0].item() == pytest.approx(2 - 3 / 5, abs=1e-5)
    assert policy.vector.item() == pytest.approx(4 - 4 / 5, abs=1e-5)


@pytest.mark.parametrize(("limit", "factor"), [(5.0, 1.0), (5.5, 1.0), (2.5, 0.5)])
def test_only_a_gradient_above_the_limit_is_scaled(limit: float, factor: float) -> None:
    """3 and 4 make a norm of 5; below the limit no bit of a gradient changes."""
    policy = two()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    descent = descend([3 * policy.matrix[0, 0] + 4 * policy.vector.sum()], [optimizer], ALONE, max_grad_norm=limit)
    assert descent is not None
    assert descent.grad_norms == (5.0,)
    found = [policy.matrix.grad[0, 0].item(), policy.vector.grad[0].item()]
    assert found == ([3.0, 4.0] if factor == 1 else pytest.approx([1.5, 2.0], rel=1e-6))


def test_each_optimizer_is_clipped_by_itself() -> None:
    policy = two()
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in policy.parameters()]
    descent = descend([3 * policy.matrix[0, 0] + 0.5 * policy.vector.sum()], optimizers, ALONE, max_grad_norm=1.0)
    assert descent is not None
    assert descent.grad_norms == pytest.approx((3.0, 0.5))
    assert policy.matrix[0, 0].item() == pytest.approx(2 - 1, abs=1e-5)  # clipped to the norm
    assert policy.vector.item() == pytest.approx(4 - 0.5)  # short enough, whatever the other does


def test_no_step_is_taken_unless_it_is_asked_to_proceed() -> None:
    """It is asked once, when every loss has been computed."""
    policy, events = two(), []

    def losses() -> Iterator[Tensor]:
        for index in range(2):
            events.append(f"loss {index}")
            yield policy.vector.sum() * 1

    def never() -> bool:
        events.append("asked")
        return False

    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1))
    assert descend(losses(), [optimizer], ALONE, max_grad_norm=1.0, proceed=never) is None
    assert events == ["loss 0", "loss 1", "asked"]
    assert policy.vector.item() == 4.0
    assert not optimizer.state
    assert descend(losses(), [optimizer], ALONE, max_grad_norm=1.0, proceed=lambda: True) is not None
    assert policy.vector.item() == pytest.approx(3.9)


def test_an_optimizer_that_never_moved_has_nothing_to_restore() -> None:
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1))
    assert optimizer_tensors(optimizer, policy) == {}
    restore_optimizer(optimizer, policy, {})
    assert not optimizer.state


def test_one_micro_batch_is_in_memory_at_a_time() -> None:
    policy, events = two(), []

    def losses() -> Iterator[Tensor]:
        for index in range(3):
            events.append(f"compute {index}")
            loss = policy.vector.sum() * 1
            loss.register_hook(lambda _, index=index: events.append(f"backward {index}"))
            yield loss

    descend(losses(), [torch.optim.SGD(policy.parameters(), lr=0.1)], ALONE, max_grad_norm=1.0)
    assert events == [f"{what} {index}" for index in range(3) for what in ("compute", "backward")]


def test_the_sum_of_losses_is_exact_and_one_without_a_trained_token_is_part_of_it() -> None:
    """2²⁴ + 1 is no float32."""
    policy = two()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    descent = descend([torch.tensor(2.0**24), policy.vector.sum() * 0 + 1], [optimizer], ALONE, max_grad_norm=1.0)
    assert descent is not None
    assert descent.loss == 2**24 + 1


def test_an_old_gradient_takes_no_memory_while_losses_are_computed() -> None:
    policy = two()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    descend([policy.vector.sum() * 1], [optimizer], ALONE, max_grad_norm=1.0)

    def losses() -> Iterator[Tensor]:
        assert [parameter.grad for parameter in policy.parameters()] == [None, None]
        yield policy.vector.sum() * 1

    assert descend(losses(), [optimizer], ALONE, max_grad_norm=1.0) is not None


def test_no_losses_are_a_gradient_of_zero() -> None:
    """A rank without rows takes part in the sum of the others with zeros."""
    policy = two()
    optimizer = make_optimizer(policy, OptimizerConfig(lr=0.1))
    descent = descend([], [optimizer], ALONE, max_grad_norm=1.0)
    assert descent is not None
    assert descent.grad_norms == (0.0,)
    assert policy.vector.item() == 4.0
    assert len(optimizer.state) == 2


def trained(policy: Any, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        tokens = torch.arange(12).view(2, 6) + step
        states = policy.hidden(tokens, torch.tensor([6, 6]))
        descend([policy.head(states).log_softmax(-1)[..., 3].sum()], [optimizer], ALONE, max_grad_norm=1.0)


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit", "lion", "muon"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])  # gpt2 ties two parameters
def test_state_survives_the_disk_bit_for_bit(name: str, family: str, tmp_path: Path) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    config = OptimizerConfig(name=name, lr=1e-2, weight_decay=0.1)  # type: ignore[arg-type]
    policy, _ = small_model(family)
    optimizer = make_optimizer(policy, config)
    trained(policy, optimizer, 3)
    save_file(optimizer_tensors(optimizer, policy), tmp_path / "optimizer.safetensors")
    again = copy.deepcopy(policy)
    restored = make_optimizer(again, config)
    restore_optimizer(restored, again, load_file(tmp_path / "optimizer.safetensors"))
    fresh = copy.deepcopy(policy)
    trained(policy, optimizer, 2)
    trained(again, restored, 2)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))
    one, two = optimizer_tensors(optimizer, policy), optimizer_tensors(restored, again)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert {float(t) for name, t in one.items() if name.startswith("step/")} == (set() if name == "lion" else {5.0})
    bytes_of_state = sum(t.numel() * t.element_size() for key, t in one.items() if not key.startswith("step/"))
    if name != "adamw_8bit":  # whose small tensors stay in fp32, and whose scales come on top
        assert bytes_of_state == state_bytes(policy, config)
    # Without the state the weights would differ: the comparison can fail.
    trained(fresh, make_optimizer(fresh, config), 2)
    assert not all(torch.equal(a, b) for a, b in zip(policy.parameters(), fresh.parameters(), strict=True))


def test_the_state_of_another_model_is_refused() -> None:
    policy, _ = small_model()
    optimizer = make_optimizer(policy, OptimizerConfig())
    trained(policy, optimizer, 1)
    tensors = optimizer_tensors(optimizer, policy)
    wider, _ = small_model(width=64)
    with pytest.raises(UserError, match=r"does not fit parameter .*: it is of another model"):
        restore_optimizer(make_optimizer(wider, OptimizerConfig()), wider, tensors)
    name, _ = next(iter(policy.named_parameters()))
    del tensors[f"exp_avg_sq/{name}"]
    with pytest.raises(UserError, match=f"does not fit parameter '{name}'"):
        restore_optimizer(make_optimizer(policy, OptimizerConfig()), policy, tensors)


def test_a_gradient_that_is_no_number_is_not_followed() -> None:
    policy = two()
    with torch.no_grad():
        policy.vector.fill_(0.0)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    with pytest.raises(NotFinite, match="the loss is 0 but the norm of its gradient is inf"):
        descend([policy.vector.sum().sqrt() + 0 * policy.matrix.sum()], [optimizer], ALONE, max_grad_norm=1.0)
    with pytest.raises(NotFinite, match=r"^the loss is nan$"):
        descend([policy.vector.sum() * float("nan")], [optimizer], ALONE, max_grad_norm=1.0)
    with pytest.raises(NotFinite, match=r"^the loss is inf$"):  # though its gradient is a number
        descend([policy.vector.sum() + float("inf")], [optimizer], ALONE, max_grad_norm=1.0)
    assert policy.vector.item() == 0.0
    assert policy.matrix.tolist() == [[2.0, -3.0]]


def test_a_bad_loss_carries_what_it_was_computed_from() -> None:
    good = torch.tensor(1.0)
    assert finite(good, tokens=torch.tensor([1])) is good
    with pytest.raises(NotFinite, match="the loss is inf") as failure:
        finite(torch.tensor(float("inf"), requires_grad=True), tokens=torch.tensor([[1, 2]]))
    assert failure.value.culprit == {"tokens": [[1, 2]]}


def step_along_noise(policy: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Steps whose gradients do not depend on the weights: otherwise a rounding would grow from step to step."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in policy.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_fused_steps_are_those_of_plain_adamw_and_go_on_from_its_state() -> None:
    """The plain optimizer is the oracle, and its state is what older checkpoints hold."""
    config = OptimizerConfig(lr=1e-2, weight_decay=0.1)
    oracle, _ = small_model()
    policy, resumed = copy.deepcopy(oracle), copy.deepcopy(oracle)
    groups = [
        {"params": [p for p in oracle.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in oracle.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(
        groups, lr=1e-2, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=False, foreach=False
    )
    step_along_noise(oracle, plain, range(3))
    step_along_noise(policy, make_optimizer(policy, config), range(3))
    for ours, theirs in zip(policy.parameters(), oracle.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    resumed.load_state_dict(oracle.state_dict())
    again = make_optimizer(resumed, config)
    saved = {name: tensor.clone() for name, tensor in optimizer_tensors(plain, oracle).items()}
    restore_optimizer(again, resumed, saved)
    step_along_noise(resumed, again, range(3, 5))
    step_along_noise(oracle, plain, range(3, 5))
    for ours, theirs in zip(resumed.parameters(), oracle.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
