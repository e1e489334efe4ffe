"""`check_reward`: attacks a reward with completions that must not score, and tests how it behaves.

Everything is determined by the seed. What a policy could exploit is a failed finding; what is only worth knowing, as a
reward that is strict about spaces, is a note.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.records import Example
from whet.tasks.bench import behaviour
from whet.tasks.bench.attack_texts import Target, filled
from whet.tasks.bench.attacks import ATTACKS, Outcomes, judged, launch
from whet.tasks.bench.leaks import leaks
from whet.tasks.bench.probing import Attempt, Probe, Problem
from whet.tasks.bench.reward_findings import Finding, Report, failed
from whet.tasks.bench.subjects import ANSWER, Subject, subject_of
from whet.tasks.bench.targets import chosen_examples, make_targets
from whet.tasks.check import attempt
from whet.tasks.protocol import Task

EXAMPLES = 24
SECONDS = 10.0  # for a batch of completions
PROBLEMS = {  # kind → what happened, and what to do
    "hang": (
        "the reward takes too long",
        "limit what is read (length, depth), and avoid patterns with a repetition inside of a repetition",
    ),
    "crash": ("the reward fails", "expect any text: catch the error where it is read, and score it as wrong"),
    "range": ("the reward is not a finite number of reasonable size", "guard divisions, powers and logarithms"),
    "type": ("the reward is not a number", "return a list with one number or None for each completion"),
}


def check_reward(
    reward: str | Task | Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    *,
    task: str | Task | None = None,
    gold: str = "",
    open_ended: bool = False,
    examples: int = EXAMPLES,
    seed: int = 0,
    seconds: float = SECONDS,
) -> Report:
    """Checks a task (name, `file.py:Class` or object) or a reward function, which needs a `task` for its rows.

    `options` are those of the task. `gold` is the form of a right completion, e.g. `<answer>{answer}</answer>`; without
    it the usual ones are tried. `open_ended` leaves out attacks that assume one final answer. `seconds` is the limit
    for a batch of completions; it does not hold for objects, which are graded in this process.
    """
    subject = subject_of(reward, options, task=task, form=gold, open_ended=open_ended)
    return check_subject(subject, examples=examples, seed=seed, seconds=seconds)


def check_subject(subject: Subject, *, examples: int = EXAMPLES, seed: int = 0, seconds: float = SECONDS) -> Report:
    """As `check_reward`, of a subject that is built already."""
    if examples < 2:
        raise UserError(f"examples is {examples}: two are needed at least, because the answer to one attacks another")
    found = [] if subject.rewards else [behaviour.contract(subject)]
    chosen = chosen_examples(subject.task, examples, seed)
    probe = Probe(subject, seconds)
    outcomes: list[Outcomes] = []
    targets: list[Target] = []
    try:
        plain = [Attempt(example, text) for example in chosen for text in _plain_texts(subject, example)]
        found.append(behaviour.arguments(subject, plain, seconds))  # first: it would be too late to see a change
        same, spread = behaviour.determinism(subject, plain, probe, seconds)
        golds, targets = make_targets(subject, chosen, probe, seed, spread)
        attacked = targets or _unanswered(chosen)
        found += [same, *golds]
        with tempfile.TemporaryDirectory() as folder:
            found.append(behaviour.runs_code(attacked, probe, Path(folder)))
        outcomes = _attacked(subject, attacked, probe, spread)
        flat = behaviour.constant([*(target.reward for target in targets), *_scores(outcomes)])
        found += _judged(targets, outcomes) if flat is None else [flat]
    finally:
        probe.close()
    found += [*_problems(probe.problems), *leaks(subject.task, seed)]
    return _report(subject, found, probe, targets, outcomes)


def _plain_texts(subject: Subject, example: Example) -> list[str]:
    """Ordinary completions for the tests of behaviour: right, empty, a part of the prompt, another text."""
    answer = subject.answer(example)
    return [filled(subject.form or ANSWER, answer), "", example.prompt_text[-200:], f"{answer} 0"]


def _unanswered(examples: Sequence[Example]) -> list[Target]:
    """Targets without a right answer: attacks on them only show whether the reward survives."""
    made = {"answer": "", "gold": "", "forms": (ANSWER,), "others": (), "wrong": (), "plays": ()}
    return [Target(example=example, reward=float("inf"), **made) for example in examples]  # type: ignore[arg-type]


def _attacked(subject: Subject, targets: Sequence[Target], probe: Probe, spread: float) -> list[Outcomes]:
    fitting = [attack for attack in ATTACKS if subject.has_one_answer or not attack.one_answer]
    return [_unless_right(subject, launch(attack, targets, probe, spread)) for attack in fitting]


def _unless_right(subject: Subject, outcomes: Outcomes) -> Outcomes:
    """Without the answers of others that the task itself says are right here too."""
    if outcomes.attack.name != "other answers" or subject.rewards:
        return outcomes
    rows = zip(outcomes.attempts, outcomes.scores, strict=True)
    kept = [None if attempt("correct", subject.task.correct, *one) else score for one, score in rows]
    return replace(outcomes, scores=tuple(kept) if any(score is not None for score in kept) else outcomes.scores)


def _scores(outcomes: Sequence[Outcomes]) -> list[float | None]:
    return [score for one in outcomes for score in one.scores]


def _judged(targets: Sequence[Target], outcomes: Sequence[Outcomes]) -> list[Finding]:
    if not targets:
        return []
    counts = Counter(target.answer for target in targets)
    frequent = counts.most_common(1)[0][1] / len(targets)
    floor = min((score for score in _scores(outcomes) if score is not None), default=0.0)
    return [judged(one, frequent=frequent, floor=floor) for one in outcomes]


def _problems(problems: Sequence[Problem]) -> list[Finding]:
    """One finding for each kind of problem, with its first completion."""
    found = []
    for kind, (what, fix) in PROBLEMS.items():
        some = [problem for problem in problems if problem.kind == kind]
        if some:
            first = some[0]
            rest = "; attacks after it were not tried" if kind == "hang" else ""
            sentence = f"{what} (on {len(some)} completions at least): {first.message}{rest}"
            example, text = first.attempt
            found.append(replace(failed(kind, sentence, fix), example=example.id, completion=text))
    return found


def _report(
    subject: Subject, found: Sequence[Finding], probe: Probe, targets: Sequence[Target], outcomes: Sequence[Outcomes]
) -> Report:
    most = [(one.most, one.attack.name) for one in outcomes if one.most is not None] if targets else []
    wrong, name = max(most, key=lambda pair: pair[0], default=(None, ""))
    return Report(
        subject=subject.name,
        findings=tuple(found),
        examples=len(targets),
        completions=probe.graded,
        per_second=probe.graded / probe.seconds if probe.seconds else 0.0,
        gold_mean=sum(target.reward for target in targets) / len(targets) if targets else None,
        wrong_most=wrong,
        wrong_most_check=name,
    )
