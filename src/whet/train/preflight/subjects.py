"""What is checked before a run: the parts that it would be built of, and a few real sequences of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch

from whet.config import OfflineConfig, OnlineConfig
from whet.distributed.world import World
from whet.errors import UserError
from whet.models.download.model_hub import resolve_model
from whet.models.load import is_bidirectional, load_model
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.reward.reward_model import RewardModel
from whet.models.reward.settings import reward_kind
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.recipe import validate
from whet.records import Batch, Completion, Example, Message, Prompt, Row, Sampling, Text
from whet.rollout import Group, draw, grade, sample, tokenize_prompts
from whet.train.online.annotate import annotate
from whet.train.online.learner import ControllerState, build_learner
from whet.train.online.sampling import SampledGroups
from whet.train.online.update import update
from whet.train.optimizers.optimizer import make_optimizer
from whet.train.preflight.learning import Step, distinct, supervised_step
from whet.train.preflight.probabilities import Read
from whet.train.preflight.results import NotTried
from whet.train.preflight.templates import Asked
from whet.train.rows.loop import build_trainer
from whet.train.rows.text_trainer import TextTrainer
from whet.train.rows.units import PLAIN
from whet.train.setup.build import build_engine, build_parts
from whet.train.setup.epochs import load_sides
from whet.train.setup.reward_grader import build_grader
from whet.train.spreading.spread_models import held

PROMPTS, GROUP = 16, 8  # of the rollouts that are looked at, at most
UNITS = 8  # rows of an offline run that are looked at
WINDOW = 64  # tokens of a window of text that are read
QUESTIONS = ("What is the capital of France?", "Write a short story.", "2 + 2 =", "The weather today is")
TOKENS = 12  # of a completion of a model without a recipe
CHARACTERS = 4  # of its prompts, where it knows no letters


class OnlineSubject:
    """The first step of an online run, with fewer prompts."""

    def __init__(self, config: OnlineConfig, world: World) -> None:
        few = {
            "prompts": min(PROMPTS, config.rollout.prompts),
            "group": min(GROUP, config.rollout.group),
            "max_resamples": 0,
        }
        rollout = config.rollout.model_copy(update=few)
        self.config = config.model_copy(update={"rollout": rollout, "asynchronous": None})
        self.world = world
        self.parts = build_parts(self.config, world)
        self.learner = build_learner(self.parts, self.config, world)
        self.grader = build_grader(
            self.config, world.device, self.parts.task, self.parts.tokenizer, None, self.parts.frozen_base
        )
        self.settings = ControllerState(kl_coefficient=config.algorithm.kl.coefficient).step_settings(
            self.config, tokens=0, stops=self.tokenizer.stops
        )

    @property
    def policy(self) -> CausalLM:
        return self.parts.policy

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts.tokenizer

    @cached_property
    def examples(self) -> list[Example]:
        return draw(self.parts.task, self.config.rollout.prompts, seed=(self.config.seed, 1))

    @property
    def prompts(self) -> list[Asked]:
        return [example.prompt for example in self.examples]

    @property
    def texts(self) -> list[str]:
        """Prompts and expected answers that are plain text."""
        return [text for one in self.examples for text in (one.prompt, one.answer) if isinstance(text, str) and text]

    @cached_property
    def groups(self) -> list[Group]:
        """Graded rollouts; the greedy one last where the algorithm needs it."""
        assert self.parts.engine is not None
        self.parts.engine.sync(self.policy, version=0)
        prompts = tokenize_prompts(self.examples, self.tokenizer, stream=(self.config.seed, 1))
        greedy = self.learner.algorithm.needs_greedy
        group = self.config.rollout.group
        play = None if self.parts.play is None else self.parts.play(self.examples)
        found = sample(self.parts.engine, prompts, self.settings.sampling, group, greedy=greedy, play=play)
        return grade(self.grader, self.examples, found, version=0)

    @cached_property
    def batch(self) -> Batch:
        """The annotated batch of the groups that the algorithm keeps."""
        kept = SampledGroups(self.config.rollout, self.learner.algorithm, self.world)
        kept.add(self.groups)
        if not kept.total:
            raise NotTried("the algorithm drops all groups, because the rewards of each are equal")
        return annotate(self.learner, kept, self.settings)[0]

    def updated(self) -> Mapping[str, float]:
        """The metrics of an update; the critic alone learns in its first steps, so it is a later one."""
        return update(self.learner, self.batch, step=self.config.critic.warmup_steps + 1)

    def read(self) -> Read:
        rollouts = [group[0] for group in self.groups]
        return Read(
            policy=self.policy,
            tokenizer=self.tokenizer,
            rows=[Row(tokens=one.tokens, mask=one.mask) for one in rollouts],
            sampled=[one.logprobs for one in rollouts],
            sampling=self.settings.sampling,
            update=self.config.update,
            world=self.world,
        )

    def step(self) -> Step:
        """A supervised step on rollouts: whether the model learns does not depend on rewards."""
        rows = distinct(self.read().rows)
        return supervised_step(self.policy, self.parts.optimizer, rows, self.config, self.world)

    def close(self) -> None:
        self.grader.close()
        if self.parts.engine is not None:
            self.parts.engine.close()


class OfflineSubject:
    """The first rows of an offline run."""

    def __init__(self, config: OfflineConfig, world: World) -> None:
        self.config, self.world = config, world
        self.trainer = build_trainer(config, world, lambda _: None)
        self.parts = self.trainer.parts
        self.rows = self.trainer.rows(1)[: 1 if isinstance(self.trainer, TextTrainer) else UNITS]

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self.parts.tokenizer
        return tokenizer

    @cached_property
    def _data(self) -> Sequence[Any]:
        if self.config.data is None:
            return draw(self.parts.task, UNITS, seed=(self.config.seed, 1))
        training = load_sides(self.config.data)[1]
        return [training[place] for place in range(min(UNITS, len(training)))]

    @property
    def prompts(self) -> list[Asked]:
        return [row.prompt for row in self._data if not isinstance(row, Text)]

    @property
    def texts(self) -> list[str]:
        """The plain texts of the rows."""
        names = ("prompt", "answer", "completion", "chosen", "rejected")
        found = [getattr(row, name, "") for row in self._data for name in names]
        return [text for text in found if isinstance(text, str) and text]

    def read(self) -> Read:
        policy = self.parts.policy
        if isinstance(policy, RewardModel):
            raise NotTried("a reward model gives scores, no probabilities")
        if is_bidirectional(policy):
            raise NotTried("a bidirectional model predicts masked tokens, not the next one")
        return Read(
            policy=policy,
            tokenizer=self.tokenizer,
            rows=self._token_rows(),
            sampled=None,
            sampling=PLAIN,
            update=self.config.update,
            world=self.world,
        )

    def _token_rows(self) -> list[Row]:
        if isinstance(self.trainer, TextTrainer):
            length = min(WINDOW, self.trainer.context)
            mask = (False,) + (True,) * (length - 1)
            return [Row(tokens=tuple(ids), mask=mask) for ids in self.trainer.tokens(self.rows, length).tolist()]
        return [row for one in self.rows for row in ([one] if isinstance(one, Row) else one.rows)]

    def step(self) -> Step:
        """A step of the run's own objective on the same rows."""
        return lambda: self.trainer.fit(self.rows)[0]["loss"]

    def close(self) -> None:
        if self.parts.engine is not None:
            self.parts.engine.close()


class ModelSubject:
    """A model without a recipe: completions of a few prompts."""

    def __init__(self, name: str, world: World) -> None:
        directory = resolve_model(name)
        if reward_kind(directory) is not None:
            raise UserError(f"{name} is a reward model: check the recipe that trains or uses it (whet doctor RECIPE)")
        self.world = world
        # Only its sections `optimizer` and `update` are read.
        written = {"loop": "offline", "steps": 1, "objective": "sft", "task": "arithmetic", "model": str(directory)}
        config = validate(written, where=name)
        assert isinstance(config, OfflineConfig)
        self.config = config
        self.policy = held(load_model(directory), world)
        self.tokenizer = model_tokenizer(directory)
        self.sampling = Sampling(max_tokens=TOKENS)

    @cached_property
    def prompts(self) -> list[Asked]:
        """Questions, as messages where the model has a template; of a model that knows no letters, what it knows."""
        questions: list[Asked] = list(QUESTIONS)
        if isinstance(self.tokenizer, HuggingFaceTokenizer) and self.tokenizer.has_chat_template:
            messages: list[Asked] = [(Message(role="user", content=question),) for question in QUESTIONS]
            with suppress(UserError):
                for one in messages:
                    self.tokenizer.prompt(one)
                return messages
        with suppress(UserError):
            for question in QUESTIONS:
                self.tokenizer.encode(question)
            return questions
        known = [text for text in self.tokenizer.decode_many([[n] for n in range(self.tokenizer.vocab_size)]) if text]
        return ["".join(known[(n + place) % len(known)] for place in range(CHARACTERS)) for n in range(len(QUESTIONS))]

    @property
    def texts(self) -> list[str]:
        return [prompt if isinstance(prompt, str) else prompt[-1].content for prompt in self.prompts]

    @cached_property
    def _completions(self) -> list[tuple[Prompt, Completion]]:
        prompts = [
            Prompt(tokens=tuple(self.tokenizer.prompt(prompt)), stream=(0, place))
            for place, prompt in enumerate(self.prompts)
        ]
        engine = build_engine(self.config.engine, self.policy, self.tokenizer, self.world)
        try:
            found = engine.generate(prompts, self.sampling)
        finally:
            engine.close()
        return [(prompt, some[0]) for prompt, some in zip(prompts, found, strict=True)]

    def read(self) -> Read:
        rows = [
            Row(
                tokens=prompt.tokens + one.tokens,
                mask=(False,) * len(prompt.tokens) + (True,) * len(one.tokens),
            )
            for prompt, one in self._completions
        ]
        return Read(
            policy=self.policy,
            tokenizer=self.tokenizer,
            rows=rows,
            sampled=[(0.0,) * len(prompt.tokens) + one.logprobs for prompt, one in self._completions],
            sampling=self.sampling,
            update=self.config.update,
            world=self.world,
        )

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.policy, self.config.optimizer)

    def step(self) -> Step:
        rows = distinct(self.read().rows)
        return supervised_step(self.policy, self.optimizer, rows, self.config, self.world)

    def close(self) -> None:
        """Nothing is open."""
