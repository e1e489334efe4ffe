"""Lengths of completions: all alike, log-normal, or those of a run's rollouts. No torch.

A length depends on the number of its draw, of its prompt and of its place in the group alone, so a longer simulation
begins like a shorter one, and every schedule and split samples the same lengths.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp, inf, log
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from whet.errors import UserError
from whet.runs.rollout_files import RolloutFiles

MASK = 2**64 - 1
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LOG_NORMAL = "lognormal"
EXAMPLE = f"write {LOG_NORMAL}:MEDIAN:SIGMA, e.g. {LOG_NORMAL}:800:1, or the directory of a run"
MOST_ROWS = 200_000  # rollouts that are read
NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionLengths:
    """Where lengths come from; `at` takes a number in (0, 1), its place among all lengths."""

    about: str
    at: Callable[[float], float]
    longest: int

    def draw(self, draw: int, count: int, seed: int = 0) -> list[int]:
        """The lengths of `count` completions of a draw."""
        key = (seed * GOLDEN + draw * MIX_1) & MASK
        return [min(self.longest, max(1, round(self.at(uniform(key, place))))) for place in range(count)]


def uniform(key: int, place: int) -> float:
    """A number in (0, 1) for a key and a place (SplitMix64, Steele et al. 2014)."""
    z = (key + (place + 1) * GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53 + 2.0**-54


def fixed(length: int) -> CompletionLengths:
    """All completions alike."""
    return CompletionLengths(about=f"all of {length:,} tokens", at=lambda _: length, longest=length)


def log_normal(median: float, sigma: float, longest: int) -> CompletionLengths:
    """Log-normal, ended at the longest."""
    about = f"log-normal, median {median:,.0f}, sigma {sigma:g}, at most {longest:,}"
    return CompletionLengths(
        about=about, at=lambda place: exp(min(700.0, log(median) + sigma * NORMAL.inv_cdf(place))), longest=longest
    )


def recorded(lengths: Sequence[int], source: str) -> CompletionLengths:
    """Drawn from lengths that were seen."""
    ordered = sorted(lengths)
    about = f"as the {len(ordered):,} of {source}, {fmean(ordered):,.0f} on average, at most {ordered[-1]:,}"
    return CompletionLengths(about=about, at=lambda place: ordered[int(place * len(ordered))], longest=ordered[-1])


def read_lengths(text: str, longest: int) -> CompletionLengths:
    """What `--lengths` says: `lognormal:MEDIAN:SIGMA`, or a run's directory or file of rollouts."""
    kind, *numbers = text.split(":")
    if kind == LOG_NORMAL:
        try:
            median, sigma = map(float, numbers)
        except ValueError:
            raise UserError(f"--lengths {text!r} has not two numbers: {EXAMPLE}") from None
        if not (0 < median < inf and 0 <= sigma < inf):
            raise UserError(f"--lengths {text!r} has no usable median and sigma: {EXAMPLE}")
        return log_normal(median, sigma, longest)
    place = Path(text).expanduser()
    if not place.exists():
        raise UserError(f"--lengths: no file or directory {text!r}: {EXAMPLE}")
    found = (_of_file(place) if place.is_file() else _of_run(place))[-MOST_ROWS:]
    if not found:
        raise UserError(f"--lengths: {text} has no rollouts: {EXAMPLE}")
    return recorded(found, str(place))


def _of_run(directory: Path) -> list[int]:
    files = RolloutFiles(directory)
    found = [max(1, one.length) for one in files.summaries()]
    if files.problems():
        raise UserError(f"--lengths: {files.problems()[0]}: {EXAMPLE}")
    return found


def _of_file(file: Path) -> list[int]:
    """The sampled tokens of every row."""
    opened: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            return [max(1, sum(map(bool, json.loads(line)["mask"]))) for line in islice(lines, MOST_ROWS)]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"--lengths: {file} is not a file of rollouts ({what}): {EXAMPLE}") from None
