"""What all offline trainers share: the rows of a step, an optimizer step on them, the loss on held-out rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from whet.config import OfflineConfig
from whet.data.split import clustering
from whet.distributed.world import World
from whet.evaluate.measures import of_set
from whet.records import Row, Text
from whet.runs.directory import RunDirectory
from whet.train.optimizers.optimizer import descend
from whet.train.rows.examples import Note, encoded, read_material
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import Parts
from whet.train.setup.epochs import EpochSampler
from whet.train.setup.prompt_notes import chat_note

U = TypeVar("U")


class Trainer(Protocol):
    """What the offline loop needs of a trainer."""

    parts: Parts[Any]
    kept: Mapping[str, Checkpointed]

    def rows(self, step: int) -> Sequence[Any]: ...

    def lengths(self) -> Sequence[tuple[int, int]]: ...

    def fit(self, rows: Sequence[Any]) -> tuple[dict[str, float], int]: ...

    def measure(self) -> dict[str, float]: ...

    def conclude(self, run: RunDirectory, note: Note) -> None: ...


class OfflineTrainer(ABC, Generic[U]):
    """Trains on rows that exist, each encoded as a `U`. They are drawn by (seed, step), so resuming needs no state."""

    kept: Mapping[str, Checkpointed] = {}

    def __init__(
        self, config: OfflineConfig, parts: Parts[Any], world: World, kinds: Sequence[str], note: Note
    ) -> None:
        """Reads rows of these kinds; none if the task itself has the answers."""
        self.config, self.parts, self.world = config, parts, world
        self.evaluation: dict[str, Sequence[U]] = {}  # evaluation set → its rows
        if config.data is not None:
            what, context = f"objective {config.objective.name!r}", parts.policy.context
            material = read_material(config, kinds, what, context=context, note=note)
            self._say_chat(material.training, note)
            self.limit = material.limit
            self.cluster = clustering(chain(material.training, *material.evaluation.values()))
            training = encoded(material.training, self.encode, material, note)
            self.epoch_sampler = EpochSampler(training, seed=config.seed)
            for name, rows in material.evaluation.items():
                self.evaluation[name] = encoded(rows, self.encode, material, note)[: config.eval.examples]

    def _say_chat(self, rows: Sequence[Any], note: Note) -> None:
        assert self.config.data is not None
        prompts = (row.prompt for row in rows if not isinstance(row, Text))
        of = " and ".join(self.config.data.paths)
        told = chat_note(self.config.model, self.parts.tokenizer, prompts, of=of, key="data.chat=true")
        if told:
            note(f"note: {told}")

    @abstractmethod
    def encode(self, rows: Sequence[Any]) -> list[U | None]:
        """Rows of data as tokens; None for one that does not fit."""

    def rows(self, step: int) -> Sequence[Any]:
        """This rank's share of the rows of a step."""
        return self.world.shard(self.epoch_sampler.draw(self.config.batch_size, step=step))

    def lengths(self) -> Sequence[tuple[int, int]]:
        """Tokens of prompt and completion of the sequences of the first step."""
        return [parted(row) for one in self.rows(1) for row in one.rows]

    @abstractmethod
    def fit(self, rows: Sequence[Any]) -> tuple[dict[str, float], int]:
        """One optimizer step; returns metrics and the number of trained tokens, over all ranks."""

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Metrics of the rows of every evaluation set, and how many rows it has."""
        found: dict[str, float] = {}
        for name, rows in self.evaluation.items():
            found |= of_set(name, {**self.measure_rows(rows), "eval/rows": float(len(rows))})
        return found

    @abstractmethod
    def measure_rows(self, held_out: Sequence[U]) -> dict[str, float]:
        """Metrics of an evaluation set; every rank has all its rows."""

    def conclude(self, run: RunDirectory, note: Note) -> None:
        """Called once after the last step, also of an interrupted run."""

    def descend(self, losses: Iterable[Tensor]) -> dict[str, float]:
        """One optimizer step on the sum of these losses."""
        descent = descend(losses, [self.parts.optimizer], self.world, max_grad_norm=self.config.update.max_grad_norm)
        assert descent is not None
        return {"loss": descent.loss, "grad_norm": descent.grad_norms[0]}

    def total(self, losses: Iterable[Tensor]) -> float:
        """The sum of these losses over all ranks."""
        return float(self.world.sum(sum((loss.cpu() for loss in losses), torch.zeros((), dtype=torch.float64))))


def parted(row: Row) -> tuple[int, int]:
    """Tokens before the first trained one, and from it on."""
    prompt = row.mask.index(True)
    return prompt, len(row.tokens) - prompt
