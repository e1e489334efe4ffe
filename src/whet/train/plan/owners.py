"""The bytes of a moment by their owner: the parts that `peaks` adds up."""

from __future__ import annotations

from dataclasses import replace

from whet.models.sizes.sampling_bytes import cache_bytes, cached_per_token, capacity_of
from whet.train.plan.peaks import Choice, Peaks, reads_before, update_bytes
from whet.train.plan.workload import Models, Work

OWNERS = (
    *(
        "weights",
        "joined copy",
        "gathered weights",
        "gradients",
        "optimizer state",
        "reference",
        "critic",
        "reward model",
        "KV cache",
    ),
    "activations",
)
# What is brought to the GPU in a moment if it is offloaded.
IN_USE = {"score": ("reward",), "annotate": ("reference", "critic"), "update": ("critic", "optimizer")}
SAMPLING = ("rollout", "evaluation")


def by_owner(m: Models, work: Work, found: Peaks) -> dict[str, dict[str, int]]:
    """Moment → owner → bytes; the owners of a moment add up to its peak.

    Activations are what is left: of a pass with its temporaries, or of a decode step and the prefill.
    """
    return {moment: _owners(m, work, found, moment) for moment in found.moments}


def _owners(m: Models, work: Work, found: Peaks, moment: str) -> dict[str, int]:
    held, choice = found.placement, found.choice
    away = choice.away - frozenset(IN_USE.get(moment, ())) if work.loop == "online" else frozenset()
    others = {
        "optimizer state": ("optimizer", held.state),
        "reference": ("reference", held.reference),
        "critic": ("critic", held.critic),
        "reward model": ("reward", held.reward),
    }
    parts = {
        "weights": held.weights,
        "joined copy": held.joined + held.sampler,
        "gathered weights": _gathered(m, work, found, moment),
        "gradients": _gradients(m, work, found, moment),
        **{owner: 0 if name in away else size for owner, (name, size) in others.items()},
        "KV cache": _cache(m, work, choice, moment) if moment in SAMPLING else 0,
    }
    return {**parts, "activations": found.moments[moment] - sum(parts.values())}


def _gathered(m: Models, work: Work, found: Peaks, moment: str) -> int:
    """Of spread models: what is whole at the peak, beside the parts."""
    held = found.placement
    if moment == "update":
        without = update_bytes(m, work, found.choice, replace(held, training=0))
        return update_bytes(m, work, found.choice, held) - without
    return held.reading if moment == "annotate" and reads_before(m, work) else 0


def _gradients(m: Models, work: Work, found: Peaks, moment: str) -> int:
    """Gradients at the peak: none if it is where the only backward pass of an update begins."""
    held = found.placement
    if moment == "update":
        without = update_bytes(m, work, found.choice, replace(held, gradients=0))
        return held.gradients if update_bytes(m, work, found.choice, held) > without else 0
    return held.gradients if moment == "evaluation" and work.loop == "offline" else 0


def _cache(m: Models, work: Work, choice: Choice, moment: str) -> int:
    slots, new = (choice.slots, work.completion) if moment == "rollout" else (choice.eval_slots, work.eval_completion)
    half = m.engine_half if m.on_gpu else 4
    if not (m.on_gpu and m.is_fused):
        return slots * (work.prompt + new) * cached_per_token(m.policy, half)
    return cache_bytes(m.policy, slots, capacity_of(work.prompt + new), half)


def offloaded_bytes(found: Peaks) -> dict[str, int]:
    """What is in host memory while it is not in use, by name, in bytes."""
    held = found.placement
    sizes = {**held.models, "optimizer": held.state}  # joined copies are dropped
    return {name: size for name, size in sizes.items() if size and name in found.choice.away}


def host_bytes(found: Peaks) -> int:
    """Bytes in host memory: master weights and moments that are streamed, and what is offloaded."""
    return found.placement.host + sum(offloaded_bytes(found).values())
