"""The largest micro-batch and the largest number of slots with which a run fits, by the formulas of its peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from whet.models.sizes.pass_bytes import MANY
from whet.train.plan.owners import SAMPLING
from whet.train.plan.peaks import CUDA_SEQUENCES, Choice, chosen, peaks
from whet.train.plan.workload import Models, Work

LEARNING = ("annotate", "update")  # moments with micro-batches
STEP = 256  # tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The most that fits in the moments that it matters for; None: not even one sequence does, or nothing is sampled.

    Each fits beside what the run chooses for the other, and both fit together.
    """

    micro_batch_tokens: int | None
    slots: int | None


def largest(m: Models, work: Work, memory: float) -> Largest:
    """The largest values of update.micro_batch_tokens and engine.max_sequences on a GPU with so much memory."""
    usual = chosen(m, work, memory)

    def fits(choice: Choice, moments: tuple[str, ...]) -> bool:
        found = peaks(m, work, choice)
        sizes = {name: size for name, size in found.moments.items() if name in moments}
        return not sizes or replace(found, moments=sizes).fits(memory)

    def limited(slots: int) -> Choice:
        return replace(
            chosen(m, replace(work, max_sequences=slots), memory), micro_batch_tokens=usual.micro_batch_tokens
        )

    learns = fits(usual, LEARNING)
    sequences = work.sequences if work.loop == "online" else work.eval_prompts * work.eval_samples
    slots = _most(
        min(sequences, CUDA_SEQUENCES),
        lambda count: fits(limited(count), SAMPLING) and (not learns or fits(limited(count), LEARNING)),
    )
    row, whole = work.prompt + work.completion, work.sequences * (work.prompt + work.completion)
    beside = limited(slots) if slots else usual  # more slots keep more buffers between rollouts

    def takes(tokens: int) -> bool:
        return fits(replace(beside, micro_batch_tokens=tokens), LEARNING)

    if not takes(row):
        return Largest(micro_batch_tokens=None, slots=slots or None)
    tokens = max(STEP * _most(max(MANY, whole) // STEP, lambda count: takes(STEP * count)), row)
    tokens = max(tokens, usual.micro_batch_tokens if learns else 0)
    return Largest(micro_batch_tokens=tokens, slots=slots or None)


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to a limit that fits, where all smaller ones do; 0 without one."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
