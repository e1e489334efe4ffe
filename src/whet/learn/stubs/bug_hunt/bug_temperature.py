"""Exercise 22, bug hunt: at temperature 0.6 the ratio is far from 1 already before the first update.

Chapter: docs/learn/25-debugging.md. Repair the function; then `whet learn check bug-temperature`.
"""

from torch import Tensor


def sample(table: Tensor, first: int, uniforms: Tensor, temperature: float) -> tuple[list[int], list[float]]:
    """Tokens, and the log-probs with which they were drawn: one of each for every number of `uniforms`.

    Row t of `table`, (vocabulary, vocabulary), has the logits of what follows the token t. A token is drawn from
    the distribution at `temperature`: the first one up to which the probabilities add up to more than the number.
    """
    tokens, logprobs = [], []
    token = first
    for uniform in uniforms:
        probabilities = (table[token] / temperature).softmax(dim=-1)
        logits = table[token].log_softmax(dim=-1)
        token = int((probabilities.cumsum(dim=-1) > uniform).long().argmax())
        tokens.append(token)
        logprobs.append(float(logits[token]))
    return tokens, logprobs
