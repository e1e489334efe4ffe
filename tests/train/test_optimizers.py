"""Lion, Muon and weight-decay groups against their formulas in NumPy, in double precision."""

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.small import small_model
from whet.config import OptimizerConfig
from whet.errors import UserError
from whet.train.optimizers.muon import orthogonalised
from whet.train.optimizers.optimizer import hidden_matrices, make_optimizer

LR, DECAY, BETAS, EPSILON, MOMENTUM = 0.03, 0.2, (0.8, 0.9), 1e-6, 0.7
STEPS = 4


class Small(nn.Module):
    """An embedding, a wide and a tall matrix, a bias and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(6, 4)
        self.wide, self.tall = nn.Linear(5, 3), nn.Linear(3, 7, bias=False)
        self.lm_head = nn.Linear(4, 6, bias=False)


def gradients(model: nn.Module) -> list[dict[str, Any]]:
    drawn = np.random.default_rng(1)
    return [{name: drawn.normal(size=p.shape) for name, p in model.named_parameters()} for _ in range(STEPS)]


def optimized(config: OptimizerConfig) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """The weights before and after four steps, and the gradients of these."""
    model: Any = Small()
    before = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    optimizer, given = make_optimizer(model, config), gradients(model)
    for one in given:
        for name, p in model.named_parameters():
            p.grad = torch.from_numpy(one[name]).float()
        optimizer.step()
    return before, {name: p.detach().double().numpy() for name, p in model.named_parameters()}, given


def config_of(name: str, **changes: Any) -> OptimizerConfig:
    given: dict[str, Any] = {"beta1": BETAS[0], "beta2": BETAS[1], "epsilon": EPSILON, "momentum": MOMENTUM}
    return OptimizerConfig(**{"name": name, "lr": LR, "weight_decay": DECAY, **given, **changes})


def lion(p: Any, steps: list[Any], decay: float) -> Any:
    m = np.zeros_like(p)
    for g in steps:
        p = p - LR * (np.sign(BETAS[0] * m + (1 - BETAS[0]) * g) + decay * p)
        m = BETAS[1] * m + (1 - BETAS[1]) * g
    return p


def adamw(p: Any, steps: list[Any], decay: float) -> Any:
    m = v = np.zeros_like(p)
    for t, g in enumerate(steps, start=1):
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g**2
        p = p - LR * decay * p
        p = p - LR * (m / (1 - BETAS[0] ** t)) / (np.sqrt(v / (1 - BETAS[1] ** t)) + EPSILON)
    return p


def muon(p: Any, steps: list[Any], decay: float) -> Any:
    """By singular values: Newton–Schulz acts on each of them and leaves the singular vectors alone."""
    m = np.zeros_like(p)
    for g in steps:
        m = MOMENTUM * m + g
        u, s, vt = np.linalg.svd(g + MOMENTUM * m, full_matrices=False)
        s = s / np.sqrt((s**2).sum())
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        p = p - LR * (0.2 * np.sqrt(max(p.shape)) * (u * s) @ vt + decay * p)
    return p


MATRICES = {"embed.weight", "wide.weight", "tall.weight", "lm_head.weight"}
HIDDEN = {"wide.weight", "tall.weight"}


@pytest.mark.parametrize("where", ["matrices", "hidden", "all"])
@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_four_steps_are_those_of_the_formulas(name: str, where: str) -> None:
    before, after, given = optimized(config_of(name, weight_decay_on=where))
    decayed = {"matrices": MATRICES, "hidden": HIDDEN, "all": set(before)}[where]
    for key, start in before.items():
        rule: Any = {"adamw": adamw, "lion": lion, "muon": muon if key in HIDDEN else adamw}[name]
        expected = rule(start, [one[key] for one in given], DECAY if key in decayed else 0.0)
        assert np.allclose(after[key], expected, atol=1e-5), key
        assert not np.allclose(after[key], start, atol=1e-3)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((8, 8), (4, 9), (9, 4)):
        found = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(3))))
        assert bool(((found > 0.6) & (found < 1.3)).all())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_hidden_matrices_are_those_of_the_blocks(family: str) -> None:
    policy, _ = small_model(family)
    hidden = {id(p) for p in hidden_matrices(policy)}
    matrices = {name for name, p in policy.named_parameters() if p.dim() == 2}
    found = {name for name, p in policy.named_parameters() if id(p) in hidden}
    assert found == {name for name in matrices if ".layers." in name} != set()


def test_the_packages_of_other_optimizers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"adamw_8bit needs the package bitsandbytes.*pip install bitsandbytes"):
        make_optimizer(Small(), config_of("adamw_8bit"))


def test_eight_bit_adamw_is_near_to_adamw() -> None:
    pytest.importorskip("bitsandbytes")
    policy, _ = small_model()
    models = {name: copy.deepcopy(policy) for name in ("adamw", "adamw_8bit")}
    for name, model in models.items():
        optimizer = make_optimizer(model, config_of(name))
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
    for p, exact, quantised in zip(policy.parameters(), *(m.parameters() for m in models.values()), strict=True):
        assert (exact - quantised).norm() < 0.1 * (exact - p).norm()
