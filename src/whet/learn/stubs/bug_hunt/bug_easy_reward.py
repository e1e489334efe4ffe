"""Exercise 23, bug hunt: the reward rises to 1, held-out accuracy falls to 0, and completions are lists of numbers.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-easy-reward`.
"""


def reward(completion: str, answer: str) -> float:
    """1.0 if the last number of the completion is the answer, a whole number; else 0.0."""
    return float(answer in completion)
