"""A loaded model: `whet.load`, `whet.generate` and `whet.evaluate`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from whet.api.given import Objects
from whet.api.local_engine import LocalEngine, open_engine
from whet.api.model_limits import Note, chosen_limit, fitted, is_chat, say_lengths, warned
from whet.api.own_measures import FoundTask, device_of, measured_as_trained, ranking_by
from whet.config.eval_config import evaluated_on
from whet.config.loops import Training, of_language_model
from whet.distributed.world import World
from whet.engines.engine_protocol import Engine, OnToken
from whet.errors import UserError
from whet.evaluate.evaluation import Evaluation, held_out
from whet.imports import passing
from whet.models.adapters.adapter_directory import merging_note
from whet.models.download.model_hub import resolve_model
from whet.models.model_tokenizer import model_tokenizer
from whet.models.protocol import CausalLM, Tokenizer
from whet.models.reward.settings import RewardKind, reward_kind
from whet.recipe import parse_yaml, validate
from whet.records import Completion, Example, Message, Sampling
from whet.rollout import tokenize_prompts
from whet.runs.catalogue import MARK, find_run, known_runs, runs_root
from whet.runs.directory import RunDirectory
from whet.tasks.loading import guarded_task
from whet.tasks.protocol import Task

if TYPE_CHECKING:
    from whet.engines.http.http_engine import Logprobs

MAX_TOKENS = 256  # default length limit of a completion
EXAMPLES = 200  # default number of evaluation examples
PROMPT_ID = "prompt"  # example id of a typed prompt; part of its random stream, so the same seed repeats completions
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {  # sampling option → its range, in words and as a test
    "max_tokens": ("at least 1", lambda value: value >= 1),
    "temperature": ("0 (greedy) or more", lambda value: 0 <= value < math.inf),
    "top_k": ("0 (all) or more", lambda value: value >= 0),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "min_p": ("between 0 and 1", lambda value: 0 <= value <= 1),
}
Prompt = str | Sequence[Mapping[str, str]]  # plain text, or the messages of a conversation


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A model that a user named: a directory on this machine, or a model of a server."""

    name: str  # for messages
    path: str  # directory or URL
    config: Training | None = None  # of the run that trained it, if a run was named
    served: str | None = None  # name on the server; these four are for servers only
    tokenizer: str | None = None
    key_env: str | None = None
    concurrency: int | None = None

    def open(
        self,
        *,
        device: torch.device | None = None,
        on_token: OnToken | None = None,
        logprobs: Logprobs = "none",  # of a server: our own engine always has them
    ) -> tuple[Tokenizer, Engine]:
        """The tokenizer and an engine of the model, on the given device, else on a GPU if there is one."""
        if self.served is not None:
            return self._connect(on_token, logprobs)
        return open_engine(Path(self.path), device, on_token)

    @property
    def reward_kind(self) -> RewardKind | None:
        """The kind of a reward model; None for a language model."""
        return None if self.served is not None else reward_kind(Path(self.path))

    @property
    def note(self) -> str:
        """What to know of the model before its results are read; empty if there is nothing."""
        return "" if self.served is not None else merging_note(Path(self.path))

    def _connect(self, on_token: OnToken | None, logprobs: Logprobs) -> tuple[Tokenizer, Engine]:
        from whet.engines.http.http_engine import USUAL, HttpEngine
        from whet.engines.http.transport import Connection

        connection = Connection(api_key_env=self.key_env or "", concurrency=self.concurrency or USUAL.concurrency)
        tokenizer = None
        if self.tokenizer is not None:
            path = Path(self.tokenizer).expanduser()
            tokenizer = model_tokenizer(path if path.is_dir() else resolve_model(self.tokenizer))
        engine = HttpEngine(
            self.path, self.served or "", tokenizer, connection=connection, logprobs=logprobs, on_token=on_token
        )
        return engine.tokenizer, engine


class Model:
    """A loaded model, made by `whet.load`: `policy`, `tokenizer`, and the engine that samples from them."""

    def __init__(self, target: Target, tokenizer: Tokenizer, engine: Engine) -> None:
        self.target, self.tokenizer, self.engine = target, tokenizer, engine

    @property
    def policy(self) -> CausalLM:
        """The torch module."""
        if not isinstance(self.engine, LocalEngine):
            raise UserError(f"{self.target.name} runs on its server, so its weights are not here")
        return self.engine.policy

    def __fspath__(self) -> str:
        """Directory or URL: a loaded model can be passed wherever a recipe takes `model.path`."""
        return self.target.path

    def __repr__(self) -> str:
        return f"whet.load({os.fspath(self)!r})"

    @overload
    def generate(self, prompts: str, *, n: int = ..., seed: int = ..., raw: bool = ..., **sampling: Any) -> list[Completion]: ...  # noqa: E501 # fmt: skip

    @overload
    def generate(self, prompts: Sequence[Prompt], *, n: int = ..., seed: int = ..., raw: bool = ..., **sampling: Any) -> list[list[Completion]]: ...  # noqa: E501 # fmt: skip

    def generate(
        self, prompts: str | Sequence[Prompt], *, n: int = 1, seed: int = 0, raw: bool = False, **sampling: Any
    ) -> list[Completion] | list[list[Completion]]:
        """`n` completions of a prompt; for a list of prompts, a list of `n` completions for each.

        `sampling`: max_tokens, temperature (0 is greedy), top_k, top_p, min_p, stop; defaults are those of the run's
        evaluation if a run was loaded. A prompt is text, which a chat model gets as a user message unless `raw`, or a
        list of messages. The same seed gives the same completions.
        """
        settings = choose_sampling(self.target.config, sampling)
        if n < 1:
            raise UserError(f"n must be at least 1, not {n}")
        if not isinstance(prompts, Sequence) or any(isinstance(prompt, Mapping) for prompt in prompts):
            raise UserError("prompts must be a text, or a list of texts and conversations: [[{'role': …}, …], …]")
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = [self.example(prompt, raw=raw) for prompt in listed]
        tokens = tokenize_prompts(asked, self.tokenizer, stream=(seed,))
        say_lengths(tokens, self.engine, chosen_limit(self.target.config, sampling.get("max_tokens")), warned)
        found = self.engine.generate(tokens, settings, count=n)
        return found[0] if isinstance(prompts, str) else found

    def rows(
        self, prompt: str, sampling: Sampling, *, limit: int, n: int, seed: int, raw: bool = False, note: Note = warned
    ) -> list[dict[str, Any]]:
        """`n` completions of a typed prompt as plain data; `limit` as `chosen_limit` gives it."""
        asked = [self.example(prompt, raw=raw)]
        tokens = tokenize_prompts(asked, self.tokenizer, stream=(seed,))
        say_lengths(tokens, self.engine, limit, note)
        return [_row(prompt, asked[0], self.engine.generate(tokens, sampling, count=n)[0], None)]

    def task_rows(
        self, task: Task, examples: int, sampling: Sampling, *, limit: int, n: int, seed: int, note: Note = warned
    ) -> list[dict[str, Any]]:
        """`n` completions of held-out examples, graded by their task, as plain data."""
        task = fitted(task, self.tokenizer, self.engine, limit, note)
        asked = held_out(task, examples)
        found = self.engine.generate(tokenize_prompts(asked, self.tokenizer, stream=(seed,)), sampling, count=n)
        return [_row(one.prompt_text, one, own, task) for one, own in zip(asked, found, strict=True)]

    def evaluate(self, task: Any = None, **settings: Any) -> Evaluation:
        """Held-out accuracy and, with samples, pass@k; see `whet.evaluate`."""
        return evaluate(self, task, **settings)

    def example(self, prompt: Prompt, *, raw: bool = False) -> Example:
        """A typed prompt; for a chat model as a user message, unless `raw`."""
        if not isinstance(prompt, str):
            turns = tuple(map(Message.of, prompt))
            return Example(id=PROMPT_ID, prompt=turns, answer="")
        is_said = not raw and is_chat(self.tokenizer)
        return Example(id=PROMPT_ID, prompt=(Message(role="user", content=prompt),) if is_said else prompt, answer="")


def load(
    model: Any,
    *,
    device: str | None = None,
    served: str | None = None,
    tokenizer: str | None = None,
    key_env: str | None = None,
    concurrency: int | None = None,
) -> Model:
    """Loads a model: a run (its best model), a directory, a pulled name, or a server's URL.

    For a server, `served` is the model's name there, `tokenizer` a model whose token ids are exchanged instead of text,
    `key_env` the environment variable with the API key, `concurrency` the number of parallel requests.
    """
    if isinstance(model, Model):
        return model
    target = find_model(os.fspath(model), served, tokenizer, key_env, concurrency)
    return Model(target, *target.open(device=None if device is None else torch.device(device), logprobs="raw"))


def generate(model: Any, prompts: Any, **settings: Any) -> Any:
    """`whet.load(model).generate(prompts, …)`."""
    return load(model).generate(prompts, **settings)


def evaluate(  # noqa: PLR0913
    model: Any,
    task: Any = None,
    *,
    data: str | None = None,
    examples: int | None = None,
    samples: int | None = None,
    ks: Sequence[int] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    reward_model: Any = None,
) -> Evaluation:
    """Held-out accuracy (greedy) and, with `samples`, pass@k and maj@k, each with its 95 % interval.

    With `reward_model`, a run that trained one or its directory, also the accuracy of the best of k samples by it.

    Of a run on its own task also what it measures itself: the reward and its parts, of an online run; the metrics of
    its held-out rows, of an offline one (`rows`; with `rows_step`, as recorded at that step).

    `task` is a name, a dict of name and options, or a task object; a run has its own. `data` is a file in place of
    held-out prompts: all its rows, read like the run's. Defaults are its settings, else 200 examples, 256 tokens.
    """
    given: dict[str, Any] = {"examples": examples, "samples": samples, "ks": ks, "seed": seed}
    given |= {"max_tokens": max_tokens, "temperature": temperature}
    loaded, objects = load(model), Objects()
    section = None if task is None else objects.plain(task)
    options = dict(section) if isinstance(section, Mapping) else {"name": section}
    target, name = loaded.target, options.pop("name", None)
    if data is not None:
        target, name, options = on_file(target, data, options, task=task)
    with passing(objects.by_name):
        found = find_task(target, name, options)
        own = target.config if task is None else None
        world, limit = World.alone(str(device_of(loaded.engine))), chosen_limit(own, max_tokens)
        best, parts = Path(target.path), (loaded.tokenizer, loaded.engine)
        settings = eval_settings(own, given)
        if reward_model is not None:
            settings["ranker"] = ranking_by(reward_target(os.fspath(reward_model)).path, settings, world.device)
        return measured_as_trained(own, best, found, *parts, settings, limit=limit, world=world, note=warned)


def find_model(
    text: str,
    served: str | None = None,
    tokenizer: str | None = None,
    key_env: str | None = None,
    concurrency: int | None = None,
) -> Target:
    """A language model: the best one of a run, a directory, a pulled name or, with the other arguments, a server's."""
    target = find_target(text, served, tokenizer, key_env, concurrency)
    kind = target.reward_kind
    if kind is not None:
        raise UserError(
            f"{text} is a reward model ({kind}): it scores completions and generates none; use "
            f"`whet score {text} FILE`, `whet eval {text}`, or reward.model={text} in an online recipe"
        )
    return target


def find_target(
    text: str,
    served: str | None = None,
    tokenizer: str | None = None,
    key_env: str | None = None,
    concurrency: int | None = None,
) -> Target:
    """As `find_model`, but a reward model too."""
    if is_url(text):
        if not served:
            raise UserError(f"{text} is a server: say which of its models, --model or served= (see its /v1/models)")
        given: dict[str, Any] = {"tokenizer": tokenizer, "key_env": key_env, "concurrency": concurrency}
        return Target(name=f"{served} at {text}", path=text, served=served, **given)
    given = {"a model's name": served, "tokenizer": tokenizer, "key_env": key_env, "concurrency": concurrency}
    for option, value in given.items():
        if value is not None:
            raise UserError(f"{option} is for a server, and {text} is not its URL (http://…): leave it out")
    path = run_named(text)
    run = None if path is None else RunDirectory.find(path)
    if run is None:
        directory = str(resolve_model(text if path is None else str(path)))
        return Target(name=directory, path=directory)
    best = run.best_model()
    if best is None and run.rows_path.exists():
        raise UserError(f"{text} made rows, not a model: look at them with whet data explore {run.rows_path}")
    if best is None:
        raise UserError(f"run {path} has no best model yet: wait for its first evaluation")
    config = validate(parse_yaml(run.config_yaml(), where=text), where=f"the config of {text}")
    return Target(name=str(best), path=str(best), config=of_language_model(config, text))


def reward_target(text: str) -> Target:
    """The reward model that a text names; refuses a language model."""
    if is_url(text):
        raise UserError(f"{text} is a server, and a reward model needs local weights: name its directory")
    target = find_target(text)
    if target.reward_kind is None:
        raise UserError(f"{text} is a language model, not a reward model: train one with objective=bradley_terry")
    return target


def run_named(text: str) -> Path | None:
    """The directory that a text names, or the run; None for a pulled model. An unknown name is an error."""
    root = runs_root()
    if text.startswith(MARK) or Path(text).expanduser().is_dir():
        return find_run(text, root)
    try:
        resolve_model(text)
    except UserError as error:
        found = None if Path(text).is_absolute() else find_run(text, root)
        if found is None:
            raise UserError(f"{error}; nor is it part of the name of a run: {known_runs(root)}") from None
        return found
    return None


def is_url(text: str) -> bool:
    """Whether a model is named by the URL of a server."""
    return text.startswith(("http://", "https://"))


def find_task(target: Target, name: str | None, options: Mapping[str, Any]) -> FoundTask:
    """The named task, or that of the run's evaluation with these options on top; with its name and options."""
    if name is None and target.config is None:
        raise UserError(f"{target.name} is a model, not a run: say which task, --task or task= (see `whet tasks`)")
    if name is None:
        assert target.config is not None
        own = next(iter(target.config.evaluation_tasks.values()), target.config.task)
        name, options = own.name, {**own.options, **options}
    return guarded_task(name, options), name, options


def on_file(
    target: Target, path: str, options: Mapping[str, Any], *, task: object
) -> tuple[Target, str | None, dict[str, Any]]:
    """A target, the name of a task and its options for an evaluation on all rows of a file, read like the run's."""
    if task is not None:
        raise UserError(f"{path} is read like the prompts of the run, and a task is named as well: leave one out")
    if target.config is None:
        return target, "data", {"path": path, "held_out_share": 1.0, **options}
    config = target.config.model_copy(update={"eval": evaluated_on(target.config.eval, path)})
    return replace(target, config=config), None, dict(options)


def choose_sampling(config: Training | None, given: Mapping[str, Any]) -> Sampling:
    """Sampling settings: those of the run's evaluation, overridden by what is given (None: not given)."""
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


def eval_settings(config: Training | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the evaluation: the run's settings, overridden by those of `whet.evaluate` (None: not given)."""
    samples, ks, seed = given["samples"], given["ks"], given["seed"]
    if samples is None and ks is None:
        samples, ks = (config.eval.samples, config.eval.ks) if config else (0, ())
    elif samples is None:
        samples = max(ks or (0,))
    elif ks is None:
        ks = sorted({1, samples}) if samples else ()
    return {
        "examples": given["examples"] or (config.eval.examples if config else EXAMPLES),
        "samples": samples,
        "ks": tuple(ks or ()),
        "sampling": choose_sampling(config, {key: given[key] for key in ("max_tokens", "temperature")}),
        "seed": (config.seed if config else 0) if seed is None else seed,
    }


def _row(prompt: str, example: Example, completions: Sequence[Completion], task: Task | None) -> dict[str, Any]:
    return {
        "prompt": prompt,
        **({"answer": example.answer} if task else {}),
        "completions": [
            {
                "text": completion.text,
                "tokens": len(completion.tokens),
                "logprob": sum(completion.logprobs),
                "finish": completion.finish,
                **(
                    {"correct": right} if task and (right := task.correct(example, completion.text)) is not None else {}
                ),
            }
            for completion in completions
        ],
    }
