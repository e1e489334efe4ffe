"""A case: a recipe with keys, what is wrong with it if anything, and the part of the study that it belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Thresholds are fitted to the first; rules were written and changed while verdicts on the second were known; the third
# was only measured, after rules and thresholds stood.
Part = Literal["fit", "develop", "measure"]

HERE = Path(__file__).resolve().parent
OWN = "studies/doctor/own"  # in keys: the folder of the broken cells, rewards and tasks
MADE_THERE = re.compile(r"(?<=[= ])made/")  # in keys: the folder of start models and files that `inputs` writes


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A run of the study, apart from its seed."""

    name: str
    recipe: str
    keys: tuple[str, ...]
    part: Part
    engine: str = ""  # in ENGINES; the native one if empty

    def command(self, seed: int) -> list[str]:
        """The keys as a reader in the folder of the repository gives them."""
        return [*self.keys, f"seed={seed}"]

    def arguments(self, seed: int, made: Path) -> list[str]:
        """The keys with the folders of this machine."""
        found = [key.replace(f"{OWN}/", f"{HERE / 'own'}/") for key in self.command(seed)]
        return ["device=cpu", "track=[]", *(MADE_THERE.sub(f"{made}/", key) for key in found)]

    @property
    def is_repairable(self) -> bool:
        """Whether it has a fault that a key undoes."""
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault(Case):
    """A case with one thing wrong."""

    base: str  # the healthy case that it is planted in
    what: str  # for readers: what was changed
    causes: tuple[str, ...]  # its name in whet.doctor.causes; several where the library has two for one thing
    repair: tuple[str, ...] = ()  # keys that undo it; none: it is not in the recipe

    @property
    def is_repairable(self) -> bool:
        return bool(self.repair)


def planted(
    base: Case,
    name: str,
    what: str,
    causes: str | Sequence[str],
    *,
    part: Part,
    keys: Sequence[str] = (),
    repair: Sequence[str] = (),
    engine: str = "",
) -> Fault:
    """The base with one thing wrong."""
    return Fault(
        name=f"{name}-{base.name}",
        recipe=base.recipe,
        keys=(*base.keys, *keys),
        part=part,
        engine=engine,
        base=base.name,
        what=what,
        causes=(causes,) if isinstance(causes, str) else tuple(causes),
        repair=tuple(repair),
    )
