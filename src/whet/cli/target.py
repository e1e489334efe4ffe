"""Helpers of the commands that talk to a model: resolving and loading it, its task, its sampling settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.cli.terminal import Screen
from whet.errors import UserError
from whet.records import Sampling

if TYPE_CHECKING:
    import torch

    from whet.cli.server import Served
    from whet.config.loops import Training
    from whet.engines.http.engine import Logprobs
    from whet.engines.native.engine import NativeEngine
    from whet.engines.protocol import Engine, OnToken
    from whet.models.protocol import Tokenizer
    from whet.tasks.protocol import Task

MAX_TOKENS = 256  # of an answer, where neither the user nor a run says more
TOKENS_PER_REDRAW = 64


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
class Posed:
    """A task, and how it was asked for."""

    task: Task
    name: str
    options: Mapping[str, Any]


def is_url(text: str) -> bool:
    """Whether a user means a server instead of a model on this machine."""
    return text.startswith(("http://", "https://"))


def find_target(text: str) -> Target:
    """The best model of a run, or a model by directory or pulled name."""
    from whet.config.collecting import CollectConfig
    from whet.models.download.model_hub import resolve_model
    from whet.recipe import parse_yaml, validate
    from whet.runs.directory import Run

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


def find_task(target: Target | Served, name: str | None, options: Sequence[str]) -> Posed:
    """The task that was named, or the run's own; `key=value` options go on top of the run's."""
    from whet.tasks.guard import guarded_task

    given = read_options(options)
    if name is None and target.config is None:
        raise UserError(f"{target.name} is a model, not a run: say which task with --task (see `whet tasks`)")
    if name is None:
        assert target.config is not None
        name, given = target.config.task.name, {**target.config.task.options, **given}
    return Posed(task=guarded_task(name, given), name=name, options=given)


def read_options(pairs: Sequence[str], of: str = "a task", example: str = "level=2") -> dict[str, Any]:
    """`key=value` arguments, the values read as in a recipe."""
    from whet.recipe import parse_yaml

    options = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key.isidentifier() or not equals:
            raise UserError(f"{pair!r} is not an option of {of}: write key=value, e.g. {example}")
        try:
            options[key] = parse_yaml(f"value: {text}", where=pair)["value"]
        except UserError:  # what YAML cannot read is meant literally, as in a recipe's overrides
            options[key] = text
    return options


def choose_sampling(config: Training | None, given: Mapping[str, Any]) -> Sampling:
    """How to sample: as the run's evaluation did, but for what is given (None: not given)."""
    base = Sampling(max_tokens=MAX_TOKENS) if config is None else config.eval_sampling
    sampling = replace(base, **{key: value for key, value in given.items() if value is not None})
    ranges = {
        "--max-tokens": (sampling.max_tokens >= 1, "at least 1"),
        "--temperature": (0 <= sampling.temperature < math.inf, "0 (greedy) or more"),
        "--top-k": (sampling.top_k >= 0, "0 (all) or more"),
        "--top-p": (0 < sampling.top_p <= 1, "above 0 and at most 1"),
        "--min-p": (0 <= sampling.min_p <= 1, "between 0 and 1"),
    }
    for option, (fits, wanted) in ranges.items():
        if not fits:
            raise UserError(f"{option} must be {wanted}")
    return sampling


def load_engine(
    directory: Path, *, device: torch.device | None = None, on_token: OnToken | None = None
) -> tuple[Tokenizer, NativeEngine]:
    """The tokeniser of a model, and an engine with its weights on the device: the given one, or the best one here."""
    import torch

    from whet.engines.native.engine import NativeEngine
    from whet.models.load import load_model
    from whet.models.text.tokenizers import load_tokenizer
    from whet.train.setup.build import place

    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = place(load_model(directory), device)  # first: it says best what is wrong with a directory
    tokenizer = load_tokenizer(directory)
    return tokenizer, NativeEngine(policy, tokenizer, device=device, on_token=on_token)


def is_chat(tokenizer: Tokenizer) -> bool:
    """Whether a conversation means something to the model."""
    from whet.engines.http.server_text import ServerText
    from whet.models.text.tokenizers import HuggingFaceTokenizer

    if isinstance(tokenizer, ServerText):
        return True  # the server has the template, or says that it has none
    return isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.has_chat_template


@contextmanager
def sampling_status(what: str) -> Iterator[OnToken]:
    """Shows on a terminal, while the block runs, how many tokens were sampled; silent elsewhere."""
    console = Screen(stderr=True)
    if not console.is_terminal:
        yield lambda _prompt, _sample, _token: None
        return
    sampled = 0
    with console.status(f"{what}: loading") as status:

        def count(_prompt: int, _sample: int, _token: int) -> None:
            nonlocal sampled
            sampled += 1
            if sampled % TOKENS_PER_REDRAW == 0:
                status.update(f"{what}: {sampled:,} tokens")

        yield count
