"""Leaks between training and evaluation: the same ids, prompts, leakage groups, and near duplicates."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from whet.records import Example
from whet.tasks.bench.reward_findings import Finding, failed, note, passed
from whet.tasks.check import attempt
from whet.tasks.protocol import Task
from whet.tasks.shingles import SIMILAR, jaccard, shingles_of

DRAWN, STEPS = 512, 4  # training examples of so many steps
HELD_OUT = 512
COMMON = 20  # shingles of more prompts than these belong to a template
FEWEST = 4  # other shingles that a prompt must have to be compared
FIX = "split by what the rows share: give them one `twin`, or remove duplicates before the split"


def leaks(task: Task, seed: int) -> list[Finding]:
    """One finding for each kind of leak, or one that says that there is none."""
    steps = [attempt("draw", task.draw, DRAWN, seed=(seed, step)) for step in range(1, STEPS + 1)]
    training = list({example.id: example for drawn in steps for example in drawn}.values())
    evaluation = attempt("held_out", task.held_out, HELD_OUT)
    if not evaluation:
        return [note("leak", "not tried: no example is held out")]
    kinds: tuple[tuple[str, Callable[[Example], str]], ...] = (
        ("an id", lambda e: e.id),
        ("the prompt", lambda e: e.prompt_text),
        ("the leakage group (twin)", lambda e: e.twin),
        ("the prompt, but for case and spaces,", lambda e: _normal(e.prompt_text)),
    )
    found: list[Finding] = []
    for what, key in kinds:
        trained = {key(example): example for example in training}
        shared = [(e, trained[key(e)]) for e in evaluation if key(e) and key(e) in trained]
        if shared and not any(finding.outcome == "failed" for finding in found):  # those after it follow from it
            found.append(_leak(f"share {what} with a training example", shared, len(evaluation)))
    repeats = list(_near(training, evaluation)) if not found else []
    if repeats:
        found.append(_leak("nearly repeat a training example with the same answer", repeats, len(evaluation)))
    return found or [
        passed("leak", f"none of {len(evaluation)} held-out prompts is like one of {len(training)} others")
    ]


def _leak(what: str, shared: Sequence[tuple[Example, Example]], total: int) -> Finding:
    one, other = shared[0]
    return failed("leak", f"{len(shared)} of {total} held-out examples {what}, e.g. {one.id} and {other.id}", FIX)


def _near(training: Sequence[Example], evaluation: Sequence[Example]) -> Iterator[tuple[Example, Example]]:
    """Held-out examples with the training example that has their answer and nearly their prompt.

    Shingles that many prompts hold are a template's and do not count.
    """
    examples = (*training, *evaluation)
    every = [shingles_of(example.prompt_text) for example in examples]
    holders = Counter(shingle for held in every for shingle in held.tolist())
    rare = [np.array([s for s in held.tolist() if holders[s] <= COMMON], dtype=np.uint32) for held in every]
    index: dict[int, list[int]] = {}
    for place, held in enumerate(rare[: len(training)]):
        for shingle in held.tolist():
            index.setdefault(shingle, []).append(place)
    for example, held in zip(evaluation, rare[len(training) :], strict=True):
        met = Counter(place for shingle in held.tolist() for place in index.get(shingle, ()))
        for place, _ in met.most_common(5):
            is_same = _normal(example.answer) == _normal(training[place].answer)
            if is_same and held.size >= FEWEST and jaccard(held, rare[place]) >= SIMILAR:
                yield example, training[place]
                break


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
