"""The schema of pipelines: stages in order, the methods that start from them, and how those are compared.

A stage or a method is an ordinary recipe. In it, and in `compare`, a text `@name` is the directory of an earlier stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from whet.algorithms.preference.preference_table import RewardObjective
from whet.config import OfflineConfig
from whet.config.loops import LOOPS, NAMED, WHOLE, Acting, AnyConfig, CollectConfig, Config, loop_of
from whet.config.objective import objective_row
from whet.config.section import Above, Amount, Count, ModelPath, Positive, Section, Seed, Url, merge, one_of
from whet.errors import nearest

Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]  # becomes the name of a directory
REFERENCE = re.compile(r"@(\w[\w-]*)(/.*)?")  # a stage, and maybe a place inside its directory

OF_A_SET = re.compile(r"\.sets\.\d+")  # in the key of one of several sets

MODEL, REWARD, ROWS = "a model", "a reward model", "rows"  # what a stage makes
USES = {  # key → what a stage that it names must make; other keys take any
    **dict.fromkeys(("model.path", "reference", "start"), MODEL),
    **dict.fromkeys(("reward.model.path", "reward", "judge"), REWARD),
    **dict.fromkeys(("data.path", "task.path"), ROWS),
}


BEST_OF = (1, 2, 4, 8, 16)


class CompareConfig(Section):
    """The same held-out prompts and random streams for the start model and for every method; `@stage` names a stage."""

    start: ModelPath  # the model that all methods began with, and that each has to beat
    reward: ModelPath = ""  # the reward model that methods were trained against
    judge: ModelPath = ""  # a reward model that no method was trained against: it decides who wins
    gold: bool = True  # ask the task: for the true reward where it knows it, else for its own score
    prompts: Positive = 200  # held out
    samples: Positive = 1  # completions of each prompt by each model
    max_tokens: Positive = 256  # longest completion
    temperature: Above = 1.0  # of sampling
    best_of: tuple[Positive, ...] = BEST_OF  # n of best-of-n with the start model, by `reward`; empty: none
    checkpoints: Count = 0  # at most so many of each run are judged too, for the course of training
    judge_url: Url = ""  # an OpenAI-compatible server whose model compares answers, each pair in both orders
    judge_model: str = ""  # its name there
    judge_key_env: str = ""  # the environment variable with the server's key, if it needs one
    tie_margin: Amount = 0.0  # scores of `judge` that differ by no more are a tie

    @field_validator("best_of")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError(f"{list(value)} must go up, each number once, e.g. {list(BEST_OF)}")
        return value

    @model_validator(mode="after")
    def _whole_judge(self) -> CompareConfig:
        if bool(self.judge_url) != bool(self.judge_model):
            raise ValueError("judge_url and judge_model belong together: give both or neither")
        if self.judge_key_env and not self.judge_url:
            raise ValueError("judge_key_env is for a server and there is no judge_url: leave it out")
        if not (self.gold or self.judge or self.judge_url):
            raise ValueError("nothing could tell which method is better: give a judge, a judge_url or gold: true")
        return self

    @property
    def start_samples(self) -> int:
        """Completions of each prompt by the start model: enough for the largest n of best-of-n."""
        return max(self.samples, *self.best_of) if self.best_of and self.reward else self.samples


class PipelineConfig(Section):
    """Stages that build on each other, methods that start from them, and the comparison of these."""

    loop: Literal["pipeline"] = "pipeline"  # several runs that build on each other
    seed: Seed = 0  # of every stage and method without a seed of its own
    seeds: tuple[Seed, ...] = ()  # methods are trained with each of these; none: once, with their own seed
    shared: dict[str, Any] = Field({})  # under every stage and method whose loop has the key
    stages: dict[Name, AnyConfig] = Field({})  # name → recipe, in order; later ones name it as @name
    methods: dict[Name, AnyConfig] = Field({})  # name → recipe; compared with each other
    compare: CompareConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _share(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("shared", {}), Mapping):
            return value
        shared = {"seed": value.get("seed", 0), **value.get("shared", {})}
        parts = {part: value[part] for part in ("stages", "methods") if isinstance(value.get(part), Mapping)}
        keys: dict[str, Any] = {}  # of the loops that are used here
        for part, owns in parts.items():
            for name, own in owns.items():
                keys |= LOOPS[one_of(loop_of(own), LOOPS, what=f"loop of {part}.{name}:")].model_fields
        keys.pop("loop", None)
        for key in shared if keys else ():
            one_of(key, keys, what="key of shared")
        spread = {part: {name: _under(shared, own) for name, own in owns.items()} for part, owns in parts.items()}
        return {**value, **spread}

    @model_validator(mode="after")
    def _whole(self) -> PipelineConfig:
        if not self.stages and not self.methods:
            raise ValueError("the pipeline has nothing to train: name its runs under stages and methods")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)}: each seed once")
        for name, run in {**self.stages, **self.methods}.items():
            if isinstance(run, Acting):
                raise ValueError(
                    f"{name} has loop {run.loop}, and a pipeline passes language models on: train it alone"
                )
        for position, (name, stage) in enumerate(self.stages.items()):
            _refuse_references(f"stages.{name}", stage, self.stages, position)
        for name, method in self.methods.items():
            if _makes(method) != MODEL:
                raise ValueError(f"methods.{name} makes {_makes(method)} and a method trains a model: make it a stage")
            _refuse_references(f"methods.{name}", method, self.stages, len(self.stages))
        if self.compare is not None:
            _refuse_references("compare", self.compare, self.stages, len(self.stages))
            tasks = [method.task for method in self.methods.values() if not isinstance(method, Acting)]
            if not tasks or any(task != tasks[0] for task in tasks):
                raise ValueError("compare needs methods that all have the same task, for the same held-out prompts")
        return self


def texts(value: Any, above: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and text of every text in plain data."""
    if isinstance(value, str):
        yield above, value
    elif isinstance(value, Mapping | list | tuple):
        items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from texts(inner, f"{above}.{key}" if above else str(key))


def references(value: Any) -> set[str]:
    """The stages that plain data names."""
    return {match[1] for _, text in texts(value) if (match := REFERENCE.fullmatch(text))}


def resolve_references(value: Any, path_of: Callable[[str], str]) -> Any:
    """Plain data with the stage's path in place of every `@name`."""
    if isinstance(value, str):
        match = REFERENCE.fullmatch(value)
        return value if match is None else path_of(match[1]) + (match[2] or "")
    if isinstance(value, Mapping):
        return {key: resolve_references(inner, path_of) for key, inner in value.items()}
    return [resolve_references(inner, path_of) for inner in value] if isinstance(value, list | tuple) else value


def _under(shared: Mapping[str, Any], own: Any) -> Any:
    """The stage on top of what is shared; a section that names something of its own takes nothing of the shared one."""
    if not isinstance(own, Mapping):
        return own
    below = {key: value for key, value in shared.items() if key in LOOPS[loop_of(own)].model_fields}
    for key, main in WHOLE.items():
        if isinstance(below.get(key), str):
            below[key] = {main: below[key]}
        value = own.get(key)
        if isinstance(value, str) or (isinstance(value, Mapping) and {main, "new"} & value.keys()):
            below.pop(key, None)
    return merge(_with_names(below), _with_names(own))


def _with_names(written: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run with a section in place of the text that names something in it."""
    named = {key: {main: written[key]} for key, main in NAMED.items() if isinstance(written.get(key), str)}
    return {**written, **named}


def _refuse_references(where: str, section: BaseModel, stages: Mapping[str, Config], position: int) -> None:
    """Only stages that are there by then can be named, and only for what they make."""
    earlier = list(stages)[:position]
    for key, text in texts(section.model_dump(mode="json")):
        match = REFERENCE.fullmatch(text)
        if match is None:
            continue
        name, place = match[1], f"{where}.{key} is {text!r}"
        if name in earlier:
            needed, made = USES.get(OF_A_SET.sub("", key)), _makes(stages[name])
            if needed not in (None, made) and not match[2]:
                raise ValueError(f"{place}, which makes {made} and not {needed}: name another stage")
        else:
            hint = nearest(f"@{name}", (f"@{stage}" for stage in earlier))
            raise ValueError(f"{place} and no earlier stage is called {name!r}{hint} ({', '.join(earlier) or 'none'})")


def _makes(config: Config) -> str:
    """What later stages find in the directory of this one."""
    if isinstance(config, CollectConfig):
        return ROWS
    is_reward = isinstance(config, OfflineConfig) and isinstance(objective_row(config.objective), RewardObjective)
    return REWARD if is_reward else MODEL
