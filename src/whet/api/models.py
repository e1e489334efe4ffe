"""A model that a user names, loaded: what it generates, and how good it is on held-out examples."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from whet.api.given import Objects
from whet.config.loops import CollectConfig, Training
from whet.distributed.world import World
from whet.engines.native.engine import NativeEngine
from whet.engines.protocol import Engine, OnToken
from whet.errors import UserError
from whet.evaluate.evaluation import Evaluation
from whet.evaluate.evaluation import evaluate as measure
from whet.imports import passing
from whet.models.download.model_hub import resolve_model
from whet.models.load import load_model
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer, load_tokenizer
from whet.recipe import parse_yaml, validate
from whet.records import Completion, Example, Message, Sampling
from whet.rollout import tokenize_prompts
from whet.runs.directory import Run
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Task
from whet.train.setup.build import place

if TYPE_CHECKING:
    from whet.engines.http.engine import Logprobs

MAX_TOKENS = 256  # of an answer, where neither the user nor a run says more
EXAMPLES = 200  # of an evaluation, likewise
PROMPT_ID = "prompt"  # names the random stream of a typed prompt, so that equal prompts get equal completions
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # option of sampling → what it must be, and the test of it
    "max_tokens": ("at least 1", lambda value: value >= 1),
    "temperature": ("0 (greedy) or more", lambda value: 0 <= value < math.inf),
    "top_k": ("0 (all) or more", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("between 0 and 1", lambda value: 0 <= value <= 1),
}
Prompt = str | Sequence[Mapping[str, str]]  # plain text, or the messages of a conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A model that the user named, and the config of the run that made it where a run was named."""

    directory: Path
    config: Training | None

    @property
    def name(self) -> str:
        """What to call it."""
        return str(self.directory)

    def open(
        self,
        *,
        device: torch.device | None = None,
        on_token: OnToken | None = None,
        logprobs: Logprobs = "processed",  # noqa: ARG002 - ours always come, and exactly
    ) -> tuple[Tokenizer, Engine]:
        """The tokeniser to pose prompts with, and an engine with the model's weights."""
        return load_engine(self.directory, device=device, on_token=on_token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A model that a server runs."""

    url: str
    model: str
    tokenizer: str | None = None
    key_env: str | None = None
    concurrency: int | None = None
    config: None = None  # no run of ours made it

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.model} at {self.url}"

    def open(
        self,
        *,
        device: torch.device | None = None,  # noqa: ARG002 - the server's own affair
        on_token: OnToken | None = None,
        logprobs: Logprobs = "none",
    ) -> tuple[Tokenizer, Engine]:
        """The tokeniser to pose prompts with, and an engine that asks the server."""
        from whet.engines.http.engine import USUAL, HttpEngine
        from whet.engines.http.transport import Connection

        connection = Connection(api_key_env=self.key_env or "", concurrency=self.concurrency or USUAL.concurrency)
        tokenizer = None
        if self.tokenizer is not None:
            path = Path(self.tokenizer).expanduser()
            tokenizer = load_tokenizer(path if path.is_dir() else resolve_model(self.tokenizer))
        engine = HttpEngine(
            self.url, self.model, tokenizer, connection=connection, logprobs=logprobs, on_token=on_token
        )
        return engine.tokenizer, engine


class Model:
    """A loaded model: `policy` and `tokenizer`, and an engine that samples from them. Made by `whet.load`."""

    def __init__(self, target: Target | Served, tokenizer: Tokenizer, engine: Engine) -> None:
        self.target, self.tokenizer, self.engine = target, tokenizer, engine

    @property
    def policy(self) -> CausalLM:
        """The model itself, a torch module."""
        if not isinstance(self.engine, NativeEngine):
            raise UserError(f"{self.target.name} runs on its server, so its weights are not here")
        return self.engine.policy

    def __fspath__(self) -> str:
        """The directory of a model on this machine: what a recipe calls `model.path`."""
        return self.target.url if isinstance(self.target, Served) else str(self.target.directory)

    def __repr__(self) -> str:
        return f"whet.load({os.fspath(self)!r})"

    @overload
    def generate(self, prompts: str, *, n: int = ..., seed: int = ..., raw: bool = ..., **sampling: Any) -> list[Completion]: ...  # noqa: E501 # fmt: skip

    @overload
    def generate(self, prompts: Sequence[Prompt], *, n: int = ..., seed: int = ..., raw: bool = ..., **sampling: Any) -> list[list[Completion]]: ...  # noqa: E501 # fmt: skip

    def generate(
        self, prompts: str | Sequence[Prompt], *, n: int = 1, seed: int = 0, raw: bool = False, **sampling: Any
    ) -> list[Completion] | list[list[Completion]]:
        """`n` completions of a prompt; of a list of prompts, a list of `n` completions for each.

        `sampling`: max_tokens, temperature (0 is greedy), top_k, top_p, min_p, stop; those of the run's evaluation
        where a run was loaded. A prompt is text, which a chat model is asked as a user unless it is `raw`, or a list
        of messages. The same seed gives the same completions.
        """
        settings = choose_sampling(self.target.config, sampling)
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = [self.posed(prompt, raw=raw) for prompt in listed]
        found = self.engine.generate(tokenize_prompts(asked, self.tokenizer, stream=(seed,)), settings, count=n)
        return found[0] if isinstance(prompts, str) else found

    def rows(
        self, prompt: str | Sequence[Example], sampling: Sampling, *, n: int, seed: int, raw: bool, task: Task | None
    ) -> list[dict[str, Any]]:
        """A typed prompt, or examples, which `task` judges, each with its `n` completions as plain data."""
        asked = [self.posed(prompt, raw=raw)] if isinstance(prompt, str) else prompt
        shown = [prompt] if isinstance(prompt, str) else [example.prompt_text for example in prompt]
        found = self.engine.generate(tokenize_prompts(asked, self.tokenizer, stream=(seed,)), sampling, count=n)
        return [_row(*one, task) for one in zip(shown, asked, found, strict=True)]

    def evaluate(self, task: Any = None, **settings: Any) -> Evaluation:
        """Held-out accuracy and, with samples, pass@k; see `whet.evaluate`."""
        return evaluate(self, task, **settings)

    def posed(self, prompt: Prompt, *, raw: bool = False) -> Example:
        """A typed prompt as the model is asked it."""
        if not isinstance(prompt, str):
            turns = tuple(Message(role=turn["role"], content=turn["content"]) for turn in prompt)
            return Example(id=PROMPT_ID, prompt=turns, answer="")
        if raw or not is_chat(self.tokenizer):
            return Example(id=PROMPT_ID, prompt=prompt, answer="")
        return Example(id=PROMPT_ID, prompt=(Message(role="user", content=prompt),), answer="")


def load(
    model: Any,
    *,
    device: str | None = None,
    served: str | None = None,
    tokenizer: str | None = None,
    key_env: str | None = None,
    concurrency: int | None = None,
) -> Model:
    """A model with its tokeniser: of a run (its best model), a directory, a pulled name, or a server's URL.

    Of a server, `served` is the name of its model, `tokenizer` a model whose ids are exchanged instead of text,
    `key_env` the environment variable with the API key, `concurrency` the requests at a time.
    """
    if isinstance(model, Model):
        return model
    target = find_model(os.fspath(model), served, tokenizer, key_env, concurrency)
    return Model(target, *target.open(device=None if device is None else torch.device(device), logprobs="raw"))


def generate(model: Any, prompts: Any, **settings: Any) -> Any:
    """`whet.load(model).generate(prompts, …)`."""
    return load(model).generate(prompts, **settings)


def evaluate(
    model: Any,
    task: Any = None,
    *,
    examples: int | None = None,
    samples: int | None = None,
    ks: Sequence[int] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
) -> Evaluation:
    """Held-out accuracy (greedy) and, with `samples`, pass@k, each with its 95 % interval.

    `task` is a name, a dict of name and options, or a task object; a run has its own. What is not given is as in the
    run's own evaluation, else 200 examples, 256 tokens, temperature 1, seed 0.
    """
    loaded, objects = load(model), Objects()
    section = None if task is None else objects.plain(task)
    name, options = _named(section)
    with passing(objects.by_name):
        judge = find_task(loaded.target, name, options)
        own = loaded.target.config if task is None else None
        given = {"max_tokens": max_tokens, "temperature": temperature}
        settings = eval_settings(own, examples=examples, samples=samples, ks=ks, sampling=given, seed=seed)
        return measure(loaded.engine, loaded.tokenizer, judge.task, **settings, world=World.alone())


@dataclass(frozen=True, kw_only=True, slots=True)
class Posed:
    """A task, and how it was asked for."""

    task: Task
    name: str
    options: Mapping[str, Any]


def is_url(text: str) -> bool:
    """Whether a user means a server instead of a model on this machine."""
    return text.startswith(("http://", "https://"))


def find_model(
    text: str, served: str | None, tokenizer: str | None, key_env: str | None, concurrency: int | None
) -> Target | Served:
    """A model on this machine, or one behind a URL, which the other arguments are about."""
    if is_url(text):
        if not served:
            raise UserError(f"{text} is a server: say which of its models, --model or served= (see its /v1/models)")
        return Served(url=text, model=served, tokenizer=tokenizer, key_env=key_env, concurrency=concurrency)
    given = {"a model's name": served, "tokenizer": tokenizer, "key_env": key_env, "concurrency": concurrency}
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} is for a server, and {text} is not its URL (http://…): leave it out")
    return find_target(text)


def find_target(text: str) -> Target:
    """The best model of a run, or a model by directory or pulled name."""
    if is_url(text):
        raise UserError(f"{text} is a server, and this needs a model on this machine: use `whet eval` or `whet sample`")
    path = Path(text).expanduser()
    try:
        run = Run.open(path, is_writer=False)
    except UserError:
        return Target(directory=resolve_model(text), config=None)
    best = run.best_model()
    if best is None and run.rows_path.exists():
        raise UserError(f"{text} made rows, not a model: look at them with whet data explore {run.rows_path}")
    if best is None:
        raise UserError(f"run {path} has no best model yet: wait for its first evaluation")
    config = validate(parse_yaml(run.config_yaml(), where=text), where=f"the config of {text}")
    assert not isinstance(config, CollectConfig)
    return Target(directory=best, config=config)


def find_task(target: Target | Served, name: str | None, options: Mapping[str, Any]) -> Posed:
    """The task that was named, or the run's own; options go on top of the run's."""
    if name is None and target.config is None:
        raise UserError(f"{target.name} is a model, not a run: say which task, --task or task= (see `whet tasks`)")
    if name is None:
        assert target.config is not None
        name, options = target.config.task.name, {**target.config.task.options, **options}
    return Posed(task=guarded_task(name, options), name=name, options=options)


def held_out(task: Task, count: int) -> list[Example]:
    """Held-out examples of a task, of which there must be some."""
    found = task.held_out(count)
    if not found:
        raise UserError(f"task {task.name} has no held-out examples: give it an evaluation split, or type a prompt")
    return found


def choose_sampling(config: Training | None, given: Mapping[str, Any]) -> Sampling:
    """How to sample: as the run's evaluation did, but for what is given (None: not given)."""
    base = Sampling(max_tokens=MAX_TOKENS) if config is None else config.eval_sampling
    unknown = sorted(given.keys() - {*RANGES, "stop"})
    if unknown:
        raise UserError(f"no option {unknown[0]!r} of sampling (known: {', '.join([*RANGES, 'stop'])})")
    chosen = {key: value for key, value in given.items() if value is not None}
    if "stop" in chosen:
        chosen["stop"] = (chosen["stop"],) if isinstance(chosen["stop"], str) else tuple(chosen["stop"])
    for option, value in chosen.items():
        if option in RANGES and not RANGES[option][1](value):
            raise UserError(f"{option} must be {RANGES[option][0]}, not {value}")
    return replace(base, **chosen)


def eval_settings(
    config: Training | None,
    *,
    examples: int | None,
    samples: int | None,
    ks: Sequence[int] | None,
    sampling: Mapping[str, Any],
    seed: int | None,
) -> dict[str, Any]:
    """What `whet.evaluate.evaluation` is asked: as the run's evaluation, but for what is given."""
    if samples is None and ks is None:
        samples, ks = (config.eval.samples, config.eval.ks) if config else (0, ())
    elif samples is None:
        samples = max(ks or (0,))
    elif ks is None:
        ks = sorted({1, samples}) if samples else ()
    return {
        "examples": examples or (config.eval.examples if config else EXAMPLES),
        "samples": samples,
        "ks": tuple(ks or ()),
        "sampling": choose_sampling(config, sampling),
        "seed": (config.seed if config else 0) if seed is None else seed,
    }


def load_engine(
    directory: Path, *, device: torch.device | None = None, on_token: OnToken | None = None
) -> tuple[Tokenizer, NativeEngine]:
    """The tokeniser of a model, and an engine with its weights on the device: the given one, or the best one here."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = place(load_model(directory), device)  # first: it says best what is wrong with a directory
    tokenizer = load_tokenizer(directory)
    return tokenizer, NativeEngine(policy, tokenizer, device=device, on_token=on_token)


def is_chat(tokenizer: Tokenizer) -> bool:
    """Whether a conversation means something to the model."""
    from whet.engines.http.server_text import ServerText

    if isinstance(tokenizer, ServerText):
        return True  # the server has the template, or says that it has none
    return isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.has_chat_template


def _named(section: Any) -> tuple[str | None, dict[str, Any]]:
    """Name and options of a task as a recipe writes it."""
    if section is None or isinstance(section, str):
        return section, {}
    options = dict(section)
    return options.pop("name", None), options


def _row(prompt: str, example: Example, completions: Sequence[Completion], judge: Task | None) -> dict[str, Any]:
    return {
        "prompt": prompt,
        **({"answer": example.answer} if judge else {}),
        "completions": [
            {
                "text": completion.text,
                "tokens": len(completion.tokens),
                "logprob": sum(completion.logprobs),
                "finish": completion.finish,
                **({"correct": bool(judge.correct(example, completion.text))} if judge else {}),
            }
            for completion in completions
        ],
    }
