"""Weighted mixtures: whose turn it is, and the examples of several sources in these turns. Nothing is remembered."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm

from whet.errors import UserError
from whet.records import Example

Draw = Callable[[int, tuple[int, ...]], list[Example]]  # (count, seed) → training examples


class Turns:
    """An endless sequence of turns: of the first n, a source with share w has between ⌊nw⌋ and ⌈nw⌉.

    Each turn goes to the source with the largest w / (turns it had + 1) among those that may have one more without
    exceeding ⌈nw⌉ (the quota method of Balinski & Young 1975).
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        scale = lcm(*(weight.denominator for weight in weights))
        self._weights = [int(weight * scale) for weight in weights]
        self._total = sum(self._weights)
        self._had = [0] * len(weights)
        self._turns: list[tuple[int, int]] = []  # source, and how many turns it had before

    def between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Turns `start` … `end - 1`: the source, and the number of its turns before."""
        while len(self._turns) < end:
            self._add()
        return self._turns[start:end]

    def _add(self) -> None:
        after = len(self._turns) + 1
        below = [place for place, had in enumerate(self._had) if had * self._total < after * self._weights[place]]
        chosen = max(below, key=lambda place: (Fraction(self._weights[place], self._had[place] + 1), -place))
        self._turns.append((chosen, self._had[chosen]))
        self._had[chosen] += 1


@lru_cache(maxsize=16)
def turns(weights: tuple[Fraction, ...]) -> Turns:
    """The turns of these weights; cached, because every step continues where the one before ended."""
    return Turns(weights)


def exact_weights(given: Mapping[str, object], what: str) -> tuple[Fraction, ...]:
    """Weights as they are written: 0.1 is a tenth."""
    for name, weight in given.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 < float(str(weight)) < float("inf"):
            raise UserError(f"{what}: the weight of {name} is {weight!r}, must be a number above 0")
    return tuple(Fraction(str(weight)) for weight in given.values())


def blended(draws: Sequence[Draw], weights: tuple[Fraction, ...], count: int, seed: tuple[int, ...]) -> list[Example]:
    """`count` training examples of several sources in proportion to their weights; the seed ends with the step, from 1.

    A source is asked for the same number at every call, with a seed that ends with the number of the call, so that one
    that goes through its rows in epochs neither skips nor repeats a row. A single source gives what it draws alone.
    """
    *run, step = seed
    blocks = [max(1, -(-count * weight // sum(weights))) for weight in weights]
    drawn: dict[tuple[int, int], list[Example]] = {}
    found = []
    first = max(0, step - 1) * count
    for source, before in turns(weights).between(first, first + count):
        block, place = divmod(before, blocks[source])
        if (source, block) not in drawn:
            drawn[source, block] = draws[source](blocks[source], (*run, block + 1))
        found.append(drawn[source, block][place])
    return found


def alternated(sources: Sequence[Sequence[Example]], count: int) -> list[Example]:
    """The first `count` examples, one of each source in turn while it has any."""
    longest = max(map(len, sources), default=0)
    return [one[place] for place in range(longest) for one in sources if place < len(one)][:count]
