"""Properties of a reward beside its values: determinism, batches, arguments, one constant, code that it runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.errors import RunFailed, UserError
from whet.imports import passing
from whet.tasks.bench.attack_texts import Target, filled
from whet.tasks.bench.probing import Attempt, Probe
from whet.tasks.bench.reward_findings import Finding, failed, note, passed
from whet.tasks.bench.subjects import Subject
from whet.tasks.bench.worker_probes import COLUMN, CONTRACT, MUTATION, changes_arguments, changes_examples
from whet.tasks.check import TaskProblem, attempt, check_task
from whet.tasks.grading.failures import GradingFailed
from whet.tasks.grading.graders import WorkerGrader
from whet.tasks.grading.reward_functions import arguments_of, load_rewards
from whet.tasks.grading.wire import pack_batch

ALONE = 16  # completions that are also graded one by one
CONTRACT_SECONDS = 120.0
SHOWN = 8  # completions of the test of arguments
Scores = Sequence[float | None]


def contract(subject: Subject) -> Finding:
    """The finding of `check_task`, in a worker that can be stopped."""
    fix = "see whet.tasks.check and docs/tasks.md for what a task promises"
    try:
        if subject.is_here:
            check_task(subject.task)
        else:
            example = replace(attempt("held_out", subject.task.held_out, 1)[0], columns={COLUMN: _setup(subject)})
            _asked(subject, CONTRACT, [Attempt(example, "")], CONTRACT_SECONDS)
    except TaskProblem as problem:
        return failed("contract", str(problem), fix)
    except GradingFailed as error:
        sentence = str(error).partition("TaskProblem: ")[2].rpartition(" (example ")[0]
        return failed("contract", sentence or str(error), fix)
    except IndexError:
        return note("contract", "not tried: no example is held out")
    return passed("contract", "examples, seeds, split and scores are as a task promises")


def determinism(subject: Subject, attempts: Sequence[Attempt], probe: Probe, seconds: float) -> tuple[Finding, float]:
    """Whether the same completion always scores the same, and by how much it varies. `probe` has graded nothing yet."""
    first, second = probe.scores(attempts), probe.scores(attempts)
    fresh = Probe(subject, seconds)
    try:
        third = fresh.scores(attempts)
        spread = max(_spread(first, second), _spread(first, third))
        if _spread(first, second):
            return _unlike(first, second, attempts, "determinism", *_cause(subject, third == first)), spread
        if _spread(first, third):
            what = "another process gives another score"
            fix = "do not use hash(), the time, or what the process has seen before; sort sets before using their order"
            return _unlike(first, third, attempts, "process", what, fix), spread
        backward = fresh.scores(attempts[::-1])[::-1]
        if spread := _spread(first, backward):
            what = "the order of the batch changes scores"
            return _unlike(first, backward, attempts, "order", what, "score each completion by itself"), spread
        alone = [fresh.scores([attempt])[0] for attempt in attempts[:ALONE]]
        if spread := _spread(first[:ALONE], alone):
            what = "a completion by itself scores something else than in a batch"
            fix = "score each completion by itself: a batch is cut by settings that have nothing to do with its quality"
            return _unlike(first[:ALONE], alone, attempts, "batch", what, fix), spread
        again = "another order, one by one" if subject.is_here else "another process, another order, one by one"
        return passed("determinism", f"the same scores again ({again})"), 0.0
    finally:
        probe.problems.extend(fresh.problems)
        fresh.close()


def constant(scores: Scores) -> Finding | None:
    """A reward that is the same for everything teaches nothing."""
    found = {score for score in scores if score is not None}
    if len(found) != 1:
        return None
    sentence = f"every completion scores {found.pop():g}, right or wrong: there is nothing to learn from"
    fix = "compare the completion with the answer of its row (match=… for rows); check the names of columns"
    return failed("constant", sentence, fix)


def arguments(subject: Subject, attempts: Sequence[Attempt], seconds: float) -> Finding:
    """Whether the reward changes what it is given."""
    attempts = [Attempt(example, text) for example, own in attempts[:SHOWN] for text in (own, f"  {own} \n")]
    try:
        changed = _changes_here(subject, attempts) if subject.is_here else _changes_there(subject, attempts, seconds)
    except UserError:
        raise
    except (RunFailed, Exception):  # noqa: BLE001 - a crash is found and shown by the attacks
        return note("arguments", "not tried: the reward fails on plain completions")
    if changed:
        what = "its arguments (prompts, completions or columns)" if subject.rewards else "the columns of an example"
        return failed(
            "arguments",
            f"the reward changes {what}, so that what is graded after it sees other data",
            "work on copies: sorted(x) for x.sort(), [*x, y] for x.append(y), dict(x) before x[key] = value",
        )
    return passed("arguments", "prompts, completions and columns are left as they were")


def runs_code(targets: Sequence[Target], probe: Probe, folder: Path) -> Finding:
    """Whether a completion is run as Python: one that makes a file in an empty folder."""
    mark = folder / "run-by-the-reward"
    program = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    target = targets[0]
    probe.scores([Attempt(target.example, text) for text in (program, *(filled(f, program) for f in target.forms))])
    if not mark.exists():
        return passed("code", "a completion that is Python code is not run")
    return replace(
        failed(
            "code",
            "the reward runs completions as Python (eval or exec): one of them made a file",
            "parse numbers and expressions (int, fractions.Fraction, ast.literal_eval), or run code in a sandbox",
        ),
        completion=program.replace(str(folder), "FOLDER"),
        example=target.example.id,
    )


def _cause(subject: Subject, is_repeatable: bool) -> tuple[str, str]:
    if is_repeatable and not subject.is_here:
        what = "the reward remembers earlier calls: a second call scores the same completions otherwise"
        return what, "keep no global state: no counters, caches of seen texts or running means"
    what = "the reward is random, or remembers earlier calls: a second call scores the same completions otherwise"
    return what, "use no random numbers (or a generator seeded by the completion), clocks or global state"


def _unlike(one: Scores, other: Scores, attempts: Sequence[Attempt], check: str, what: str, fix: str) -> Finding:
    place = next(place for place, (a, b) in enumerate(zip(one, other, strict=True)) if _spread([a], [b]))
    attempt = attempts[place]
    sentence = f"{what}: {one[place]:g}, then {other[place]:g}"
    return replace(
        failed(check, sentence, fix), example=attempt.example.id, completion=attempt.text, score=other[place]
    )


def _spread(one: Scores, other: Scores) -> float:
    """The largest difference; a completion without a score is a finding of its own."""
    both = zip(one, other, strict=True)
    return max((abs(a - b) for a, b in both if a is not None and b is not None), default=0.0)


def _changes_here(subject: Subject, attempts: Sequence[Attempt]) -> bool:
    if not subject.rewards:
        return changes_examples(subject.task, [one.example for one in attempts], [one.text for one in attempts])
    with passing(subject.objects):
        functions = load_rewards(subject.rewards)
    examples, texts = [one.example for one in attempts], [one.text for one in attempts]
    return any(changes_arguments(function.call, arguments_of(function, examples, texts)) for function in functions)


def _changes_there(subject: Subject, attempts: Sequence[Attempt], seconds: float) -> bool:
    packed = pack_batch([one.example for one in attempts], [one.text for one in attempts])
    rows = [Attempt(replace(attempts[0].example, columns={COLUMN: {**_setup(subject), **packed}}), "")]
    return _asked(subject, MUTATION, rows, seconds)[0] == 1


def _asked(subject: Subject, function: str, rows: Sequence[Attempt], seconds: float) -> list[float]:
    grader = WorkerGrader(subject.task_name, subject.options, [(function, 1.0)], time_limit_seconds=seconds)
    try:
        return [score.reward for score in grader.grade([row.example for row in rows], [row.text for row in rows])]
    finally:
        grader.close()


def _setup(subject: Subject) -> dict[str, Any]:
    return {"task": subject.task_name, "options": dict(subject.options), "rewards": [list(r) for r in subject.rewards]}
