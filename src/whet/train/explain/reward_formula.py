"""Reward shaping as formulas, for explanations."""

from __future__ import annotations

from whet.algorithms.cells import options, terms
from whet.algorithms.shaping import standard
from whet.algorithms.table import Algorithm
from whet.config import OnlineConfig, RewardConfig

SPANS = {"batch": "the step", "running": "all steps so far"}


def reward_lines(config: OnlineConfig, algorithm: Algorithm, kl_weight: str) -> list[str]:
    """R_i and r_t; nothing where the advantage sees the score itself. `kl_weight` is empty without a KL."""
    paid = kl_weight if algorithm.kl_place == "reward" else ""
    shaped = shaped_reward(config.reward, config.rollout.max_tokens)
    lines = []
    if "token_rewards" in terms(algorithm.advantage):
        less = f", less {paid}·(d) on every token" if paid else ""
        lines.append(f"r_t = R_i on the last token, 0 before{less}")
        paid = ""
    if paid:
        shaped += f" − {paid}·Σ_t (d)"
    if shaped != "score_i":
        lines.append(f"R_i = {shaped}")
    if config.reward.normalize != "none":
        lines.append(f"mean and std over the rewards of {SPANS[config.reward.normalize]}")
    if config.reward.functions:
        parts = (f"{function.weight:g}·{function.use}" for function in config.reward.functions)
        lines.append(f"score_i = {' + '.join(parts)}")
    if "T_i" in shaped:
        lines.append("T_i tokens of rollout i")
    if "history" in terms(algorithm.advantage):
        lines.append("b = 0 in the first step")
    return lines


def shaped_reward(reward: RewardConfig, max_tokens: int) -> str:
    """Penalties for length, clipping, normalisation, in the order in which they happen."""
    text = "score_i"
    if reward.overlong_tokens and reward.overlong_penalty:
        ramp = f"clip(({max_tokens - reward.overlong_tokens} − T_i)/{reward.overlong_tokens}, −1, 0)"
        text += f" + {reward.overlong_penalty:g}·{ramp}"
    if reward.length_penalty:
        text += f" − {reward.length_penalty:g}·T_i"
    if reward.clip is not None:
        low, high = (f"{bound:g}".replace("-", "−") for bound in reward.clip)
        text = f"clip({text}, {low}, {high})"
    if reward.normalize != "none":
        text = f"({text} − mean) / (std + {options(standard)['epsilon']:g})"
    return text
