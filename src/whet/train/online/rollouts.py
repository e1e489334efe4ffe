"""Where the rollouts of a step come from: sampled now by the trainer's engine, or ahead by workers.

The loop asks for one draw after the other and knows no workers. With workers and a staleness of 0 a run is the same,
byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

from whet.config import OnlineConfig
from whet.config.parts import AsynchronousConfig, EngineConfig
from whet.config.reward import MOST_WORKERS
from whet.distributed.world import World
from whet.engines.vllm.vllm_engine import require_vllm
from whet.errors import UserError
from whet.imports import optional_package
from whet.models.protocol import CausalLM
from whet.records import Completion, Prompt, Sampling
from whet.rollout import Scoring, draw, sample, tokenize_prompts
from whet.runs.directory import RunDirectory
from whet.runs.layout import hand_off_path, reward_workers_path
from whet.tasks.protocol import Grader
from whet.train.online.learner import ControllerState, Learner
from whet.train.online.wanted_number import WantedNumber
from whet.train.session.callbacks import Progress
from whet.train.session.checkpointed import Checkpointed
from whet.train.setup.build import Parts
from whet.train.setup.reward_grader import follow_wanted

Timed = Callable[[str], AbstractContextManager[None]]  # `Session.timed`
Samples = list[tuple[Prompt, list[Completion]]]


class Rollouts(Protocol):
    """A source of rollouts."""

    @property
    def kept(self) -> Mapping[str, Checkpointed]:
        """What checkpoints hold of rollouts that are not yet consumed."""
        ...

    def next(self, step: int, sampling: Sampling, timed: Timed) -> tuple[Scoring, Samples]:
        """The completions of the next draw, this rank's share of `rollout.prompts` prompts, and what scores them."""
        ...

    def metrics(self) -> dict[str, float]:
        """Of the rollouts of the step."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What draws of prompts are made of."""

    parts: Parts[CausalLM]
    learner: Learner
    grader: Grader
    controllers: ControllerState
    config: OnlineConfig
    world: World


class SampledNow:
    """Rollouts of the trainer's own engine, with the weights of the step."""

    kept: Mapping[str, Checkpointed] = {}

    def __init__(self, source: Source) -> None:
        self._of = source

    def next(self, step: int, sampling: Sampling, timed: Timed) -> tuple[Scoring, Samples]:  # noqa: ARG002 - no wait
        of, parts, rollout = self._of, self._of.parts, self._of.config.rollout
        assert parts.engine is not None
        parts.engine.sync(of.learner.policy, version=step - 1)
        name = (of.config.seed, of.controllers.next_draw())
        examples = draw(parts.task, rollout.prompts, seed=name)
        prompts = of.world.shard(tokenize_prompts(examples, parts.tokenizer, stream=name))
        mine = of.world.shard(examples)
        scoring = Scoring(of.grader, mine, version=step - 1, steps=of.config.steps)
        greedy = of.learner.algorithm.needs_greedy
        play = None if parts.play is None else parts.play(mine)
        return scoring, sample(parts.engine, prompts, sampling, rollout.group, scoring, greedy=greedy, play=play)

    def metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Nothing to release: the session closes the engine."""


def require_pool(settings: AsynchronousConfig, engine: EngineConfig) -> None:
    """Refuses a pool that cannot be started here, before anything is written."""
    if engine.name == "vllm" and settings.pool == "processes":
        require_vllm()
    if settings.pool == "ray":
        optional_package("ray", "asynchronous.pool=ray", remedy="pip install 'whet[ray]'")
    place = settings.weights_directory
    if not place:
        return
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UserError(
            f"asynchronous.weights_directory: nothing can be written to {place} ({error.strerror or error}): name a "
            "folder that the trainer writes to and all workers read"
        ) from error


def _reward_workers(wanted: WantedNumber, progress: Progress) -> int | None:
    number = wanted.changed()
    if number is None:
        return None
    used = min(number, MOST_WORKERS)
    progress.note(f"reward workers: {used} from now on{f', the most; not {number}' if used < number else ''}")
    return used


def build_rollouts(
    parts: Parts[CausalLM],
    learner: Learner,
    grader: Grader,
    controllers: ControllerState,
    run: RunDirectory,
    progress: Progress,
) -> Rollouts:
    """The source that the recipe asks for, and a grader that follows what a user writes of its workers."""
    wanted = WantedNumber(reward_workers_path(run.path), progress)
    follow_wanted(grader, partial(_reward_workers, wanted, progress), progress.note)
    source = Source(
        parts=parts, learner=learner, grader=grader, controllers=controllers, config=learner.config, world=learner.world
    )
    if learner.config.asynchronous is None:
        return SampledNow(source)
    from whet.train.online.asynchronous import SampledAhead

    return SampledAhead(source, hand_off_path(run.path), progress)
