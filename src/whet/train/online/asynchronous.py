"""Rollouts that workers sample while the trainer updates (`whet.train.rollout_pool`).

Rank 0 has the pool and the answers; the other ranks draw the same prompts and get the completions of theirs from it.
A checkpoint holds the outstanding draws with their completions, so it waits for them.
"""

from __future__ import annotations

import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.engines.native.native_engine import PLAIN_SEQUENCES
from whet.engines.vllm.weights import served_decoder
from whet.errors import RunFailed
from whet.records import Completion, Example, Prompt, Sampling
from whet.rollout import Scoring, draw, tokenize_prompts
from whet.streams import name_number
from whet.tasks.grading.wire import pack_example, unpack_example
from whet.train.online.rollouts import Samples, Source, Timed
from whet.train.online.wanted_number import WantedNumber
from whet.train.rollout_pool.makers import WeightsOut, weights_out, worker_maker
from whet.train.rollout_pool.orders import Order, WorkerSetup, from_bytes, unpack_samples
from whet.train.rollout_pool.schedule import Part, Ticket, Tickets, divided, useful_workers
from whet.train.rollout_pool.segments import Segment, completed, following, segments_of, usual_segment
from whet.train.rollout_pool.ticket_pool import RolloutPool
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed
from whet.train.session.disk_space import size
from whet.train.setup.build import keeps_bf16
from whet.train.setup.offloading import size_of

TOKEN_BYTES = 16  # of a completion in a checkpoint: id and log-prob
WANTED = "workers"  # a file in which a user writes how many workers there shall be
START = "start"  # the directory of model and tokenizer that workers build theirs from


@dataclass(slots=True)
class Drawn:
    """A ticket with its prompts and what a checkpoint held of its answers."""

    ticket: Ticket
    examples: list[Example]
    prompts: list[Prompt]
    restored: dict[int, list[Segment]] = field(default_factory=dict)  # number of a part → its segments
    asked: set[int] | None = None  # parts that workers were asked for


class SampledAhead(Checkpointed):
    """Tickets are issued at the start of a step and consumed in order, at most `staleness` steps later."""

    def __init__(self, source: Source, directory: Path, progress: Progress) -> None:
        """`directory`: of the run's own, for weights and answers, unless the recipe names another place."""
        assert source.config.asynchronous is not None
        if source.config.engine.name == "vllm":
            served_decoder(source.learner.policy)  # before workers are started
        self._of, self._settings, self._progress = source, source.config.asynchronous, progress
        place, self._others = self._settings.weights_directory, source.config.placement.names
        self._directory = Path(place) / shared_name(directory.parent) if place else directory
        self._tickets = Tickets(self._settings.staleness)
        self._drawn: dict[int, Drawn] = {}  # draw → outstanding, or consumed since the last `numbers`
        self._noted: list[int] = []  # draws of the last `numbers`, whose answers `tensors` are
        self._pool: RolloutPool | None = None  # of rank 0, from the first draw on
        self._leave: Callable[[], None] = lambda: None  # what the pool's workers live in
        self._weights: WeightsOut = weights_out(self._settings, self._directory, source.world.device)
        self._version = -1  # the last that was handed over
        self._workers = self._useful(self._settings.workers)
        self._wanted = WantedNumber(self._directory / WANTED, progress)
        self._step = 0
        self._lags: Counter[int] = Counter()  # age of weights → draws of this step; with in-flight updates tokens
        rollout, engine = self._of.config.rollout, self._of.config.engine
        batch = max(1, (engine.max_sequences or PLAIN_SEQUENCES) // rollout.group)
        self._parts = divided(rollout.prompts, self._settings.parts, batch)

    @property
    def kept(self) -> Mapping[str, Checkpointed]:
        return {"rollouts": self}

    def next(self, step: int, sampling: Sampling, timed: Timed) -> tuple[Scoring, Samples]:
        if step != self._step:
            self._step, self._lags = step, Counter()
            self._resize()
        ticket, issued = self._tickets.take(step, self._of.controllers.next_draw)
        for new in issued:
            self._issue(new, sampling, timed)
        drawn, world = self._drawn[ticket.draw], self._of.world
        with timed("waiting"):
            samples = self._samples(drawn)
        self._tell()
        examples = world.shard(drawn.examples)
        steps = self._of.config.steps
        return Scoring(self._of.grader, examples, version=ticket.version, steps=steps, finished=step - 1), samples

    def metrics(self) -> dict[str, float]:
        """By how many steps the weights that sampled were older than those that learned."""
        if not self._settings.staleness:
            return {}
        lags, shares = self._lags, {}
        if self._settings.in_flight_updates:
            every = range(self._settings.staleness + 1)
            shares = {f"staleness/share/{age}": lags[age] / lags.total() for age in every}
        return {"staleness/mean": statistics.fmean(lags.elements()), "staleness/max": float(max(lags)), **shares}

    def close(self) -> None:
        self._weights.close()
        if self._pool is not None:
            self._pool.close()
            self._leave()
        if self._of.world.is_writer:  # also what a killed process left to a run that has no step left
            shutil.rmtree(self._directory, ignore_errors=True)

    def numbers(self) -> dict[str, Any]:
        """The outstanding draws. Consumed ones are forgotten: a step that begins will not be abandoned to before it."""
        outstanding = self._tickets.outstanding
        self._noted = [ticket.draw for ticket in outstanding]
        self._drawn = {draw: self._drawn[draw] for draw in self._noted}
        if self._pool is not None:
            self._pool.forget_but(self._noted)
        return {
            "draws": [
                {**asdict(ticket), "examples": [pack_example(one) for one in self._drawn[ticket.draw].examples]}
                for ticket in outstanding
            ]
        }

    def tensors(self) -> dict[str, Tensor]:
        """The completions of the draws that `numbers` named last, as far as there are weights; rank 0 has them."""
        if not self._of.world.is_writer:
            return {}
        return {
            f"{self._prefix(draw, part, segment)}{name}": tensor
            for draw in self._noted
            for part in range(len(self._parts))
            for segment, answer in enumerate(self._answers(self._drawn[draw], part, so_far=True))
            for name, tensor in answer.items()
        }

    def saved_sizes(self) -> tuple[int, int]:
        rollout = self._of.config.rollout
        return self._settings.staleness * rollout.prompts * rollout.group * rollout.max_tokens * TOKEN_BYTES, 0

    def restore(self, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        found = [self._restored(row, tensors) for row in numbers["draws"]]
        self._drawn = {drawn.ticket.draw: drawn for drawn in found}
        self._tickets = Tickets(self._settings.staleness, [drawn.ticket for drawn in found])

    def _restored(self, row: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Drawn:
        ticket = Ticket(row["draw"], row["version"])
        drawn = self._prompted(ticket, [unpack_example(one) for one in row["examples"]])
        for part in range(len(self._parts)):
            for segment in range(self._segments):
                prefix = self._prefix(ticket.draw, part, segment)
                answer = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
                if answer:
                    drawn.restored.setdefault(part, []).append(answer)
        return drawn

    def _prefix(self, draw: int, part: int, segment: int) -> str:
        """Of the names of tensors in a checkpoint."""
        is_whole = len(self._parts) == 1 and not self._settings.in_flight_updates
        return f"{draw}." if is_whole else f"{draw}.{part}.{segment}."

    def _issue(self, ticket: Ticket, sampling: Sampling, timed: Timed) -> None:
        """Draws the prompts of a ticket, and gives it to the workers."""
        of = self._of
        name = (of.config.seed, ticket.draw)
        drawn = self._prompted(ticket, draw(of.parts.task, of.config.rollout.prompts, seed=name))
        with timed("hand_off"):
            self._hand_off(ticket.version)
        self._drawn[ticket.draw] = drawn
        if self._pool is not None:
            for one in self._drawn.values():  # also what a checkpoint has begun
                if one.asked is None:
                    self._ask(self._pool, one, sampling)

    def _ask(self, pool: RolloutPool, drawn: Drawn, sampling: Sampling) -> None:
        """Gives what is not yet sampled of a ticket to the workers."""
        rollout, drawn.asked = self._of.config.rollout, set()
        for number, prompts in enumerate(self._parts):
            order: Order | None = Order(
                part=Part(drawn.ticket.draw, number, len(self._parts)),
                version=drawn.ticket.version,
                prompts=tuple(drawn.prompts[place] for place in prompts),
                sampling=sampling,
                group=rollout.group,
                greedy=self._of.learner.algorithm.needs_greedy,
                segments=self._segments,
                segment_tokens=self._segment_tokens,
            )
            for answer in drawn.restored.get(number, ()):
                order = None if order is None else self._following(order, answer)
            if order is not None:
                drawn.asked.add(number)
                pool.submit(order)

    def _following(self, order: Order, answer: Segment) -> Order | None:
        return following(order, answer, self._of.learner.policy.context)

    @property
    def _segment_tokens(self) -> int | None:
        """Tokens between updates in flight."""
        if not self._settings.in_flight_updates:
            return None
        return self._settings.segment_tokens or usual_segment(
            self._of.config.rollout.max_tokens, self._settings.staleness
        )

    @property
    def _segments(self) -> int:
        size = self._segment_tokens
        return 1 if size is None else segments_of(self._of.config.rollout.max_tokens, size, self._settings.staleness)

    def _prompted(self, ticket: Ticket, examples: list[Example]) -> Drawn:
        stream = (self._of.config.seed, ticket.draw)
        prompts = tokenize_prompts(examples, self._of.parts.tokenizer, stream=stream)
        return Drawn(ticket=ticket, examples=examples, prompts=prompts)

    def _samples(self, drawn: Drawn) -> Samples:
        """This rank's share of the completions of a draw."""
        world = self._of.world
        samples = self._whole(drawn) if world.is_writer else []
        if world.size == 1:
            self._note_ages(drawn, [one for _, some in samples for one in some])
            return samples
        shared = world.gather([[asdict(one) for one in some] for _, some in samples])[0]
        completions = [[_completion(one) for one in some] for some in shared]
        self._note_ages(drawn, [one for some in completions for one in some])
        return world.shard(list(zip(drawn.prompts, completions, strict=True)))

    def _whole(self, drawn: Drawn) -> Samples:
        """All completions of a draw."""
        count = self._of.config.rollout.group + self._of.learner.algorithm.needs_greedy
        samples: Samples = []
        for number, places in enumerate(self._parts):
            prompts, answers = [drawn.prompts[place] for place in places], self._answers(drawn, number)
            if self._settings.in_flight_updates:
                samples += completed(answers, prompts, count, self._of.parts.tokenizer)
            else:
                samples += unpack_samples(answers[0], prompts, count)
        return samples

    def _answers(self, drawn: Drawn, part: int, *, so_far: bool = False) -> list[Segment]:
        """What workers answered of a part, segment by segment; waits for it, or for those whose weights are there."""
        restored = drawn.restored.get(part, [])
        if drawn.asked is None or part not in drawn.asked:
            return restored
        assert self._pool is not None
        named = Part(drawn.ticket.draw, part, len(self._parts))
        found = self._pool.answer_so_far(named) if so_far else self._pool.answer(named)
        return [*restored, *map(from_bytes, found)]

    def _note_ages(self, drawn: Drawn, completions: Sequence[Completion]) -> None:
        """Counts how old the weights are that sampled; ends the run if they are older than asked for."""
        if self._settings.in_flight_updates:
            ages = Counter(self._step - 1 - version for one in completions for version in one.versions)
        else:
            ages = Counter([self._step - 1 - drawn.ticket.version])
        odd = [age for age in ages if not 0 <= age <= self._settings.staleness]
        if odd:
            raise RunFailed(
                f"draw {drawn.ticket.draw} has tokens of weights that are {odd[0]} steps old, and "
                f"asynchronous.staleness is {self._settings.staleness}: this is a bug of whet"
            )
        self._lags += ages

    def _hand_off(self, version: int) -> None:
        """Hands the weights of the step over, once; of a policy that is spread over ranks by all of them."""
        world = self._of.world
        if version == self._version or not (world.is_writer or world.sharding.is_sharded):
            return
        if self._version < 0:
            self._start()
        handed, self._version = self._weights.publish(self._of.learner.policy, version, world), version
        if self._pool is not None and handed is not None:
            self._pool.publish(version, *handed)
            self._weights.keep(self._pool.versions | {version})

    def _start(self) -> None:
        """The pool of rank 0, at the first draw; its workers load the model that all ranks save."""
        if not self._of.world.is_writer:
            self._of.parts.save_model(None)
            return
        try:
            shutil.rmtree(self._directory, ignore_errors=True)  # of a killed process
            (self._directory / START).mkdir(parents=True)
        except OSError as error:
            raise RunFailed(f"{self._directory}: weights cannot be handed over there ({error})") from error
        self._require_space()
        self._of.parts.save_model(self._directory / START)
        make, self._leave = worker_maker(self._settings, self._setup(), self._directory, self._others)
        self._pool = RolloutPool(
            lambda number: self._weights.connected(make(number)),
            self._workers,
            lambda order, answer: self._following(order, from_bytes(answer)),
        )

    def _require_space(self) -> None:
        """The weights to start with, those of the newest step, one file that is written, and those of open tickets."""
        copies, weights = self._settings.staleness + 3, size_of(self._of.parts.saved)
        is_broadcast = self._settings.hand_off == "broadcast"
        needed, free = (1 if is_broadcast else copies) * weights, shutil.disk_usage(self._directory).free
        if needed > free:
            raise RunFailed(
                f"handing weights to rollout workers needs {size(needed)} in {self._directory}, which has {size(free)} "
                "free: free some, name another place (asynchronous.weights_directory), or lower asynchronous.staleness"
            )
        many = "1 worker" if self._workers == 1 else f"{self._workers} workers"
        self._progress.note(
            f"rollouts: sampled ahead by {many} ({self._settings.pool}), at most {size(needed)} on disk"
            f"{f' and {size((copies - 1) * weights)} in host memory' if is_broadcast else ''}"
            f"{self._idle(self._settings.workers)}"
        )

    def _idle(self, wanted: int) -> str:
        """What is said of workers that are not started."""
        most, settings = self._useful(wanted), self._settings
        if wanted == most:
            return ""
        if settings.parts > 1:
            return (
                f"; not {wanted}, because with asynchronous.parts={settings.parts} and asynchronous.staleness="
                f"{settings.staleness} no more than {most} parts of draws are under way"
            )
        return (
            f"; not {wanted}, because a worker samples a whole draw (asynchronous.parts divides it), and with "
            f"asynchronous.staleness={settings.staleness} no more than {most} are under way"
        )

    def _useful(self, wanted: int) -> int:
        return useful_workers(wanted, self._settings.staleness, self._settings.parts)

    def _setup(self) -> WorkerSetup:
        config, device = self._of.config, self._of.world.device
        return WorkerSetup(
            model=config.model.model_dump(mode="json"),
            engine=config.engine.model_dump(mode="json"),
            seed=config.seed,
            start=str(self._directory / START),
            keep_bf16=keeps_bf16(config, device),
            trains_in_bf16=config.optimizer.master_weights != "fp32",
            device=device.type,
            threads=self._settings.threads or torch.get_num_threads(),
        )

    def _resize(self) -> None:
        """Follows the number that a user wrote since the last step."""
        if self._pool is None or (wanted := self._wanted.changed()) is None:
            return
        useful = self._useful(wanted)
        if useful != self._workers or useful != wanted:
            self._progress.note(f"rollout workers: {useful} instead of {self._workers}{self._idle(wanted)}")
            self._workers = useful
            self._pool.resize(useful)

    def _tell(self) -> None:
        for note in self._pool.notes() if self._pool is not None else ():
            self._progress.note(note)


def shared_name(run: Path) -> str:
    """The name of a run's directory among those of others, which may be called the same in other folders."""
    return f"whet-{run.name}-{name_number(str(run.resolve())):016x}"


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(**{**row, **{name: tuple(row[name]) for name in ("tokens", "logprobs", "versions")}})
