"""Units of a preference loss (a pair, or one labelled completion) as token rows, and log-probs of completions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.preference.preference_table import Preference
from whet.batching import collate, micro_batches, packed, take, tokens_that_fit
from whet.config.parts import UpdateConfig
from whet.data.feedback import unpaired
from whet.data.formats import Record
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.layers.decoder_config import autocast
from whet.models.logprobs import read_tokens
from whet.models.protocol import CausalLM, Tokenizer
from whet.records import Labelled, Message, Pair, Row, Sampling, Sequences
from whet.train.rows.examples import completion_rows

Cluster = Callable[[Record], str]  # the same for similar rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Rows that belong together, with their log-probs under the reference where the loss has one."""

    rows: tuple[Row, ...]  # chosen and rejected; or one, followed by the mismatched one if the loss needs it
    cluster: str  # the same for units of similar rows
    label: bool = True
    refs: tuple[float, ...] = ()


def units_of(
    rows: Sequence[Any], row: Preference, tokenizer: Tokenizer, limit: int, cluster: Cluster
) -> list[Unit | None]:
    """One or two units for each row of data; None where one does not fit."""

    def unit(data: Pair | Labelled, *answers: str | Message) -> Unit | None:
        found = completion_rows(tokenizer, data.prompt, answers, limit)
        label = isinstance(data, Pair) or data.label
        return None if found is None else Unit(rows=tuple(found), cluster=cluster(data), label=label)

    if row.unit == "pair":
        return [unit(pair, *pair.answers) for pair in rows]
    pairs = [data for data in rows if isinstance(data, Pair)]
    labelled = unpaired(pairs) if pairs else list(rows)
    if not row.needs_mismatched:
        return [unit(one, one.answer) for one in labelled]
    others = mismatched(labelled)
    return [unit(one, one.answer, other.answer) for one, other in zip(labelled, others, strict=True)]


def mismatched(rows: Sequence[Labelled]) -> list[Labelled]:
    """For each row another with its label and a different prompt, the same at every start: log-probs are cached.

    So if the rows come from pairs, desirable and undesirable completions are mismatched equally often.
    """
    found: dict[str, Labelled] = {}
    for label in (False, True):
        alike = [row for row in rows if row.label is label]
        others = alike if len({row.prompt for row in alike}) > 1 else rows
        known = dict(zip((row.id for row in others), _next_others(others), strict=True))
        found |= {row.id: known[row.id] for row in alike}
    return [found[row.id] for row in rows]


def _next_others(rows: Sequence[Labelled]) -> list[Labelled]:
    """For each row the next one with another prompt."""
    if len({row.prompt for row in rows}) < 2:
        raise UserError("all rows have the same prompt, so none can be mismatched: add rows with other prompts")
    following = next(row for row in rows if row.prompt != rows[-1].prompt)  # the last row continues at the first
    found = [following]
    for row, after in zip(rows[-2::-1], rows[:0:-1], strict=True):
        following = after if after.prompt != row.prompt else following
        found.append(following)
    return found[::-1]


PLAIN = Sampling(max_tokens=1)  # temperature 1, no filter: the model's own distribution


def stacked(rows: Sequence[Row], world: World) -> Sequences:
    """Rows as tensors on this process's device."""
    return collate([row.tokens for row in rows], [row.mask for row in rows], world.device)


def whole_units(sequences: Sequences, size: int, settings: UpdateConfig, policy: CausalLM) -> Iterator[Tensor]:
    """The rows of each forward pass, which holds units of `size` rows unsplit; a unit that is too long is alone."""
    most = settings.micro_batch_tokens or tokens_that_fit(policy)
    for units in micro_batches(sequences.lengths.view(-1, size).amax(dim=1), most // size):
        yield (units[:, None] * size + torch.arange(size, device=units.device)).flatten()


def summed_logprobs(
    policy: CausalLM, sequences: Sequences, rows: Tensor, size: int, settings: UpdateConfig, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(n,) summed log-prob of the trained tokens of each of these rows, and their number."""
    s = take(sequences, rows)
    with autocast(device):
        reading = read_tokens(
            policy,
            s.tokens,
            s.lengths,
            s.mask,
            PLAIN,
            packing=packed(s, torch.div(rows, size, rounding_mode="floor"), settings),
        )
    return reading.logprobs.sum(dim=1), s.mask.sum(dim=1)
