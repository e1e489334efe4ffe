"""Seeds of episodes: an episode is a function of its seed and its actions."""

from whet.streams import stream_key

SEEDS = 2**30
TRAINING, EVALUATION = 0, 1  # the last bit of a seed: no evaluation begins as a training episode did


def episode_seed(kind: int, *stream: int) -> int:
    """The seed of an episode; those for training are even, those for evaluation odd."""
    return 2 * (stream_key(stream) % SEEDS) + kind
