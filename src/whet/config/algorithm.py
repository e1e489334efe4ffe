"""The algorithm of a recipe: a preset resolved into its cells, any of which may be replaced by name or by a function.

Options of a packaged cell are keys under the cell's name (`algorithm.clip.high`) and come from its signature, so a new
cell needs no change here. A cell of the user's is `file.py:function`, or `{use: file.py:function, option: value}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, field_validator, model_validator

from whet.algorithms.cells import Cell, bind, name, options, terms
from whet.algorithms.table import ALGORITHMS, CELLS, KL_ESTIMATORS, SUPPLIED
from whet.config.own import own_function, require_options, require_signature
from whet.config.section import Above, Amount, CodePath, Count, Decay, OpenSection, Positive, Section, merge, one_of

BOUNDS: dict[str, dict[str, Any]] = {  # of options by name; no other may be below 0
    **{key: {"ge": 0, "le": 1} for key in ("gamma", "lam", "decay")},
    **{key: {"gt": 0} for key in ("positive", "negative", "beta")},
    "bound": {"gt": 1},
}


class KlConfig(Section):
    """KL penalty, KL(policy ‖ reference): its coefficient, estimator and place, and the reference."""

    coefficient: Amount = 0.0  # 0: no penalty
    estimator: str = "k3"  # k1, k2, k3 or unbiased
    place: Literal["loss", "reward"] = "loss"  # a term of the loss, or subtracted from the reward
    target: Above | None = None  # nats per token: the coefficient adapts until the measured KL is that
    horizon: Above = 10_000.0  # rollouts in which the coefficient may change by a fifth at most
    anneal_tokens: Count = 0  # the coefficient rises linearly from 0 over the first so many sampled tokens
    reference: Literal["start", "frozen", "sync", "bigram", "uniform", "random"] = "start"  # start: frozen; sync: moves
    sync_steps: Positive = 100  # sync: every so many steps the reference moves (ema)
    ema: Decay = 0.0  # sync: to ema · reference + (1 − ema) · policy; 0: a copy; 0.99 with sync_steps 1: an EMA

    @field_validator("reference", mode="before")
    @classmethod
    def _frozen(cls, value: Any) -> Any:
        return "start" if value == "frozen" else value

    @field_validator("estimator")
    @classmethod
    def _known(cls, value: str) -> str:
        return one_of(value, KL_ESTIMATORS)

    @model_validator(mode="after")
    def _regularises(self) -> KlConfig:
        """Refuses penalties that do not pull the policy towards the reference; tests/algorithms enumerates them."""
        if self.coefficient > 0 and self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "k1 in the loss has an expected gradient of zero: use estimator k2, k3 or unbiased, or place: reward"
            )
        if self.coefficient > 0 and self.place == "reward" and self.estimator != "k1":
            raise ValueError(
                f"only k1 in the reward has the gradient of the KL, not {self.estimator}: use estimator: k1"
            )
        if self.target is not None and self.anneal_tokens:
            raise ValueError("target and anneal_tokens both move the coefficient: use one of them")
        if self.target is not None and self.coefficient == 0:
            raise ValueError(
                "target starts from a coefficient of 0, which no factor changes: set coefficient, e.g. 0.05"
            )
        return self


class EntropyConfig(Section):
    """Entropy bonus; below the floor it grows with the distance to it."""

    coefficient: Amount = 0.0  # of the entropy in the loss; 0: no bonus
    floor: Amount = 0.0  # nats per token
    floor_coefficient: Amount = 10.0  # how fast the bonus grows below the floor

    @property
    def is_wanted(self) -> bool:
        """Whether any bonus can arise."""
        return self.coefficient > 0 or (self.floor > 0 and self.floor_coefficient > 0)


class OwnCell(OpenSection):
    """A function of the user's in the place of a cell; the other keys are its options."""

    use: CodePath


class AlgorithmBase(Section):
    """A preset, resolved into its cells."""

    preset: str = "custom"  # a row of docs/algorithms.md; `algorithm: grpo` for short
    advantage: CodePath | OwnCell  # how rewards become advantages
    scaling: CodePath | OwnCell = "unscaled"  # of the advantages over the whole batch
    surrogate: CodePath | OwnCell  # the loss of a token or sequence
    weighting: CodePath | OwnCell  # how token losses become one number
    importance_correction: CodePath | OwnCell = "uncorrected"  # importance sampling: weights π_old/π_sampler of tokens
    dynamic_sampling: CodePath | OwnCell = "keep_all"  # dynamic sampling: groups that are kept; others are resampled
    kl: KlConfig = KlConfig()
    entropy: EntropyConfig = EntropyConfig()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        value = {"preset": value} if isinstance(value, str) else value
        if not isinstance(value, Mapping):
            return value
        resolved: dict[str, Any] = {}
        row_options: dict[str, dict[str, Any]] = {}
        if value.get("preset", "custom") != "custom":
            row = ALGORITHMS[one_of(str(value["preset"]), ALGORITHMS, what="preset")]
            resolved = {kind: name(cell) for kind, cell in row.cells.items()}
            resolved["kl"] = {"coefficient": row.kl_coefficient, "estimator": name(row.kl), "place": row.kl_place}
            row_options = {name(cell): options(cell) for cell in row.cells.values()}
        resolved = merge(resolved, value)
        for kind, table in CELLS.items():
            chosen = resolved.get(kind)
            if isinstance(chosen, str) and chosen in table and options(table[chosen]):
                defaults, given = row_options.get(chosen, options(table[chosen])), resolved.get(chosen)
                if given is None or isinstance(given, Mapping):  # anything else is refused as no section
                    resolved[chosen] = merge(defaults, given or {})
        return resolved

    @field_validator(*CELLS, mode="before")
    @classmethod
    def _names_a_cell(cls, value: Any) -> Any:
        named = value.get("use") if isinstance(value, Mapping) else value
        if not isinstance(named, str | OwnCell):
            raise ValueError("must be a name, file.py:function, or {use: file.py:function, option: value}")
        return value

    @model_validator(mode="after")
    def _cells_exist(self) -> AlgorithmBase:
        for kind in CELLS:
            self.cell(kind)
        band = options(self.cell("importance_correction"))
        if band and not band.get("low", 0.0) < band.get("high", 1.0):
            wrong = f"importance_correction {self.importance_correction!r} lets no weight through"
            raise ValueError(f"{wrong}: set its low below its high")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether the KL penalty or a cell needs a reference model."""
        compared = any("logprobs_ref" in terms(self.cell(kind)) for kind in ("advantage", "surrogate"))
        return self.kl.coefficient > 0 or compared

    def cell(self, kind: str) -> Cell:
        """The function of a kind, its options bound."""
        chosen: str | OwnCell = dict(self)[kind]
        if isinstance(chosen, OwnCell):
            return _own_cell(kind, chosen)
        if ":" in chosen:
            return _own_cell(kind, OwnCell(use=chosen))
        return bind(CELLS[kind][one_of(chosen, CELLS[kind], what=kind)], self.options_of(chosen))

    def options_of(self, cell: str) -> dict[str, Any]:
        """The options under a packaged cell's name."""
        return self.model_dump().get(cell) or {}


def _own_cell(kind: str, written: OwnCell) -> Cell:
    """The user's function, after a look at its signature."""
    cell, spec = own_function(written.use, f"algorithm.{kind}"), f"{kind} '{written.use}'"
    require_signature(cell, spec, SUPPLIED[kind], f"it may take {', '.join(SUPPLIED[kind])}")
    if kind == "surrogate" and "logprobs" not in terms(cell):
        raise ValueError(f"{spec} does not take logprobs, so it could train nothing: add it")
    require_options(cell, spec, written.options)
    return bind(cell, written.options)


def _option_sections() -> dict[str, Any]:
    """One optional section per packaged cell that has options, from its signature."""
    sections: dict[str, Any] = {}
    for cell in (cell for table in CELLS.values() for cell in table.values()):
        fields: dict[str, Any] = {
            key: (
                bool if isinstance(value, bool) else Annotated[type(value), Field(**BOUNDS.get(key, {"ge": 0}))],
                value,
            )
            for key, value in options(cell).items()
        }
        if fields:
            section = create_model(f"{name(cell).title().replace('_', '')}Options", __base__=Section, **fields)
            sections[name(cell)] = (section | None, None)
    return sections


if TYPE_CHECKING:
    AlgorithmConfig = AlgorithmBase
else:
    AlgorithmConfig = create_model("AlgorithmConfig", __base__=AlgorithmBase, **_option_sections())
