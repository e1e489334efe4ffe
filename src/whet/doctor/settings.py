"""The settings of a run as rules and causes read them: keys of its config, and how usual their values are."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["online", "sft", "preference", "reward"]

SMALL = 20_000_000  # parameters; a model below it is trained with larger steps
# Learning rates that usually work for Adam: of models from scratch or below SMALL, and of pre-trained ones.
USUAL_RATES: dict[Kind, tuple[float, float]] = {
    "online": (1e-3, 1e-6),
    "sft": (1e-3, 1e-5),
    "preference": (2e-4, 1e-6),
    "reward": (5e-4, 1e-5),
}
ADAPTER_RATE = 10.0  # times that of full fine-tuning: Schulman et al. 2025, "LoRA Without Regret"
ONLINE_ONLY = ("rollout", "reward", "algorithm", "critic", "cold_start", "task")  # sections that advice is given on
# Advantage → beginnings of keys that a recipe with it refuses: a mean reward below 0, the KL a second time.
FORBIDDEN: Mapping[str, tuple[str, ...]] = {
    "max_likelihood": ("reward.length_penalty", "reward.repetition_penalty", "reward.normalize"),
    "best_over_worst": ("algorithm.kl.coefficient",),
}
# A metric of every step that tells what is trained, the first that was logged.
KINDS: dict[str, Kind] = {"reward/mean": "online", "rewards/margin": "preference", "score/mean": "reward"}


def kind_of(names: Collection[str]) -> Kind:
    """What a run trains, by the names of its metrics."""
    return next((kind for name, kind in KINDS.items() if name in names), "sft")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The config of a run; `parameters` of its model, 0 if unknown."""

    config: Mapping[str, Any]
    kind: Kind = "online"
    parameters: int = 0

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key; the default where it, or a section above it, is absent or null."""
        found: Any = self.config
        for name in key.split("."):
            if not isinstance(found, Mapping) or found.get(name) is None:
                return default
            found = found[name]
        return found

    def number(self, key: str, default: float = 0.0) -> float:
        """The number at a key; the default in place of anything else, for a config may be written by hand."""
        found = self.get(key, default)
        is_number = isinstance(found, int | float) and -sys.float_info.max <= found <= sys.float_info.max
        return float(found) if is_number else default

    def takes(self, key: str, value: Any) -> bool:
        """Whether a recipe of this kind has a key, and these settings allow the value."""
        section = key.split(".", maxsplit=1)[0]
        if section in ONLINE_ONLY:
            return self.kind == "online" and not self._forbids(key, value)
        return section != "objective" or self.kind == "preference"

    def _forbids(self, key: str, value: Any) -> bool:
        """Whether the recipe would be refused: what its advantage cannot take, or that nothing is left as a reward."""
        if key == "reward.functions" and value == []:
            tasks = self.get("task.tasks", [self.get("task", {})])
            graded = (one.get("name") != "data" or one.get("match") for one in tasks if isinstance(one, Mapping))
            return not all(graded)
        return any(key.startswith(those) for those in FORBIDDEN.get(str(self.get("algorithm.advantage")), ()))

    def is_own(self, key: str) -> bool:
        """Whether a user's own function stands there, as `file.py:name` or `module:name`."""
        return ":" in str(self.get(key, ""))

    @property
    def is_small(self) -> bool:
        """Whether the model is new, or far smaller than those that are pre-trained."""
        return self.get("model.new") is not None or 0 < self.parameters < SMALL

    @property
    def usual_rate(self) -> float:
        small, large = USUAL_RATES[self.kind]
        if self.is_small:
            return small
        return large * (ADAPTER_RATE if self.get("model.lora") is not None else 1.0)

    @property
    def rate(self) -> float:
        return self.number("optimizer.lr")

    @property
    def updates_a_step(self) -> int:
        """Optimizer steps on the rollouts of one step, if none is left out."""
        return int(self.number("update.epochs", 1)) * int(self.number("update.minibatches", 1))
