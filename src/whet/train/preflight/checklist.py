"""The checks of a recipe and of a model, in order: what needs no training first, what trains the model last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

from whet.config import OnlineConfig
from whet.config.loops import Acting, CollectConfig, Training
from whet.distributed.world import World
from whet.errors import UserError
from whet.recipe import Recipe
from whet.train.optimizers.optimizer import Trainable
from whet.train.preflight import learning, memory, probabilities, rewards, templates
from whet.train.preflight.results import Check, NotTried, Result, run_checks
from whet.train.preflight.subjects import ModelSubject, OfflineSubject, OnlineSubject
from whet.train.setup.epochs import with_steps

Subject = OnlineSubject | OfflineSubject | ModelSubject


def check_recipe(recipe: Recipe, *, gpu: str = "") -> Iterator[Result]:
    """The checks of a recipe of one run; nothing is written, and what is trained is thrown away."""
    if isinstance(recipe.config, CollectConfig):
        raise UserError(f"{recipe.name} makes rows and trains nothing: there is nothing to check before it")
    if isinstance(recipe.config, Acting):
        raise UserError(f"{recipe.name} trains a small network in environments: these checks are of language models")
    config = with_steps(recipe.config)
    assert not isinstance(config, CollectConfig | Acting)
    world = World.init(config.device)
    try:
        fits = {"memory": partial(memory.memory_fits, recipe, gpu)}
        with closing(_subject(config, world)) as subject:
            on_rewards = _of_rewards(subject) if isinstance(subject, OnlineSubject) else {}
            yield from run_checks(
                {**_of_text(subject), **_of_probabilities(subject), **on_rewards, **_of_learning(subject), **fits}
            )
    finally:
        world.close()


def _subject(config: Training, world: World) -> OnlineSubject | OfflineSubject:
    return OnlineSubject(config, world) if isinstance(config, OnlineConfig) else OfflineSubject(config, world)


def check_model(name: str) -> Iterator[Result]:
    """The checks of a model that need no recipe."""
    world = World.init("auto")
    try:
        subject = ModelSubject(name, world)
        yield from run_checks({**_of_text(subject), **_of_probabilities(subject), **_of_learning(subject)})
    finally:
        world.close()


def _of_text(subject: Subject) -> dict[str, Check]:
    tokenizer = subject.tokenizer
    stop = subject.config.rollout.stop if isinstance(subject, OnlineSubject) else ()
    return {
        "text": lambda: templates.text_comes_back(tokenizer, subject.texts),
        "beginning": lambda: templates.prompts_begin_once(tokenizer, subject.prompts),
        "header": lambda: templates.template_asks_the_assistant(tokenizer, subject.prompts),
        "end of turn": lambda: templates.end_of_turn_stops(tokenizer, subject.prompts, stop),
    }


def _of_probabilities(subject: Subject) -> dict[str, Check]:
    return {
        "probabilities": lambda: probabilities.add_up_to_one(subject.read()),
        "log-probs": lambda: probabilities.are_aligned(subject.read()),
    }


def _of_rewards(subject: OnlineSubject) -> dict[str, Check]:
    learner, group = subject.learner, subject.config.rollout.group
    return {
        "reward": lambda: rewards.differ(subject.grader, subject.groups, subject.config.cold_start.steps),
        "advantages": lambda: rewards.normalised(learner.algorithm, subject.batch, group),
        "direction": lambda: rewards.points_right(_trained(subject), subject.batch),
    }


def _trained(subject: OnlineSubject) -> dict[str, float]:
    return dict(subject.updated()) if bool((subject.batch.advantages != 0).any()) else {}


def _of_learning(subject: Subject) -> dict[str, Check]:
    model: Trainable = subject.policy if isinstance(subject, ModelSubject) else subject.parts.policy
    optimizer = subject.optimizer if isinstance(subject, ModelSubject) else subject.parts.optimizer

    def overfitted() -> str:
        if subject.config.optimizer.master_weights == "offload":
            raise NotTried("optimizer.master_weights=offload keeps weights elsewhere, which are not put back")
        return learning.can_be_overfitted(model, optimizer, subject.step())

    return {
        "gradients": lambda: learning.reach_every_weight(model, optimizer, subject.step()),
        "one batch": overfitted,
    }
