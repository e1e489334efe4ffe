"""Reward-model training on pairs, on outcomes of completions, or on steps of solutions.

Scores are read at places: the last token of a completion, all its tokens, or the ends of its steps. The loss is a mean
over pairs, completions or steps of all ranks, so it is the same for any micro-batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from whet.algorithms.preference.metrics import wins
from whet.algorithms.preference.preference_table import Kind, RewardObjective
from whet.batching import pad, take
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.errors import RunFailed
from whet.evaluate.reward_reports import (
    ACCURACY_OF,
    Report,
    outcome_report,
    pair_report,
    process_report,
    report_metrics,
)
from whet.evaluate.statistics import rank_correlation
from whet.models.layers.decoder_config import autocast
from whet.models.reward.reward_model import RewardModel, load_reward_model, new_reward_model, pack_through
from whet.models.reward.scoring import aggregated
from whet.models.reward.settings import BAD, RewardSettings
from whet.models.storage.safetensors_files import fingerprint
from whet.models.text.tokenizers import with_padding
from whet.records import Sequences
from whet.report.run.reward_figures import reward_figures
from whet.runs.directory import RunDirectory
from whet.train.optimizers.optimizer import ask_loss, finite, make_optimizer
from whet.train.rows.examples import Note
from whet.train.rows.reward_tokens import Judged, groups_of, judged
from whet.train.rows.trainer import OfflineTrainer
from whet.train.rows.units import stacked, whole_units
from whet.train.setup.build import Parts, halve_master_weights, start_model
from whet.train.setup.lora_setup import attach_adapter
from whet.train.spreading.spread_models import held

REWARD_DATA = {"preference": ("pairs",), "outcome": ("outcomes",), "process": ("traces",)}


def build_reward_parts(config: OfflineConfig, kind: Kind, world: World) -> Parts[RewardModel]:
    """A reward model on the trunk of the language model that the config names."""
    start = start_model(config, world)
    head = config.reward_head
    assert config.data is not None
    settings = RewardSettings(
        kind=kind,
        classes=head.classes if kind == "process" else 1,
        every_token=head.every_token and kind == "outcome",
        separator=head.separator,
        aggregation=head.aggregation,
        max_tokens=config.data.max_tokens,
    )
    tokenizer, padding = with_padding(start.tokenizer)
    model = new_reward_model(start.policy, settings, seed=config.seed, pad=padding)
    origin = fingerprint(model)
    adapter = attach_adapter(config.model, model, world.device, seed=config.seed)
    halve_master_weights(config, model.trunk, world.device)
    model = held(model, world)
    model.gradient_checkpointing = config.model.gradient_checkpointing
    return Parts(
        task=start.task,
        evaluation={},
        tokenizer=tokenizer,
        policy=model,
        load=load_reward_model,
        engine=None,
        optimizer=make_optimizer(model, config.optimizer),
        origin=origin,
        dtype=start.dtype,
        notes=start.notes,
        adapter=adapter,
        whole=world.sharding.whole,
    )


class RewardTrainer(OfflineTrainer[Judged]):
    """Trains a reward model."""

    def __init__(self, config: OfflineConfig, row: RewardObjective, world: World, note: Note) -> None:
        parts = build_reward_parts(config, row.kind, world)
        self.loss, self.model = row.loss, parts.policy
        super().__init__(config, parts, world, REWARD_DATA[row.kind], note)

    def encode(self, rows: Sequence[Any]) -> list[Judged | None]:
        return [judged(row, self.parts.tokenizer, self.model.settings, self.limit) for row in rows]

    def fit(self, rows: Sequence[Judged]) -> tuple[dict[str, float], int]:
        seen = Seen()
        metrics = self.descend(self._losses(rows, seen))
        tokens = self.world.sum(torch.tensor(sum(len(r.tokens) for one in rows for r in one.rows)))
        right, total, count, scored = self.world.sum(torch.stack(seen.sums).sum(dim=0)).tolist()
        metrics |= {ACCURACY_OF[self.model.kind]: right / max(1.0, count), "score/mean": total / max(1.0, scored)}
        judged = chain.from_iterable(self.world.gather(seen.judged))
        return metrics | _correlation("length/score_correlation", judged), int(tokens)

    def measure_rows(self, held_out: Sequence[Judged]) -> dict[str, float]:
        """Loss, accuracy with its interval, and the other metrics of this kind of reward model."""
        loss = self.total(self._losses(self.world.shard(held_out), Seen()))
        told = self._told(held_out)
        rows = chain.from_iterable(one.rows for one in held_out)
        values = chain.from_iterable(told)
        judged = [(float(sum(row.mask)), self._of_completion(some)) for row, some in zip(rows, values, strict=True)]
        of_length = _correlation("eval/length_score_correlation", judged)
        return {"eval/loss": loss, **report_metrics(self._report(held_out, told)), **of_length}

    @torch.no_grad()
    def report(self, held_out: Sequence[Judged]) -> Report:
        """Quality on rows of all ranks; intervals count clusters of similar rows."""
        return self._report(held_out, self._told(held_out))

    def _told(self, held_out: Sequence[Judged]) -> list[list[list[float]]]:
        """What the model makes of every place of every row of these, on all ranks."""
        return self.world.interleave([[row.tolist() for row in rows] for rows in self._meant(held_out)])

    def _report(self, held_out: Sequence[Judged], told: Sequence[Sequence[Sequence[float]]]) -> Report:
        data = [one.data for one in held_out]
        clusters = [self.cluster(row) for row in data]
        if self.model.kind == "preference":
            return pair_report(
                [rows[0][-1] for rows in told],
                [rows[1][-1] for rows in told],
                lengths=[(sum(one.rows[0].mask), sum(one.rows[1].mask)) for one in held_out],
                stated=[pair.margin for pair in data],
                clusters=clusters,
            )
        if self.model.kind == "outcome":
            return outcome_report(
                [[row[-1] for row in rows] for rows in told], [one.correct for one in data], clusters=clusters
            )
        return process_report([rows[0] for rows in told], [one.labels for one in data], clusters=clusters)

    def conclude(self, run: RunDirectory, note: Note) -> None:
        """Writes an analysis of the best model on the held-out rows, with its worst mistakes in full.

        Loads the best weights, which are the result of the run, whichever it ended with. Of several evaluation sets
        it is the first.
        """
        if not self.evaluation:
            return
        best, info = run.best_model(), run.best_info()
        if best is None and not self.config.eval.every_steps:
            return  # interrupted: without evaluations the last model is the best
        if best is None or info is None:
            raise RunFailed(f"{run.path} has lost its best model, so there is nothing to analyse")
        self.parts.restore_model(best)
        held_out = next(iter(self.evaluation.values()))
        report = self.report(held_out)
        worst = [asdict(held_out[number].data) for number in report.worst]
        share = report.accuracy
        name = ACCURACY_OF[self.model.kind].replace("_", " ")
        measured = f"{name} {share.mean:.1%} ({share.low:.1%} to {share.high:.1%})"
        picture = reward_figures(
            report,
            title=f"{run.recipe}: {self.model.kind} reward model",
            subtitle=f"best model, of step {info['step']}: {len(held_out):,} held-out rows, {measured}",
        )
        analysis = {"step": info["step"], **asdict(report), "worst_rows": worst}
        note(f"analysis: {run.write_analysis(analysis, picture)}")

    def _meant(self, held_out: Sequence[Judged]) -> list[list[Tensor]]:
        """For each of these rows that is this rank's: scores at its places; probabilities for outcome and process."""
        some = self.world.shard(held_out)
        sequences, places = self._stacked(some)
        values: dict[int, Tensor] = {}
        batches = whole_units(sequences, 1, self.config.update, self.model.trunk)
        for rows in self.world.sharding.evened(batches, self.model.trunk):
            read = self.model.meant(self._read(sequences, places, rows)).cpu()
            counts = places[rows].sum(dim=1).tolist()
            values |= dict(zip(rows.tolist(), torch.split(read, counts), strict=True))
        in_order = (values[row] for row in range(len(values)))
        return [[next(in_order) for _ in one.rows] for one in some]

    def _stacked(self, some: Sequence[Judged]) -> tuple[Sequences, Tensor]:
        """All rows as tensors, and where their scores are read."""
        sequences = stacked([row for one in some for row in one.rows], self.world)
        places = pad([place for one in some for place in one.places], torch.bool).to(self.world.device)
        return sequences, places

    def _read(self, sequences: Sequences, places: Tensor, rows: Tensor, groups: Tensor | None = None) -> Tensor:
        """The scores at the places of these rows; rows of one group share their prompt, which is computed once."""
        s = take(sequences, rows)
        at = places[rows, : s.tokens.shape[1]]
        packing = pack_through(s.tokens, s.mask, groups) if self.config.update.padding_free else None
        with autocast(self.world.device):
            return self.model.scores(s.tokens, s.lengths, at, packing)

    def _of_completion(self, values: Sequence[float]) -> float:
        """The score of a completion from those at its places, as a `Scorer` gives it."""
        if self.model.kind == "process":
            return aggregated(values, self.model.settings.aggregation)
        return values[-1]

    def _note(self, seen: "Seen", right: Tensor, scores: Tensor, lengths: Tensor, counts: Tensor) -> None:
        """Adds one pass; `counts` are the scores of each row."""
        seen.sums.append(_seen(right, scores))
        values = torch.split(self.model.meant(scores.detach()).cpu(), counts.tolist())
        given = [self._of_completion(some.tolist()) for some in values]
        seen.judged += zip(lengths.double().tolist(), given, strict=True)

    def _losses(self, some: Sequence[Judged], seen: "Seen") -> Iterator[Tensor]:
        """The loss of each pass; they add up to the mean over all ranks."""
        if self.model.kind == "preference":
            yield from self._pair_losses(some, seen)
        else:
            yield from self._place_losses(some, seen)

    def _pair_losses(self, some: Sequence[Judged], seen: "Seen") -> Iterator[Tensor]:
        gathered = float(self.world.sum(torch.tensor(len(some))))
        margins = torch.tensor([one.margin for one in some], device=self.world.device)
        sequences, places = self._stacked(some)
        groups = groups_of(some).to(self.world.device)
        batches = whole_units(sequences, 2, self.config.update, self.model.trunk)
        for rows in self.world.sharding.evened(batches, self.model.trunk):
            scores = self._read(sequences, places, rows, groups[rows])
            chosen, rejected = scores[::2], scores[1::2]
            supply = {"chosen_scores": chosen, "rejected_scores": rejected, "margins": margins[rows[::2] // 2]}
            lengths = sequences.mask[rows].sum(dim=1)
            self._note(seen, wins(chosen, rejected), scores, lengths, torch.ones_like(rows))
            per_pair = ask_loss(self.loss, supply, shapes=(chosen.shape,))
            yield finite(per_pair.sum() / gathered, chosen=chosen, rejected=rejected)

    def _place_losses(self, some: Sequence[Judged], seen: "Seen") -> Iterator[Tensor]:
        """Every completion (outcome) or every step (process) has the same weight."""
        by_row = self.model.kind == "outcome"
        labels = [label for one in some for label in one.labels]
        count = len(labels) if by_row else sum(map(len, labels))
        gathered = float(self.world.sum(torch.tensor(count)))
        sequences, places = self._stacked(some)
        batches = whole_units(sequences, 1, self.config.update, self.model.trunk)
        for rows in self.world.sharding.evened(batches, self.model.trunk):
            scores = self._read(sequences, places, rows)
            mine = [labels[row] for row in rows.tolist()]
            wanted = torch.tensor([label for row in mine for label in row], device=self.world.device)
            shares = [1 / len(row) if by_row else 1.0 for row in mine for _ in row]
            weights = torch.tensor(shares, device=self.world.device) / gathered
            # As on held-out rows: good or neutral against bad, and an outcome is judged by its last token.
            right = (self.model.meant(scores) >= 0.5) == (wanted != BAD)
            ends = torch.tensor([len(row) for row in mine], device=self.world.device).cumsum(dim=0) - 1
            lengths, counts = sequences.mask[rows].sum(dim=1), places[rows].sum(dim=1)
            self._note(seen, right[ends] if by_row else right, scores, lengths, counts)
            supply = {"scores": scores, "labels": wanted, "classes": wanted}
            yield finite((ask_loss(self.loss, supply, shapes=(wanted.shape,)) * weights).sum(), scores=scores)


class Seen:
    """What the passes of a step saw."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []  # of each pass, as `_seen` gives them
        self.judged: list[tuple[float, float]] = []  # length and score of every completion


def _seen(right: Tensor, scores: Tensor) -> Tensor:
    """(4,): sums, then counts, of correct predictions and of scores."""
    sums = torch.stack([right.sum(), scores.detach().double().sum()]).cpu()
    return torch.cat([sums, sums.new_tensor([right.numel(), scores.numel()])])


def _correlation(name: str, judged: Iterable[Sequence[float]]) -> dict[str, float]:
    """Spearman's rank correlation of length and score as a metric of this name; none if either is constant."""
    lengths, scores = zip(*judged, strict=True)
    found = rank_correlation(lengths, scores)
    return {} if found is None else {name: found}
