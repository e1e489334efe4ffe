"""Direct alignment on pairs or on labelled completions. Calls the loss of a table row without knowing which it is.

A unit is what the loss takes at a time: the two completions of a pair, or one labelled completion. All units, over all
ranks, have the same weight and none is split between passes: the loss is the same for any micro-batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.cells import call
from whet.algorithms.preference.losses import moving_means
from whet.algorithms.preference.metrics import margins, wins
from whet.algorithms.preference.preference_table import Preference, implicit_rewards
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.evaluate.calibration import share_by_cluster
from whet.evaluate.statistics import flat_metrics
from whet.files.disk_rows import DiskRows, in_chunks, on_disk
from whet.models.decoder.decoder import Decoder
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model
from whet.models.protocol import CausalLM
from whet.models.storage.safetensors_files import fingerprint
from whet.records import Sequences
from whet.train.optimizers.optimizer import ask_loss, finite
from whet.train.rows.examples import Note
from whet.train.rows.reference_cache import cache_directory, reference_logprobs
from whet.train.rows.trainer import OfflineTrainer
from whet.train.rows.units import Unit, stacked, summed_logprobs, units_of, whole_units
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import build_parts
from whet.train.setup.epochs import EpochSampler
from whet.train.spreading.spread_models import held

PREFERENCE_DATA = {"pair": ("pairs",), "label": ("pairs", "labelled")}  # unit of the loss → kinds of rows
ROUNDING = 1e-4  # two passes over the same tokens may differ by this much: smaller margins are ties
# Of chosen (or desirable) and of rejected completions: sums of implicit rewards, log-probs and tokens; their number.
SIDES = ("rewards", "logprobs", "tokens", "count")
# Sums over units: of the loss's own measure of right and wrong, and of margins; their number; and the above.
TALLY = ("wins", "margins", "units", *(f"{side}_{kind}" for side in ("chosen", "rejected") for kind in SIDES))


class Tally:
    """The sums of `TALLY` over the passes, and for each unit whether it was right (½: a tie)."""

    def __init__(self, units: int) -> None:
        self.sums = torch.zeros(len(TALLY), dtype=torch.float64)
        self.wins = torch.zeros(units)


class Means(Checkpointed):
    """Running means of the log-ratios of undesirable and of desirable completions, for a reference point."""

    def __init__(self) -> None:
        self.means = torch.zeros(2)

    def numbers(self) -> dict[str, Any]:
        return {"means": self.means.tolist()}

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002 - has none
        self.means = torch.tensor(numbers["means"])


class PreferenceTrainer(OfflineTrainer[Unit]):
    """Direct alignment by one row of the table."""

    def __init__(self, config: OfflineConfig, row: Preference, world: World, note: Note) -> None:
        self.row, self.means = row, Means()
        self.kept = {"means": self.means} if row.needs_means else {}
        if row.needs_mismatched and config.data is not None and config.data.streaming:
            raise UserError(
                f"objective {config.objective.name!r} compares each prompt with the completion of another row, for "
                "which all rows are in memory: set data.streaming=false"
            )
        super().__init__(config, build_parts(config, world), world, PREFERENCE_DATA[row.unit], note)
        if row.needs_reference:
            self._add_reference(note)

    def encode(self, rows: Sequence[Any]) -> list[Unit | None]:
        return units_of(rows, self.row, self.parts.tokenizer, self.limit, self.cluster)

    def fit(self, rows: Sequence[Unit]) -> tuple[dict[str, float], int]:
        tally = Tally(len(rows))
        point = self._point(rows)
        metrics = self.descend(self._losses(rows, point, tally))
        sums = dict(zip(TALLY, self.world.sum(tally.sums).tolist(), strict=True))
        if self.row.needs_means:
            self._remember(sums)
        at = {} if point is None else {"point": float(point)}
        tokens = int(sums["chosen_tokens"] + sums["rejected_tokens"])
        return {**metrics, **at, **_means(sums, self._accuracy), **_sides(sums)}, tokens

    def measure_rows(self, held_out: Sequence[Unit]) -> dict[str, float]:
        """Loss, pair accuracy and margin; the interval of the accuracy counts clusters of similar rows."""
        units = self.world.shard(held_out)
        tally = Tally(len(units))
        loss = self.total(self._losses(units, self._point(units), tally))
        sums = dict(zip(TALLY, self.world.sum(tally.sums).tolist(), strict=True))
        won = self.world.interleave(tally.wins.tolist())
        right = share_by_cluster([unit.cluster for unit in held_out], won)
        return {
            "eval/loss": loss,
            "eval/margin": _means(sums, self._accuracy)["rewards/margin"],
            **flat_metrics({self._accuracy: right}),
        }

    def _losses(self, units: Sequence[Unit], point: Tensor | None, tally: Tally) -> Iterator[Tensor]:
        """The loss of each pass; they add up to the mean over the units of all ranks."""
        gathered = float(self.world.sum(torch.tensor(len(units))))
        rows = [row for unit in units for row in unit.rows[: self._read]]
        sequences = stacked(rows, self.world)
        refs = torch.tensor([ref for unit in units for ref in unit.refs[: self._read]], device=self.world.device)
        labels = torch.tensor([unit.label for unit in units], device=self.world.device)
        batches = whole_units(sequences, self._read, self.config.update, self.parts.policy)
        for some in self.world.sharding.evened(batches, self.parts.policy):
            logprobs, counts = self._read_rows(sequences, some)
            supply = self._supply(logprobs, counts, refs[some] if len(refs) else None, labels, some, point)
            per_unit = ask_loss(self.row.loss, supply, shapes=(logprobs[:: self._read].shape,))
            sums, won = _counted(self.row, supply)
            tally.sums += sums
            tally.wins[some[:: self._read].cpu() // self._read] = won.cpu()
            yield finite(per_unit.sum() / gathered, **supply)

    @property
    def _accuracy(self) -> str:
        """Share of pairs whose chosen completion, or of labelled completions that, are on the right side."""
        return "pair_accuracy" if self.row.unit == "pair" else "label_accuracy"

    @property
    def _read(self) -> int:
        """Rows of a unit that the loss reads; a mismatched row after them is only for the reference point."""
        return 2 if self.row.unit == "pair" else 1

    def _read_rows(self, sequences: Sequences, rows: Tensor) -> tuple[Tensor, Tensor]:
        return summed_logprobs(self.parts.policy, sequences, rows, self._read, self.config.update, self.world.device)

    def _supply(
        self, sums: Tensor, counts: Tensor, refs: Tensor | None, labels: Tensor, rows: Tensor, point: Tensor | None
    ) -> dict[str, Any]:
        """All terms that a loss may name."""
        if self.row.unit == "label":
            return {"logprobs": sums, "logprobs_ref": refs, "labels": labels[rows], "tokens": counts, "point": point}
        supply = {"chosen": sums[::2], "rejected": sums[1::2]}
        supply |= {"chosen_tokens": counts[::2], "rejected_tokens": counts[1::2]}
        return supply | ({} if refs is None else {"chosen_ref": refs[::2], "rejected_ref": refs[1::2]})

    @torch.no_grad()
    def _point(self, units: Sequence[Unit]) -> Tensor | None:
        """The reference point of the loss, if it has one, over all ranks."""
        if self.row.point is None:
            return None
        supply = {"means": self.means.means.to(self.world.device)}
        if self.row.needs_mismatched:
            sequences = stacked([unit.rows[1] for unit in units], self.world)
            sums = torch.zeros(len(units), device=self.world.device)
            batches = whole_units(sequences, 1, self.config.update, self.parts.policy)
            for some in self.world.sharding.evened(batches, self.parts.policy):
                sums[some] = self._read_rows(sequences, some)[0]
            refs = torch.tensor([unit.refs[1] for unit in units], device=self.world.device)
            supply = {"mismatched": self.world.concat(sums), "mismatched_ref": self.world.concat(refs)}
        point: Tensor = call(self.row.point, supply)
        return point

    def _remember(self, sums: Mapping[str, float]) -> None:
        """Updates the running means with the log-ratios of this step."""
        seen = [
            (sums[f"{kind}_rewards"] / sums[f"{kind}_count"] / self.row.beta, kind == "chosen")
            for kind in ("rejected", "chosen")
            if sums[f"{kind}_count"]
        ]
        ratios, labels = torch.tensor([ratio for ratio, _ in seen]), torch.tensor([label for _, label in seen])
        self.means.means = moving_means(self.means.means, ratios, labels)

    def _add_reference(self, note: Note) -> None:
        """Adds log-probs under the reference to the units that will be drawn, and to the held-out ones."""
        trained, places = self.epoch_sampler.rows, range(len(self.epoch_sampler.rows))
        drawn = EpochSampler(places, seed=self.config.seed).needed(self.config.batch_size, steps=self.config.steps)
        of_sets = [unit for rows in self.evaluation.values() for unit in rows]
        model, name = self._reference()
        each = 2 if self.row.unit == "pair" or self.row.needs_mismatched else 1
        count = each * (len(drawn) + len(of_sets))
        note(f"reference: log-probs of {count:,} completions under {self.config.reference or 'the start'}")

        def with_refs(units: Sequence[Unit]) -> list[Unit]:
            rows = [row for unit in units for row in unit.rows]
            found = iter(reference_logprobs(model, name, rows, self.config.update, self.world, cache_directory(), note))
            return [replace(unit, refs=tuple(next(found) for _ in unit.rows)) for unit in units]

        if on_disk(trained):
            is_drawn = bytearray(len(trained))
            for number in drawn:
                is_drawn[number] = 1
            self.epoch_sampler.rows = DiskRows(_streamed(trained, is_drawn, with_refs))
            measured = iter(with_refs(of_sets))
        else:
            known = with_refs([*(trained[number] for number in drawn), *of_sets])
            at = dict(zip(drawn, known, strict=False))
            self.epoch_sampler.rows = [at.get(number, trained[number]) for number in places]
            measured = iter(known[len(drawn) :])
        self.evaluation = {name: [next(measured) for _ in rows] for name, rows in self.evaluation.items()}

    def _reference(self) -> tuple[CausalLM, str]:
        """The configured reference, or the policy before its first step; and the fingerprint of its weights."""
        if not self.config.reference:
            return self.parts.policy, f"{self.parts.origin} {_shape(self.parts.policy)}"
        model = load_model(resolve_model(self.config.reference), mapped=self.world.sharding.is_sharded)
        if model.vocab_size != self.parts.policy.vocab_size:
            raise UserError(
                f"reference {self.config.reference} has {model.vocab_size} ids and the policy "
                f"{self.parts.policy.vocab_size}: use a reference with the policy's tokeniser"
            )
        name = f"{fingerprint(model)} {_shape(model)}"
        return held(model, self.world), name


def _streamed(
    units: Sequence[Unit], is_drawn: Sequence[int], with_refs: Callable[[Sequence[Unit]], list[Unit]]
) -> Iterator[Unit]:
    """The units in order, those that will be drawn with their log-probs, some in memory at a time."""
    flags = iter(is_drawn)
    for some in in_chunks(units):
        marked = list(islice(flags, len(some)))
        known = iter(with_refs(list(compress(some, marked))))
        yield from (next(known) if mark else unit for unit, mark in zip(some, marked, strict=True))


def _shape(model: CausalLM) -> str:
    """What else determines a model's outputs: the same weights give others with, say, another rotary base."""
    return repr(model.config) if isinstance(model, Decoder) else ""


@torch.no_grad()
def _counted(row: Preference, supply: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The sums of `TALLY` over the units of a pass, and whether each unit was right."""
    if row.unit == "pair":
        sides = []
        for kind in ("chosen", "rejected"):
            terms = {
                "logprobs": supply[kind],
                "logprobs_ref": supply.get(f"{kind}_ref", supply[kind]),
                "tokens": supply[f"{kind}_tokens"],
            }
            sides.append((implicit_rewards(row, terms), terms["logprobs"], terms["tokens"]))
        gap = margins(sides[0][0], sides[1][0])
        won = wins(torch.where(gap.abs() < ROUNDING, 0.0, gap), torch.zeros_like(gap))
    else:
        rewards, labels = implicit_rewards(row, supply), supply["labels"]
        level = torch.zeros_like(rewards) if supply["point"] is None else row.beta * supply["point"].expand_as(rewards)
        better, worse = torch.where(labels, rewards, level), torch.where(labels, level, rewards)
        won, gap = wins(better, worse), margins(better, worse)
        sides = [(rewards[some], supply["logprobs"][some], supply["tokens"][some]) for some in (labels, ~labels)]
    sums = [won.sum(), gap.sum(), torch.tensor(len(won))]
    for side in sides:
        sums += [*(values.sum() for values in side), torch.tensor(len(side[0]))]
    return torch.stack([x.double().cpu() for x in sums]), won


def _means(sums: Mapping[str, float], accuracy: str) -> dict[str, float]:
    """Metrics: accuracy (ties count half), margin, implicit rewards of chosen and rejected completions."""
    units = max(1.0, sums["units"])
    return {
        accuracy: sums["wins"] / units,
        "rewards/margin": sums["margins"] / units,
        "rewards/chosen": sums["chosen_rewards"] / max(1.0, sums["chosen_count"]),
        "rewards/rejected": sums["rejected_rewards"] / max(1.0, sums["rejected_count"]),
    }


def _sides(sums: Mapping[str, float]) -> dict[str, float]:
    """Mean log-prob of a completion under the policy, and its mean length, of each side that there is."""
    return {
        f"{metric}/{side}": sums[f"{side}_{kind}"] / sums[f"{side}_count"]
        for metric, kind in (("logprobs", "logprobs"), ("length", "tokens"))
        for side in ("chosen", "rejected")
        if sums[f"{side}_count"]
    }
