"""What a run records of every trained token, besides the log-prob that it was sampled with. Training reads none of it.

| column | of a token |
|---|---|
| `old_logprobs` | log-prob under the policy before the first update of the step; null if the trainer read it later |
| `reference_logprobs` | log-prob under the reference, if there is one |
| `entropies` | entropy of the policy in its place, when the trainer first read it in the step |
| `values` | the critic's value of what stands before it, before the first update |
| `advantages` | its advantage, where the tokens of a rollout have different ones |
| `ratios` | π / π_old when an update last read it, null if none did; none at all of a single update, where each is 1 |
| `clipped` | which tokens, from 0, had an advantage but no gradient of the surrogate when an update last read them |
| `top_tokens` | the likeliest tokens in its place, with `top_logprobs` and `top_pieces`, read with the entropy |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.distributed.world import World
from whet.models.logprobs import TokenReading
from whet.models.protocol import Tokenizer
from whet.records import Batch
from whet.runs.logs import Rendered
from whet.train.online.learner import Learner
from whet.train.online.number_text import number_text
from whet.train.online.old_logprobs import Frozen
from whet.train.online.sampling import SampledGroups

# Of log-probs so many that the rounding is no mismatch between sampler and trainer.
DECIMALS = {"old_logprobs": 5, "reference_logprobs": 5, "entropies": 4, "values": 4, "ratios": 4}
OF_LOGPROBS, OF_ADVANTAGES, OF_TOP = 5, 4, 4
TOP = ("top_tokens", "top_logprobs")
TOGETHER = 2**17  # tokens whose numbers are written at a time

Row = Mapping[str, Any]


class TokenRecord:
    """Filled during a step: by `annotate` before the update, and by each of its passes. Empty if it is not kept."""

    def __init__(self, learner: Learner, tokenizer: Tokenizer, step: int) -> None:
        save = learner.config.save
        self._is_kept = save.keeps_rollouts(step, learner.config.steps)
        self.top = min(save.top_tokens, learner.policy.vocab_size) if self._is_kept else 0
        self._tokenizer = tokenizer
        self._is_read = False  # before the update
        self._mask: Tensor | None = None
        self._columns: dict[str, Tensor] = {}  # (B, T) of this rank, (B, T, K) of the likeliest tokens

    def begin(self, batch: Batch, frozen: Frozen | None) -> None:
        """`frozen`: what was read of the policy before the update, if anything."""
        if not self._is_kept:
            return
        self._mask, self._is_read = batch.sequences.mask, frozen is not None
        unknown = torch.full(self._mask.shape, torch.nan, device=self._mask.device)
        self._columns = {
            "old_logprobs": unknown if frozen is None else frozen.old,
            "entropies": unknown.clone() if frozen is None else frozen.entropies,
            **({} if batch.logprobs_ref is None else {"reference_logprobs": batch.logprobs_ref}),
            **({} if batch.values is None else {"values": batch.values}),
            **({} if batch.logprobs_old is None else {"ratios": unknown.clone()}),
            "clipped": torch.zeros_like(self._mask, dtype=torch.uint8),
        }
        if self.top:
            none = torch.zeros(*self._mask.shape, self.top, device=self._mask.device)
            likeliest = (none.long(), none) if frozen is None else frozen.top
            assert likeliest is not None
            self._columns |= dict(zip(TOP, likeliest, strict=True))

    def top_in(self, epoch: int) -> int:
        """How many of the likeliest tokens a pass of the update is to find."""
        return 0 if self._is_read or epoch else self.top

    def see(
        self, micro: Batch, reading: TokenReading, log_ratios: Tensor, clipped: Tensor, *, epoch: int, is_old: bool
    ) -> None:
        """What a pass of the update reads; `is_old`: before the first optimizer step."""
        if not self._is_kept:
            return
        seen = {"clipped": clipped.to(torch.uint8)}
        if "ratios" in self._columns:
            seen["ratios"] = log_ratios.exp()
        if not self._is_read and is_old:
            seen["old_logprobs"] = reading.logprobs.detach()
        if not self._is_read and epoch == 0:
            seen["entropies"] = reading.entropies.detach()
        at = micro.rows[:, None], torch.arange(clipped.shape[1], device=clipped.device)
        for name, numbers in seen.items():
            self._columns[name][at] = numbers
        if reading.top is not None:
            rows, columns = micro.sequences.mask.nonzero(as_tuple=True)
            for name, found in zip(TOP, reading.top, strict=True):
                self._columns[name][micro.rows[rows], columns] = found

    def gathered(self, groups: SampledGroups) -> "TokenNumbers":
        """The columns of all ranks, which all must ask for."""
        columns: dict[str, NDArray[Any]] = {}
        if self._mask is not None:
            places = sorted(groups.numbers)
            lengths = self._mask.sum(dim=1).view(len(places), groups.rollout.group).sum(dim=1).tolist()
            order = _order(groups.world, list(zip(places, lengths, strict=True)))
            trained = self._mask.flatten().nonzero()[:, 0]
            for name, numbers in self._columns.items():
                chosen = numbers.flatten(0, 1).index_select(0, trained)
                columns[name] = groups.world.concat(chosen).cpu().numpy()[order]
        return TokenNumbers(columns=columns, tokenizer=self._tokenizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenNumbers:
    """The columns of the trained tokens of all ranks, in the order of the recorded rows."""

    columns: Mapping[str, NDArray[Any]]  # (N,), or (N, K)
    tokenizer: Tokenizer

    def beside(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows with the rounded numbers of their tokens, as they are written."""
        start = 0
        for some in _chunks(rows):
            stop = start + sum(_length(row) for row in some)
            yield from self._written(some, {name: numbers[start:stop] for name, numbers in self.columns.items()})
            start = stop

    def _written(self, rows: Sequence[Row], columns: Mapping[str, NDArray[Any]]) -> Iterator[Row]:
        ends = list(accumulate(map(_length, rows)))
        found: dict[str, Sequence[Any]] = {"logprobs": _of_lists([row["logprobs"] for row in rows], OF_LOGPROBS)}
        if any("advantages" in row for row in rows):
            found["advantages"] = _of_lists([row.get("advantages", ()) for row in rows], OF_ADVANTAGES)
        for name, numbers in columns.items():
            if name in DECIMALS:
                found[name] = number_text(numbers, ends, DECIMALS[name])
        if "clipped" in columns:
            found["clipped"] = _places(columns["clipped"], ends)
        if set(TOP) <= columns.keys():
            found |= self._likeliest(columns[TOP[0]], columns[TOP[1]], ends)
        for row, *of_row in zip(rows, *found.values(), strict=True):
            written = dict(zip(found, of_row, strict=True))
            if "advantages" not in row:
                written.pop("advantages", None)
            yield {**row, **(written if row["trained"] else {"logprobs": written["logprobs"]})}

    def _likeliest(self, ids: NDArray[Any], logprobs: NDArray[Any], ends: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Ids, log-probs and texts of the likeliest tokens; none that sampling filters out."""
        chosen = np.unique(ids).tolist()
        texts = dict(zip(chosen, self.tokenizer.decode_many([[token] for token in chosen]), strict=True))
        counts = np.isfinite(logprobs).sum(axis=1).tolist()
        rounded = logprobs.astype(np.float64).round(OF_TOP).tolist()
        kept = [[one[:count] for one, count in zip(some, counts, strict=True)] for some in (ids.tolist(), rounded)]
        spelled = [[texts[token] for token in some] for some in kept[0]]
        cuts = list(pairwise([0, *ends]))
        return {
            name: [some[start:stop] for start, stop in cuts]
            for name, some in zip((*TOP, "top_pieces"), (*kept, spelled), strict=True)
        }


def _order(world: World, mine: Sequence[tuple[int, int]]) -> NDArray[np.int64] | slice:
    """From the tokens of all ranks, one after the other, to the order of the places of their groups.

    `mine`: place and number of tokens of each group of this rank.
    """
    if world.size == 1:
        return slice(None)
    groups = [(place, length) for rank in world.gather(mine) for place, length in rank]
    stops = accumulate(length for _, length in groups)
    spans = sorted((place, stop - length, stop) for (place, length), stop in zip(groups, stops, strict=True))
    return np.concatenate([np.arange(start, stop) for _, start, stop in spans])


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    tokens = 0
    for row in rows:
        some.append(row)
        tokens += len(row["tokens"])
        if tokens >= TOGETHER:
            yield some
            some, tokens = [], 0
    if some:
        yield some


def _length(row: Row) -> int:
    """Its trained tokens."""
    return int(row["mask"].count(True)) if row["trained"] else 0


def _of_lists(lists: Sequence[Sequence[float]], decimals: int) -> list[Rendered]:
    ends = list(accumulate(map(len, lists)))
    return number_text(np.fromiter(chain.from_iterable(lists), np.float64, count=ends[-1]), ends, decimals)


def _places(marks: NDArray[Any], ends: Sequence[int]) -> list[list[int]]:
    """In each stretch, the places of the marked ones."""
    marked = np.flatnonzero(marks)
    cuts = np.searchsorted(marked, [0, *ends]).tolist()
    return [
        (marked[low:high] - start).tolist() if high > low else []
        for start, (low, high) in zip([0, *ends], pairwise(cuts), strict=False)
    ]
