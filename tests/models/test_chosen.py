"""Log-probs and entropies of chosen tokens with a gradient that is written out, against fp64 and autograd."""

import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.small import small_model
from whet.models import logprobs as logprobs_module
from whet.models import logprobs as module
from whet.models.logprobs import chosen_logprobs, read_tokens
from whet.records import Sampling

ROWS, WIDTH, VOCABULARY = 13, 6, 17
WHOLE = {"CPU_CHUNK": 2**24, "CPU_KEPT": 2**27, "LEAST_ROWS": 512}
FOURS = {"CPU_CHUNK": 4 * VOCABULARY, "LEAST_ROWS": 1}  # 4 + 4 + 4 + 1 rows
WAYS = {
    "whole, kept": WHOLE,
    "whole, again": WHOLE | {"CPU_KEPT": 0},
    "chunks, kept": WHOLE | FOURS,
    "chunks, again": WHOLE | FOURS | {"CPU_KEPT": ROWS * VOCABULARY - 1},
    "least rows": WHOLE | {"CPU_CHUNK": 1, "LEAST_ROWS": 5},  # 5 + 5 + 3
}
PULLS = {"log-probs": (1, 0), "entropies": (0, 1), "both": (1, 1)}


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(module, name, value)
    return str(request.param)


def scene(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """fp32 states and head of a peaked distribution, and ids."""
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(rows, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    targets = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    return states.requires_grad_(), weight.requires_grad_(), targets


def oracle(states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Softmax and entropy written out row by row; differentiable by autograd alone."""
    logprobs, entropies = [], []
    for state, target in zip(states, targets.tolist(), strict=True):
        scaled = torch.stack([(state * row).sum() / temperature for row in weight])
        powers = (scaled - scaled.max().detach()).exp()
        chances = powers / powers.sum()
        logprobs.append(chances[target].log())
        entropies.append(-(chances * chances.log()).sum())
    return torch.stack(logprobs), torch.stack(entropies)


def pulls(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """How much each log-prob and each entropy weighs in a loss: of both signs, one of them 0."""
    generator = torch.Generator().manual_seed(9)
    first, second = torch.randn(rows, generator=generator), torch.randn(rows, generator=generator)
    first[1] = second[2] = 0
    return first, second


def loss_of(found: tuple[Tensor, Tensor], weights: tuple[int, int]) -> Tensor:
    of_logprobs, of_entropies = pulls(len(found[0]))
    total = torch.zeros((), dtype=found[0].dtype)
    if weights[0]:
        total = total + (found[0] * of_logprobs).sum()
    if weights[1]:
        total = total + (found[1] * of_entropies).sum()
    return total


def exact(temperature: float, weights: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, entropies and the gradients in states and head, in fp64."""
    states, weight, targets = scene()
    x, w = (t.detach().double().requires_grad_() for t in (states, weight))
    logprobs, entropies = oracle(x, w, targets, temperature)
    of_states, of_weight = torch.autograd.grad(loss_of((logprobs, entropies), weights), (x, w))
    return logprobs, entropies, of_states, of_weight


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().double() - wanted.detach()).norm() / wanted.detach().norm())


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
@pytest.mark.parametrize("weights", PULLS.values(), ids=PULLS)
def test_values_and_gradients_are_those_of_the_oracle(way: str, temperature: float, weights: tuple[int, int]) -> None:
    states, weight, targets = scene()
    found = chosen_logprobs(states, weight, targets, temperature)
    gradients = torch.autograd.grad(loss_of(found, weights), (states, weight))
    wanted = exact(temperature, weights)
    assert found[0].dtype == found[1].dtype == torch.float32
    for one, other in zip((*found, *gradients), wanted, strict=True):
        assert apart(one, other) < 1e-5


def test_the_oracle_agrees_with_small_differences() -> None:
    """So that the two do not share a mistake of autograd's."""
    states, weight, targets = scene(rows=3)
    x, w = (t.detach().double().requires_grad_() for t in (states, weight))
    assert torch.autograd.gradcheck(lambda a, b: loss_of(oracle(a, b, targets, 0.7), (1, 1)), (x, w))


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_only_the_gradient_that_is_wanted(way: str, wanted: tuple[bool, bool]) -> None:
    states, weight, targets = scene()
    pair = states.requires_grad_(wanted[0]), weight.requires_grad_(wanted[1])
    loss_of(chosen_logprobs(*pair, targets, 0.7), (1, 1)).backward()
    for tensor, is_wanted, gradient in zip(pair, wanted, exact(0.7, (1, 1))[2:], strict=True):
        if is_wanted:
            assert tensor.grad is not None
            assert apart(tensor.grad, gradient) < 1e-5
        else:
            assert tensor.grad is None


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_graph_can_be_used_twice(way: str) -> None:
    """What was kept is overwritten by the first backward pass; the second computes it again."""
    states, weight, targets = scene()
    found = chosen_logprobs(states, weight, targets, 0.7)
    first, second = (
        torch.autograd.grad(loss_of(found, weights), (states, weight), retain_graph=True)
        for weights in ((1, 1), (1, 0))
    )
    for got, wanted in zip((*first, *second), (*exact(0.7, (1, 1))[2:], *exact(0.7, (1, 0))[2:]), strict=True):
        assert apart(got, wanted) < 1e-5


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_without_gradients_nothing_is_kept(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, made, alive = module._read, weakref.WeakSet(), []

    def watched(*given):
        logs = read(*given)
        made.add(logs)
        alive.append(len(made))
        return logs

    monkeypatch.setattr(module, "_read", watched)
    states, weight, targets = scene()
    with torch.no_grad():
        logprobs, entropies = chosen_logprobs(states, weight, targets, 0.7)
    assert not logprobs.requires_grad
    assert not entropies.requires_grad
    assert max(alive) <= 2  # one chunk, and the one before it until its name is taken
    assert not made
    wanted = exact(0.7, (1, 0))
    assert apart(logprobs, wanted[0]) < 1e-5
    assert apart(entropies, wanted[1]) < 1e-5


def test_no_rows() -> None:
    states, weight, targets = scene(rows=0)
    logprobs, entropies = chosen_logprobs(states, weight, targets, 1.0)
    assert logprobs.shape == entropies.shape == (0,)
    (logprobs.sum() + entropies.sum()).backward()
    assert states.grad is not None
    assert states.grad.shape == (0, WIDTH)
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize(
    "broken",
    [
        lambda right: lambda logs, targets, t, h, a, b: -right(logs, targets, t, h, a, b),
        lambda right: lambda logs, targets, t, h, a, b: right(logs, targets, t, -h, a, b),
        lambda right: lambda logs, targets, t, h, a, b: right(logs, targets, t, h, a, None if b is None else -b),
        lambda right: lambda logs, targets, t, h, a, b: right(logs, targets, 1.0, h, a, b),
        lambda right: lambda logs, targets, t, h, a, b: right(logs, (targets + 1) % VOCABULARY, t, h, a, b),
    ],
    ids=["sign", "sign of the entropy", "sign of its slope", "temperature", "another token"],
)
def test_a_broken_gradient_is_caught(broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_pull", broken(module._pull))
    states, weight, targets = scene()
    gradients = torch.autograd.grad(loss_of(chosen_logprobs(states, weight, targets, 0.7), (1, 1)), (states, weight))
    for got, wanted in zip(gradients, exact(0.7, (1, 1))[2:], strict=True):
        assert apart(got, wanted) > 1e-2


# --- who takes it


class Scaled(nn.Linear):
    """A head that is more than a product."""

    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, 20, (3, 9), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([9, 6, 3])
    mask = (torch.arange(9) >= 1) & (torch.arange(9) < lengths[:, None])
    return tokens, lengths, mask


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, True),
        ({"temperature": 0.6}, True),
        ({"stop": ("x",)}, True),
        ({"top_k": 3}, False),
        ({"top_p": 0.9}, False),
        ({"min_p": 0.1}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("head", ["tied", "linear", "more"])
def test_it_is_taken_for_a_plain_head_and_a_whole_distribution(settings, taken, head, monkeypatch) -> None:
    model, _ = small_model("gpt2" if head == "tied" else "llama")
    if head == "tied":
        assert model.lm_head is None
    if head == "more":
        more = Scaled(model.config.width, model.vocab_size, bias=False)
        more.weight = model.lm_head.weight
        model.lm_head = more
    calls = []
    monkeypatch.setattr(
        logprobs_module, "chosen_logprobs", lambda *given: calls.append(given) or chosen_logprobs(*given)
    )
    reading = read_tokens(model, *sequences(), Sampling(max_tokens=1, **settings))
    assert bool(calls) == (taken and head != "more")
    (reading.logprobs.sum()).backward()
    weight = model.model.embed_tokens.weight if head == "tied" else model.lm_head.weight
    assert bool(weight.grad.any())


@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_both_routes_agree(entropy_gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = small_model()
    tokens, lengths, mask = sequences()
    results = []
    for weight in (type(model).head_weight, property(lambda self: None)):
        monkeypatch.setattr(type(model), "head_weight", weight)
        model.zero_grad()
        sampling = Sampling(max_tokens=1, temperature=0.8)
        reading = read_tokens(model, tokens, lengths, mask, sampling, entropy_gradient=entropy_gradient)
        assert reading.entropies.requires_grad == entropy_gradient
        ((reading.logprobs + 0.3 * reading.entropies) * torch.arange(27).view(3, 9)).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((reading.logprobs.detach(), reading.entropies.detach(), gradient))
    for one, other in zip(*results, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-5
