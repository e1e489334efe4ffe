"""Prompts of a file that are too long for the model: left out or truncated before anything is sampled, and said."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from whet.errors import UserError
from whet.files.disk_rows import kept_like, picked
from whet.models.protocol import Tokenizer
from whet.models.text.tokenizers import newest_turns
from whet.records import Example, Message, Prompted
from whet.tasks.protocol import Task
from whet.tasks.selection.mixture import MixedTasks
from whet.tasks.space import fingerprint
from whet.tasks.stored import FittedTask, StoredTask

WAYS = ("filter", "truncate")
NAMED = 3  # examples that a note names
MAX_TOKENS = "max_tokens"  # where no recipe has a key for it: an option of a command, an argument of a function
Side = Literal["training", "held-out"]
SIDES: tuple[Side, ...] = ("training", "held-out")  # of `StoredTask.sides`


def fit_prompts(
    task: Task,
    tokenizer: Tokenizer,
    *,
    context: int,
    max_tokens: int,
    key: str = MAX_TOKENS,
    used: Sequence[Side] = SIDES,
) -> tuple[Task, list[str]]:
    """The task with prompts that fit on the sides that are used, and notes about those that did not.

    A task that makes its prompts stays as is. `max_tokens` are those of a completion, set by `key`: a prompt that
    leaves fewer in the context is kept and noted.
    """
    if isinstance(task, MixedTasks):
        fit = partial(fit_prompts, tokenizer=tokenizer, context=context, max_tokens=max_tokens, key=key, used=used)
        return _fit_mixture(task, fit)
    if not isinstance(task, StoredTask):
        return task, length_notes([], context=context, max_tokens=max_tokens, key=key)
    options: Any = task
    limit, way = options.max_prompt_tokens, options.overlong_prompts
    if way not in WAYS:
        raise UserError(f"task {task.name}: overlong_prompts is {way!r}, must be {' or '.join(WAYS)}")
    if limit is not None and limit < 1:
        raise UserError(f"task {task.name}: max_prompt_tokens is {limit}, must be 1 or more")
    room = min(context - 1, limit or context - 1)
    given = dict(zip(SIDES, task.sides, strict=True))
    lengths = {which: array("Q", (len(tokenizer.prompt(one.prompt)) for one in given[which])) for which in used}
    sides, kept = dict(given), []
    for which in used:
        sides[which], fitting = _fitting(given[which], lengths[which], tokenizer, room, way)
        kept += fitting
        if given[which] and not sides[which]:
            ways = ["raise task.max_prompt_tokens"] if room < context - 1 else []
            ways += ["set task.overlong_prompts=truncate"] if way == "filter" else []
            remedy = ", ".join([*ways, f"{'or ' if ways else ''}use a model with a longer context"])
            raise UserError(f"all {len(given[which])} {which} prompts have more than {room} tokens: {remedy}")
    overlong = [given[which][place].id for which in used for place in _longer(lengths[which], room, most=NAMED + 1)]
    every = [length for which in used for length in lengths[which]]
    notes = [_overlong(overlong, every, room, way)] if overlong else []
    either = f"{key} or task.max_prompt_tokens"
    notes += length_notes(kept, context=context, max_tokens=max_tokens, key=key, shorter=either)
    return (FittedTask(task, (sides["training"], sides["held-out"])) if overlong else task), notes


def _fit_mixture(mixture: MixedTasks, fit: Callable[[Task], tuple[Task, list[str]]]) -> tuple[Task, list[str]]:
    """Every task of a mixture fitted, with notes by label, also on prompts that one trains on and another holds out."""
    found = {label: fit(task) for label, task in mixture.parts.items()}
    parts = {label: task for label, (task, _) in found.items()}
    notes = [f"{label}: {note}" for label, (_, some) in found.items() for note in some]
    for label, task in parts.items():
        shared = [shared_prompts(other, task) for name, other in parts.items() if name != label]
        notes += [f"{label}: {note}" for note in shared if note]
    is_same = all(parts[label] is mixture.parts[label] for label in parts)
    return (mixture if is_same else mixture.with_parts(parts)), list(dict.fromkeys(notes))


def length_notes(
    prompts: Sequence[int], *, context: int, max_tokens: int, key: str = MAX_TOKENS, shorter: str = MAX_TOKENS
) -> list[str]:
    """A note if completions of prompts of these lengths may end at the context and not at `max_tokens`.

    `key` sets that limit; `shorter` are the keys that make room for completions.
    """
    if max_tokens >= context:
        return [
            f"note: {key} {'are' if ' and ' in key else 'is'} {max_tokens:,} and the context has {context:,} tokens, "
            f"prompt included: completions end there; lower {key}"
        ]
    cut = sum(length + max_tokens > context for length in prompts)
    if not cut:
        return []
    return [
        f"note: completions of {cut:,} of {len(prompts):,} prompts may end before {max_tokens} tokens: the longest "
        f"prompt has {max(prompts):,} of the {context:,} tokens of the context; lower {shorter}"
    ]


def shared_prompts(training: Task, evaluation: Task) -> str:
    """A note on prompts of an evaluation set that are trained on, else empty; only of tasks with stored prompts."""
    if not isinstance(training, StoredTask) or not isinstance(evaluation, StoredTask):
        return ""
    asked = evaluation.sides[1]
    both = both_sides(training.sides[0], asked)
    return f"warning: {both:,} of {len(asked):,} prompts are also trained on, so not held out" if both else ""


def both_sides(training: Sequence[Prompted], evaluation: Sequence[Prompted]) -> int:
    """How many prompts of an evaluation set are also trained on."""
    asked = Counter(fingerprint("prompt", row.prompt_text) for row in evaluation)
    trained = {one for row in training if (one := fingerprint("prompt", row.prompt_text)) in asked}
    return sum(asked[one] for one in trained)


def _longer(lengths: Sequence[int], room: int, *, most: int) -> list[int]:
    """The places of the first prompts that are too long."""
    return list(islice((place for place, length in enumerate(lengths) if length > room), most))


def _fitting(
    examples: Sequence[Example], lengths: Sequence[int], tokenizer: Tokenizer, room: int, way: str
) -> tuple[Sequence[Example], list[int]]:
    """The examples that fit, truncated where that is the way, and the lengths of their prompts."""
    if not _longer(lengths, room, most=1):
        return examples, list(lengths)
    if way == "filter":
        fits = [place for place, length in enumerate(lengths) if length <= room]
        return picked(examples, fits), [lengths[place] for place in fits]
    kept: list[int] = []

    def shortened() -> Iterator[Example]:
        for example, length in zip(examples, lengths, strict=True):
            found = example if length <= room else _truncated(example, tokenizer, room)
            if found is not None:
                kept.append(min(length, room))
                yield found

    return kept_like(examples, shortened()), kept


def _truncated(example: Example, tokenizer: Tokenizer, room: int) -> Example | None:
    if isinstance(example.prompt, str):
        kept = tokenizer.decode_many([tokenizer.encode(example.prompt)[-room:]])[0]
        return replace(example, prompt=kept) if kept and len(tokenizer.prompt(kept)) <= room else None
    turns = newest_turns(tuple(example.prompt), lambda some: len(tokenizer.prompt(some)), room)
    fitting = _with_the_end(turns, tokenizer, room)
    return None if fitting is None else replace(example, prompt=fitting)


def _with_the_end(turns: tuple[Message, ...], tokenizer: Tokenizer, room: int) -> tuple[Message, ...] | None:
    """The messages with as much of the end of the first user's one as fits; None if even an empty one does not."""
    place = next((place for place, turn in enumerate(turns) if turn.role == "user"), None)
    excess = len(tokenizer.prompt(turns)) - room
    while excess > 0 and place is not None:
        ids = tokenizer.encode(turns[place].content)
        if len(ids) <= excess:
            return None
        shorter = replace(turns[place], content=tokenizer.decode_many([ids[excess:]])[0])
        turns = (*turns[:place], shorter, *turns[place + 1 :])
        excess = len(tokenizer.prompt(turns)) - room  # text that is cut may have other tokens at its start
    return turns if excess <= 0 else None


def _overlong(names: list[str], lengths: Sequence[int], room: int, way: str) -> str:
    """The note on prompts that are too long, of which `names` are the first."""
    done = "are left out" if way == "filter" else "keep their newest turns and the end of their text"
    some = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    count = sum(length > room for length in lengths)
    return (
        f"note: {count:,} of {len(lengths):,} prompts have more than {room:,} tokens (the longest {max(lengths):,}) "
        f"and {done}: {some}"
    )
