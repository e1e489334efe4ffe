"""What to change where a run does not fit: sets of keys, each planned again, by what they change in the result.

Only sets that suffice and of which no part suffices are advised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from whet.config import OnlineConfig
from whet.errors import UserError
from whet.recipe import apply_override, plain, validate
from whet.train.plan.largest import largest
from whet.train.plan.owners import SAMPLING, host_bytes
from whet.train.plan.planning import Plan

if TYPE_CHECKING:
    from whet.config.loops import Training

# What a change does to the result, the least first.
EFFECTS = (
    "the same result",
    "moments in bf16",
    "weights rounded to bf16",
    "adapters are trained",
    "adapters on weights in four bits",
)
SAME, MOMENTS, ROUNDED, ADAPTERS, FOUR_BITS = range(len(EFFECTS))
MICRO_BATCH, SLOTS, RANK = "update.micro_batch_tokens", "engine.max_sequences", 16
PLACEMENT = "placement"
LARGEST = "null"  # stands for the largest number that fits
MOST_KEYS = 4  # of a set
SHOWN = 2  # sets with each effect, the fastest


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """An override, the key that it sets, and the worst that it does to the result."""

    key: str
    value: str
    effect: int
    excludes: str = ""  # changes with the same word are alternatives


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Overrides with which a run fits, and what they cost."""

    overrides: tuple[str, ...]
    effect: str
    needed: int  # bytes
    seconds: float  # of a step
    host: int  # bytes of host memory
    slower: float  # times the seconds that the step would have with enough memory


def advise(
    config: Training,
    plan_of: Callable[[Training], Plan],
    *,
    seconds: float,
    most_keys: int = MOST_KEYS,
    places: bool = False,
) -> tuple[Advice, ...]:
    """Sets of changes that fit, by effect, the fastest first; `seconds` is the step with enough memory.

    `plan_of` plans a config on the GPU in question; `places`: one of several GPUs may be given to other models.
    """
    found: list[tuple[int, Advice]] = []
    sufficient: list[frozenset[Change]] = []
    before = plan_of(config)
    samples = not set(SAMPLING).isdisjoint(before.peaks.moments)
    possible = [*possible_changes(config, samples=samples), *(several(config, before) if places else ())]
    for changes in _sets(possible, most_keys):
        if any(smaller <= frozenset(changes) for smaller in sufficient):
            continue
        try:
            overrides = _overrides(config, plan_of, changes)
            plan = None if overrides is None else plan_of(changed(config, overrides))
        except UserError:  # a combination that recipes refuse
            continue
        if overrides is not None and plan is not None and plan.fits:
            sufficient.append(frozenset(changes))
            effect = max(one.effect for one in changes)
            found.append((effect, _advice(overrides, effect, plan, seconds)))
    kept: list[Advice] = []
    for effect in range(len(EFFECTS)):
        alike = sorted((advice for own, advice in found if own == effect), key=lambda one: one.seconds)
        kept += alike[:SHOWN] + [one for one in alike[SHOWN:] if _places(one)][:1]  # needs no host memory
    return tuple(kept)


def changed(config: Training, overrides: list[str]) -> Training:
    """The config with overrides."""
    written = plain(config)
    for override in overrides:
        apply_override(written, override)
    found = validate(written, where="advice")
    assert isinstance(found, type(config))
    return found


def possible_changes(config: Training, *, samples: bool = False) -> list[Change]:
    """Changes that need less memory and are not made yet, by what they change in the result.

    `samples`: completions are sampled, if only to evaluate. Their memory may be the peak only after another change:
    four bits train in little, and sampling reads a copy in bf16.
    """
    optimizer, lora = config.optimizer, config.model.lora
    is_full, is_adam = lora is None, optimizer.name in ("adamw", "adamw_bf16")
    found: list[Change] = []
    found.append(Change(key=MICRO_BATCH, value=LARGEST, effect=SAME))
    if config.engine.max_sequences is not None or samples:
        found.append(Change(key=SLOTS, value=LARGEST, effect=SAME))
    if not config.model.gradient_checkpointing:
        found.append(Change(key="model.gradient_checkpointing", value="true", effect=SAME))
    if not isinstance(config, OnlineConfig) and samples:
        found.append(Change(key="eval.every_steps", value="0", effect=SAME))
    if isinstance(config, OnlineConfig) and "never" in config.offload.model_dump().values():
        found.append(Change(key="offload", value="auto", effect=SAME))
    if is_full and is_adam and optimizer.master_weights != "offload":
        found.append(Change(key="optimizer.master_weights", value="offload", effect=SAME, excludes="weights"))
    if is_full and optimizer.name == "adamw":
        found.append(Change(key="optimizer.name", value="adamw_bf16", effect=MOMENTS))
    if is_full and is_adam and optimizer.master_weights == "fp32":
        found.append(Change(key="optimizer.master_weights", value="bf16", effect=ROUNDED, excludes="weights"))
    found += _adapters(config)
    return found


def shardings(config: Training, plan: Plan) -> list[Change]:
    """Models spread over the GPUs that train, if there are several and each has whole ones."""
    if plan.gpus < 2 or config.distributed.sharding != "none":
        return []
    values = ["fsdp2", "{sharding: fsdp2, cpu_offload: true}"]
    return [Change(key="distributed", value=value, effect=SAME, excludes="weights") for value in values]


def several(config: Training, plan: Plan) -> list[Change]:
    """What more than one GPU makes possible."""
    return [*shardings(config, plan), *placements(config, plan)]


def placements(config: Training, plan: Plan) -> list[Change]:
    """Reference and reward model on the last GPU of several; the others train."""
    if not isinstance(config, OnlineConfig) or config.placement.names or plan.gpus < 2:
        return []
    names = [name for name in ("reference", "reward") if plan.peaks.placement.models[name]]
    some = [one for size in range(1, len(names) + 1) for one in combinations(names, size)]
    last = f"cuda:{plan.gpus - 1}"
    values = ["{" + ", ".join(f"{name}: {last}" for name in one) + "}" for one in some]
    return [Change(key=PLACEMENT, value=value, effect=SAME, excludes=PLACEMENT) for value in values]


def _adapters(config: Training) -> Iterator[Change]:
    """Training adapters in place of all weights, over frozen weights in bf16 or in four bits."""
    lora = config.model.lora
    if lora is None:
        yield Change(key="model.lora", value=str(RANK), effect=ADAPTERS, excludes="weights")
        both = f"{{rank: {RANK}, quantization: nf4}}"
        yield Change(key="model.lora", value=both, effect=FOUR_BITS, excludes="weights")
    elif lora.quantization != "nf4":
        yield Change(key="model.lora.quantization", value="nf4", effect=FOUR_BITS)


def _sets(changes: list[Change], most_keys: int) -> Iterator[tuple[Change, ...]]:
    """Sets of changes, smaller ones first, without two that exclude each other.

    Adapters have hardly any optimizer state, so they are not combined with changes of it.
    """
    for size in range(1, min(most_keys, len(changes)) + 1):
        for some in combinations(changes, size):
            words = [one.excludes for one in some if one.excludes]
            trains_adapters = any(one.effect >= ADAPTERS for one in some)
            if len(set(words)) == len(words) and not (trains_adapters and any(one.effect == MOMENTS for one in some)):
                yield some


def _overrides(config: Training, plan_of: Callable[[Training], Plan], changes: tuple[Change, ...]) -> list[str] | None:
    """The changes as overrides; a micro-batch and a number of slots are the largest that fit beside the others.

    None where none fits.
    """
    words = [f"{one.key}={one.value}" for one in changes]
    if all(one.value != LARGEST for one in changes):
        return words
    plan = plan_of(changed(config, words))
    most = largest(plan.models, plan.work, plan.gpu.memory)
    numbers = {MICRO_BATCH: most.micro_batch_tokens, SLOTS: most.slots}
    if any(one.value == LARGEST and numbers[one.key] is None for one in changes):
        return None
    return [f"{one.key}={numbers[one.key] if one.value == LARGEST else one.value}" for one in changes]


def _places(advice: Advice) -> bool:
    return any(override.startswith(PLACEMENT) for override in advice.overrides)


def _advice(overrides: list[str], effect: int, plan: Plan, seconds: float) -> Advice:
    return Advice(
        overrides=tuple(overrides),
        effect=EFFECTS[effect],
        needed=plan.peaks.needed,
        seconds=plan.seconds.step,
        host=host_bytes(plan.peaks),
        slower=plan.seconds.step / seconds,
    )
