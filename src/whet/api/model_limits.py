"""Prompts and completions within the context of a loaded model: which are left out or may end early, in notes."""

import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import takewhile

from whet.api.local_engine import LocalEngine
from whet.config.loops import Training
from whet.engines.engine_protocol import Engine
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import HuggingFaceTokenizer
from whet.records import Prompt
from whet.tasks.protocol import Task
from whet.train.setup.prompt_lengths import fit_prompts, length_notes

Note = Callable[[str], None]


def warned(text: str) -> None:
    """A note as a Python warning, at the line outside of whet that led to it."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(inspect.currentframe()))
    own = sum(1 for _ in takewhile(lambda name: name.partition(".")[0] == "whet", frames))
    warnings.warn(text.removeprefix("note: "), stacklevel=own + 1)


def chosen_limit(config: Training | None, max_tokens: int | None) -> int:
    """`max_tokens` of a user or a run, which is said to be beyond the context; 0 for the default, which is not."""
    if max_tokens is not None:
        return max_tokens
    return config.eval.max_tokens if config else 0


def fitted(task: Task, tokenizer: Tokenizer, engine: Engine, limit: int, note: Note) -> Task:
    """The task with held-out prompts that fit the model, as in training; `limit` is the `chosen_limit`.

    The context of a server is not known here: it refuses prompts itself.
    """
    if not isinstance(engine, LocalEngine):
        return task
    context = engine.policy.context
    found, notes = fit_prompts(task, tokenizer, context=context, max_tokens=limit, used=["held-out"])
    for text in notes:
        note(text)
    return found


def say_lengths(prompts: Sequence[Prompt], engine: Engine, limit: int, note: Note) -> None:
    """Says that completions of typed prompts may end at the context; one that does not fit is the engine's error."""
    if isinstance(engine, LocalEngine):
        lengths = [len(prompt.tokens) for prompt in prompts]
        for text in length_notes(lengths, context=engine.policy.context, max_tokens=limit):
            note(text)


def is_chat(tokenizer: Tokenizer) -> bool:
    """Whether the model has a chat template."""
    from whet.engines.http.server_text import ServerText

    if isinstance(tokenizer, ServerText):
        return True  # the server applies its template, or reports that it has none
    return isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.has_chat_template
