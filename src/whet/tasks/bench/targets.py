"""From examples to targets: the form in which right answers score, answers that are wrong here, wrong play."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from whet.records import Example
from whet.tasks.bench.attack_texts import Target, filled, form_names
from whet.tasks.bench.probing import Attempt, Probe
from whet.tasks.bench.reward_findings import Finding, failed, note, passed
from whet.tasks.bench.subjects import ANSWER, Subject
from whet.tasks.check import attempt
from whet.tasks.maths.extraction import final_answer
from whet.tasks.protocol import HasWrongPlay, Task
from whet.tasks.space import fingerprint

SAME = 1e-9  # rewards nearer than this are equal
OTHERS = 40  # answers in a list of all answers
WORTHLESS = ("", "asdf qwer")
WRONG = 4  # of them that are tried for each example

Tried = dict[str, float]  # form → score of the right answer in it


def chosen_examples(task: Task, count: int, seed: int) -> list[Example]:
    """Distinct examples, a quarter of them held-out ones where there are any."""
    held_out = attempt("held_out", task.held_out, max(1, count // 4))
    drawn = {example.id: example for example in attempt("draw", task.draw, 4 * count, seed=(seed, 1))}
    return [*list(drawn.values())[: count - len(held_out)], *held_out]


def make_targets(
    subject: Subject, examples: Sequence[Example], probe: Probe, seed: int, spread: float
) -> tuple[list[Finding], list[Target]]:
    """The examples whose right answer scores above an empty completion, and findings about the right answers."""
    answers: Mapping[str, str] = {example.id: subject.answer(example) for example in examples}
    answered = [example for example in examples if answers[example.id].strip()]
    if not answered:
        return [note("gold", "no example has a right answer: nothing can be compared with one")], []
    answers, tried, form = _scored_best(subject, answered, answers, probe)
    floors = [probe.scores([Attempt(example, text) for text in WORTHLESS]) for example in answered]
    targets = []
    for example, scores, floor in zip(answered, tried, floors, strict=True):
        gold = scores.get(form)
        if gold is None:  # it could not be scored, which is a finding of its own
            continue
        targets.append(
            Target(
                example=example,
                answer=answers[example.id],
                gold=filled(form, answers[example.id]),
                reward=gold,
                is_poor=gold <= min((score for score in floor if score is not None), default=-math.inf) + SAME,
                forms=(form, *(other for other, score in scores.items() if other != form and score >= gold - SAME)),
                others=_others(answers, example, seed),
                wrong=(),
                plays=tuple(_plays(subject.task, example, form, seed)),
            )
        )
    if not targets:
        return [note("gold", "no right answer could be scored")], []
    return [_gold(subject, form, targets), *_beaten(targets, tried, answered, spread)], _with_wrong(targets, probe)


def _scored_best(
    subject: Subject, examples: Sequence[Example], answers: Mapping[str, str], probe: Probe
) -> tuple[Mapping[str, str], list[Tried], str]:
    """Right answers, their scores by form, and the form in which they score most.

    The `answer` of a row may be a whole solution. A reward function may want only what it ends with, so that is tried
    too: "18" of "… 9 · 2 = 18 dollars. #### 18".
    """
    variants = [answers]
    if subject.rewards:
        variants.append({name: final_answer(text, last_number=True) or text for name, text in answers.items()})
    found = []
    for some in variants if variants[-1] != answers else variants[:1]:
        tried = _tried(subject, examples, some, probe)
        found.append((some, tried, _best_form(subject, tried)))
    return max(found, key=lambda one: sum(scores.get(one[2], 0.0) for scores in one[1]))  # the first of equal ones


def _tried(subject: Subject, examples: Sequence[Example], answers: Mapping[str, str], probe: Probe) -> list[Tried]:
    pairs = [(place, form) for place, example in enumerate(examples) for form in form_names(example, subject.form)]
    attempts = [Attempt(examples[place], filled(form, answers[examples[place].id])) for place, form in pairs]
    found: list[Tried] = [{} for _ in examples]
    for (place, form), score in zip(pairs, probe.scores(attempts), strict=True):
        if score is not None:
            found[place][form] = score
    return found


def _best_form(subject: Subject, tried: Sequence[Tried]) -> str:
    """That of a task is the bare answer, as promised; of functions the one in which answers score most."""
    forms = dict.fromkeys(form for scores in tried for form in scores)
    if not subject.rewards or not forms:
        return subject.form or ANSWER
    return max(forms, key=lambda form: sum(scores.get(form, 0.0) for scores in tried))


def _gold(subject: Subject, form: str, targets: Sequence[Target]) -> Finding:
    poor = [target for target in targets if target.is_poor]
    shown = "" if form == ANSWER else f" in the form {form!r}"
    if not poor:
        mean = sum(target.reward for target in targets) / len(targets)
        return passed("gold", f"right answers{shown} score {mean:.3g} on average")
    sentence = f"{len(poor)} of {len(targets)} right answers{shown} score no more than junk"
    hint = ", or name the form that the reward expects: --gold '<result>{answer}</result>'" if subject.rewards else ""
    found = failed("gold", sentence, f"repair the comparison or the answers{hint}")
    return replace(found, example=poor[0].example.id, completion=poor[0].gold, score=poor[0].reward)


def _beaten(
    targets: Sequence[Target], tried: Sequence[Tried], examples: Sequence[Example], spread: float
) -> list[Finding]:
    """A finding if the same answer in another form scores more than in its own."""
    scores = {example.id: one for example, one in zip(examples, tried, strict=True)}
    for target in targets:
        best = max(scores[target.example.id], key=lambda other: scores[target.example.id][other])
        most = scores[target.example.id][best]
        if most > target.reward + SAME + 2 * spread:
            sentence = f"the right answer in the form {best!r} scores more than in its own"
            fix = "let the answer of an example be a completion with full marks, or give the task a method `best`"
            shown = replace(failed("gold", sentence, fix), score=most, gold=target.reward)
            return [replace(shown, example=target.example.id, completion=filled(best, target.answer))]
    return []


def _others(answers: Mapping[str, str], example: Example, seed: int) -> tuple[str, ...]:
    """Answers to other examples that are not the answer to this one, in an order of the seed."""
    own = answers[example.id].strip().casefold()
    others = dict.fromkeys(answer for answer in answers.values() if answer.strip() and answer.strip().casefold() != own)
    return tuple(sorted(others, key=lambda other: fingerprint("other", seed, example.id, other))[:OTHERS])


def _plays(task: Task, example: Example, form: str, seed: int) -> list[str]:
    if not isinstance(task, HasWrongPlay):
        return []
    return [filled(form, play) for play in attempt("wrong_play", task.wrong_play, example, seed=seed)]


def _with_wrong(targets: Sequence[Target], probe: Probe) -> list[Target]:
    """The targets with those of the other answers that score less here: some answers are right for several."""
    pairs = [(place, other) for place, target in enumerate(targets) for other in target.others[:WRONG]]
    scores = probe.scores(
        [Attempt(targets[place].example, filled(targets[place].forms[0], other)) for place, other in pairs]
    )
    wrong: list[list[str]] = [[] for _ in targets]
    for (place, other), score in zip(pairs, scores, strict=True):
        if score is not None and score < targets[place].reward - SAME:
            wrong[place].append(other)
    return [replace(target, wrong=tuple(some)) for target, some in zip(targets, wrong, strict=True)]
