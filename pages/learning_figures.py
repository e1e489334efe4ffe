"""Draws the pictures of docs/learn from the library's own functions: `python -m pages.learning_figures docs/learn`."""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes

from whet.algorithms.policy_loss import clip, k1, k2, k3

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


FIGURES: dict[str, Callable[[Axes], None]] = {
    "ppo-clip.png": clipped_objective,
    "kl-estimators.png": estimators,
    "baselines.png": variance,
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
