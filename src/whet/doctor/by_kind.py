"""Causes of symptoms that every loop can have, by what a run trains: an offline one has no rewards and no groups."""

from collections.abc import Mapping

from whet.doctor.settings import Kind, Settings

ACTING = ("control", "off_policy")  # loops of policies in environments: no prompts, no sampling of tokens

NOT_FINITE: Mapping[Kind, tuple[str, ...]] = {
    "online": ("learning-rate-too-high", "reward-scale"),
    "sft": ("learning-rate-too-high", "own-loss"),
    "preference": ("learning-rate-too-high", "own-loss"),
    "reward": ("learning-rate-too-high", "own-loss"),
}
ZERO_GRADIENT: Mapping[Kind, tuple[str, ...]] = {
    "online": ("constant-reward", "prompts-too-hard", "prompts-too-easy", "temperature-too-low"),
    "sft": ("no-trained-tokens", "own-loss", "overfitting"),
    "preference": ("nothing-to-compare", "loss-satisfied", "own-loss"),
    "reward": ("nothing-to-compare", "loss-satisfied", "own-loss"),
}


def of_lost_numbers(settings: Settings) -> tuple[str, ...]:
    """Of a loss or gradient that is not finite."""
    return NOT_FINITE[settings.kind]


def of_zero_gradient(settings: Settings, *, is_never_right: bool) -> tuple[str, ...]:
    if settings.get("loop") in ACTING:
        return ("constant-reward",)
    if settings.kind == "online" and is_never_right:
        return ("prompts-too-hard", "constant-reward", "temperature-too-low")
    return ZERO_GRADIENT[settings.kind]
