"""Rewards: one whose spread changes with what a policy says, and one without any."""


def digits(completions: list[str]) -> list[float]:
    """How many digits there are."""
    return [float(sum(c.isdigit() for c in completion)) for completion in completions]


def nothing(completions: list[str]) -> list[float]:
    """The same for all."""
    return [0.5 for _ in completions]
