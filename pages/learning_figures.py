"""Draws the pictures of docs/learn from the library's own functions: `python -m pages.learning_figures docs/learn`."""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes

from whet.algorithms.policy_loss import clip, k1, k2, k3
from whet.algorithms.preference.losses import dpo, hinge, ipo
from whet.evaluate.statistics import best_of_n, best_of_n_kl, pass_at_k

SIZE = (5.2, 3.0)  # inches


def clipped_objective(axes: Axes) -> None:
    """What PPO maximises for one token, against the ratio."""
    ratio = torch.linspace(0.4, 1.6, 241)
    for advantage, label in ((1.0, "A = +1"), (-1.0, "A = −1")):
        objective = -clip(ratio.log(), torch.zeros(()), torch.tensor(advantage))
        axes.plot(ratio, objective, label=label)
    axes.axvspan(0.8, 1.2, color="0.9", label="1 ± ε")
    axes.set(xlabel="ρ = π/π_old", ylabel="min(ρA, clip(ρ)A)")


def estimators(axes: Axes) -> None:
    """The KL estimators of one token, and the one with its exponential the wrong way round."""
    d = torch.linspace(-2.5, 2.5, 201)
    zero = torch.zeros(())
    for name, values in (("k1", k1(d, zero)), ("k2", k2(d, zero)), ("k3", k3(d, zero))):
        axes.plot(d, values, label=name)
    axes.plot(d, torch.expm1(d) - d, "--", color="0.5", label="wrong k3")
    axes.set(xlabel="d = log π − log ref", ylabel="nats", ylim=(-2.5, 7))


def variance(axes: Axes) -> None:
    """The variance of the policy gradient's estimate on a bandit of three actions, against the baseline."""
    logits, rewards = torch.tensor([0.5, -0.2, 1.1]), torch.tensor([1.0, 4.0, 2.0])
    probabilities = logits.softmax(0)
    scores = torch.eye(3) - probabilities
    baselines = torch.linspace(-1, 5, 121)
    estimates = (rewards - baselines[:, None])[:, :, None] * scores
    means = (probabilities[:, None] * estimates).sum(1)
    spread = (probabilities * estimates.square().sum(2)).sum(1) - means.square().sum(1)
    axes.plot(baselines, spread)
    axes.axvline(float(probabilities @ rewards), color="0.5", linestyle="--", label="mean reward")
    axes.set(xlabel="baseline", ylabel="variance", ylim=(0, None))


SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of best-of-N


def choice(axes: Axes) -> None:
    """What best-of-N is worth with a score that is the value, the value with noise, and noise."""
    torch.manual_seed(0)
    values = torch.randn(2000)
    noise = torch.randn(2000)
    for score, label in ((values, "by the value"), (values + noise, "by a noisy score"), (noise, "by noise")):
        gains = [best_of_n(score.tolist(), values.tolist(), n) for n in SIZES]
        axes.plot(SIZES, gains, marker=".", label=label)
    axes.set(xlabel="N", ylabel="value of what is chosen", xscale="log")


def goodhart(axes: Axes) -> None:
    """Best-of-N by a score that overrates one answer in a hundred: docs/learn/19-over-optimisation.md."""
    torch.manual_seed(0)
    value = torch.randn(2000)
    flawed = torch.rand(2000) < 0.01
    proxy = (value + 0.5 * torch.randn(2000) + 4.0 * flawed).tolist()
    distances = [best_of_n_kl(n) ** 0.5 for n in SIZES]
    axes.plot(distances, [best_of_n(proxy, proxy, n) for n in SIZES], marker=".", label="proxy")
    gold = (value - 2.0 * flawed).tolist()
    axes.plot(distances, [best_of_n(proxy, gold, n) for n in SIZES], marker=".", label="gold")
    axes.set(xlabel="√KL to the sampler, at most", ylabel="reward")


def coverage(axes: Axes) -> None:
    """pass@k of two models: one is right now and then everywhere, one often on half of the prompts."""
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    wide = [pass_at_k(256, 13, k) for k in sizes]
    sharp = [0.5 * pass_at_k(256, 154, k) for k in sizes]
    axes.plot(sizes, wide, marker=".", label="5 % on every prompt")
    axes.plot(sizes, sharp, marker=".", label="60 % on half of them, never on the others")
    axes.set(xlabel="k", ylabel="pass@k", xscale="log", ylim=(0, 1.4))


def relatives(axes: Axes) -> None:
    """Losses of a pair against the difference of its log ratios."""
    gap = torch.linspace(-20, 40, 241)
    zero = torch.zeros(())
    one = torch.ones(())
    axes.plot(gap, dpo(gap, zero, zero, zero, beta=0.1), label="DPO")
    axes.plot(gap, hinge(gap, zero, zero, zero, beta=0.1), label="hinge")
    axes.plot(gap, ipo(gap, zero, zero, zero, one, one, beta=0.1) / 25, label="IPO / 25")
    axes.set(xlabel="log π/ref of the chosen − of the rejected", ylabel="loss, β = 0.1", ylim=(0, 4))


FIGURES: dict[str, Callable[[Axes], None]] = {
    "ppo-clip.png": clipped_objective,
    "kl-estimators.png": estimators,
    "baselines.png": variance,
    "best-of-n.png": choice,
    "over-optimisation.png": goodhart,
    "pass-at-k.png": coverage,
    "relatives.png": relatives,
}


def main(arguments: list[str]) -> None:
    """Writes every picture to the folder."""
    matplotlib.use("Agg")
    (folder,) = map(Path, arguments)
    for name, draw in FIGURES.items():
        figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
        draw(axes)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(folder / name, dpi=110, metadata={"Software": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
