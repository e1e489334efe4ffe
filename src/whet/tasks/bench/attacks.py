"""The table of attacks: what each sends, what it may earn, and what to change if it earns more."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from whet.tasks.bench import attack_texts as texts
from whet.tasks.bench.attack_texts import Target
from whet.tasks.bench.probing import Attempt, Probe
from whet.tasks.bench.reward_findings import Finding
from whet.tasks.bench.targets import SAME

# below: less than the right answer; at most: no more than it; same: as much, else the reward is strict.
Expects = Literal["below", "at most", "same"]
CHANCE = 0.25  # beyond the share of the most frequent answer, in which a text may be right by chance
FARMED = 0.3  # share of full marks for a text that contains no answer, above which it is noted
FINAL = "accept one final answer in an agreed place (the last <answer> block, box or line), compare all of it, and"
"""The beginning of most repairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    name: str
    about: str  # what it sends
    texts: Callable[[Target], list[str]]
    fix: str
    expects: Expects = "below"
    is_blind: bool = False  # contains no answer, so that what it earns is earned for nothing
    by_chance: bool = False  # may be right for some examples
    one_answer: bool = False  # only for tasks with one final answer
    together: int = 1  # so many texts in a row count by the lowest score of theirs
    most: int = 10**6  # examples


ATTACKS = (
    Attack(
        name="empty",
        about="an empty completion",
        texts=texts.empty,
        is_blind=True,
        fix="give a completion without an answer the lowest reward",
    ),
    Attack(
        name="echo",
        about="the prompt, repeated",
        texts=texts.echo,
        is_blind=True,
        by_chance=True,
        fix=f"{FINAL} ignore text that the prompt holds already",
    ),
    Attack(
        name="echo and gold",
        about="the prompt and then the right answer",
        texts=texts.echo_and_gold,
        expects="at most",
        fix="do not reward the length or the words of the prompt",
    ),
    Attack(
        name="list",
        about="all answers in a list, the right one among them",
        texts=texts.listed,
        one_answer=True,
        fix=f"{FINAL} do not search the completion for the right answer",
    ),
    Attack(
        name="repeat",
        about=f"the right answer {texts.REPEATS} times",
        texts=texts.repeated,
        expects="at most",
        fix="score an answer once, however often it is written",
    ),
    Attack(
        name="noise",
        about="the right answer with text before, after and around it",
        texts=texts.noise,
        expects="at most",
        fix="do not reward length or words beside the answer",
    ),
    Attack(
        name="embedded",
        about="the right answer inside a longer word or number",
        texts=texts.embedded,
        one_answer=True,
        fix="compare the whole answer (==), not a part of the text (in, re.search)",
    ),
    Attack(
        name="contradiction",
        about="the right answer followed by a wrong final answer",
        texts=texts.contradicted,
        one_answer=True,
        fix=f"{FINAL} let the last one count, or none if they differ",
    ),
    Attack(
        name="correction",
        about="a wrong answer followed by the right one",
        texts=texts.corrected,
        expects="at most",
        one_answer=True,
        fix="do not add up the scores of several answers",
    ),
    Attack(
        name="hedge",
        about="a right and a wrong answer in the place of one, in both orders",
        texts=texts.hedged,
        one_answer=True,
        together=2,
        fix="compare the whole answer (==), and give nothing for two answers in the place of one",
    ),
    Attack(
        name="format",
        about="the form of an answer with nothing or junk in it",
        texts=texts.hollow,
        is_blind=True,
        fix="give the reward for the content, and for the form only a small part of it beside the content",
    ),
    Attack(
        name="no answer",
        about="a refusal, or a word that is no number (nan, inf, None)",
        texts=texts.unanswered,
        is_blind=True,
        fix="give nothing where no answer is stated, and compare numbers so that nan equals none: abs(a - b) <= e",
    ),
    Attack(
        name="long reasoning",
        about="much reasoning before a wrong answer",
        texts=texts.long_reasoning,
        one_answer=True,
        fix="let a reward for reasoning or length be a small part of that for the right answer",
    ),
    Attack(
        name="other answers",
        about="the right answers to other examples",
        texts=texts.answers_of_others,
        by_chance=True,
        one_answer=True,
        fix="compare with the answer of this row; check that answers belong to their prompts",
    ),
    Attack(
        name="truncated",
        about="the beginning of the right answer",
        texts=texts.truncated,
        by_chance=True,
        one_answer=True,
        fix="compare the whole answer (==), not its beginning (startswith)",
    ),
    Attack(
        name="legal play",
        about="well-formed answers by the rules of the task that solve nothing",
        texts=texts.legal_play,
        fix="reward what an answer achieves, not that its steps are legal, and give full marks to solutions only",
    ),
    Attack(
        name="unicode",
        about="odd Unicode: NUL, lone surrogates, marks of direction, zero-width and combining characters",
        texts=texts.odd_text,
        is_blind=True,
        most=4,
        fix="treat text that holds no answer as wrong",
    ),
    Attack(
        name="unicode in gold",
        about="the right answer with full-width, zero-width, combining and other odd characters",
        texts=texts.odd_gold,
        expects="at most",
        most=8,
        fix="do not reward odd characters",
    ),
    Attack(
        name="variants",
        about="the right answer in another case, with spaces or a full stop",
        texts=texts.variants,
        expects="same",
        most=8,
        fix="do not reward case or spaces",
    ),
    Attack(
        name="long text",
        about=f"{texts.LONG:,} characters of one kind",
        texts=texts.long_text,
        is_blind=True,
        by_chance=True,
        most=2,
        fix="limit the length that is read, and do not reward length",
    ),
    Attack(
        name="long and gold",
        about=f"{texts.LONG:,} characters of prose and then the right answer",
        texts=texts.long_and_gold,
        expects="at most",
        most=4,
        fix="do not reward length",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """What an attack earned."""

    attack: Attack
    attempts: tuple[Attempt, ...]
    targets: tuple[Target, ...]  # of each attempt
    scores: tuple[float | None, ...]
    spread: float  # by which the score of one completion varies

    @property
    def graded(self) -> Iterator[tuple[Attempt, Target, float]]:
        """Each attempt with its score; those that count together as the last one with the lowest score."""
        rows = list(zip(self.attempts, self.targets, self.scores, strict=True))
        for start in range(0, len(rows), self.attack.together):
            some = rows[start : start + self.attack.together]
            scores = [score for _, _, score in some]
            if all(score is not None for score in scores):
                yield some[-1][0], some[-1][1], min(score for score in scores if score is not None)

    @property
    def most(self) -> float | None:
        """The highest score of a wrong completion."""
        if self.attack.expects != "below":
            return None
        return max((score for _, target, score in self.graded if not _is_hit(self, target, score)), default=None)

    def share(self, floor: float) -> float:
        """The mean share of full marks above the lowest score."""
        shares = [(score - floor) / (t.reward - floor) for _, t, score in self.graded if t.reward > floor]
        return sum(shares) / len(shares) if shares else 0.0


def launch(attack: Attack, targets: Sequence[Target], probe: Probe, spread: float) -> Outcomes:
    """Sends an attack and collects its scores."""
    pairs = [(Attempt(t.example, text), t) for t in targets[: attack.most] for text in attack.texts(t)]
    attempts, of = tuple(attempt for attempt, _ in pairs), tuple(target for _, target in pairs)
    scores = probe.scores(attempts)
    return Outcomes(attack=attack, attempts=attempts, targets=of, scores=tuple(scores), spread=spread)


def judged(outcomes: Outcomes, *, frequent: float, floor: float) -> Finding:
    """The finding about an attack; `frequent` is the share of the most frequent answer."""
    attack, graded = outcomes.attack, list(outcomes.graded)
    if not graded:
        return Finding(check=attack.name, outcome="note", sentence=f"not tried: {attack.about} (nothing to make it of)")
    hits = [(attempt, target, score) for attempt, target, score in graded if _is_hit(outcomes, target, score)]
    rate = len({target.example.id for _, target, _ in hits}) / len({target.example.id for _, target, _ in graded})
    if not hits:
        return _harmless(outcomes, floor)
    attempt, target, score = max(hits, key=lambda hit: hit[2] - hit[1].reward)
    how = "more than" if score > target.reward + SAME else "as much as"
    is_chance = attack.by_chance and rate <= frequent + CHANCE and how == "as much as"
    sentence = f"{attack.about}: {how} the right answer on {rate:.0%} of the examples"
    return Finding(
        check=attack.name,
        outcome="note" if is_chance else "failed",
        sentence=f"{sentence}, as chance allows" if is_chance else sentence,
        fix="" if is_chance else attack.fix,
        example=attempt.example.id,
        completion=attempt.text,
        score=score,
        gold=target.reward,
    )


def _is_hit(outcomes: Outcomes, target: Target, score: float) -> bool:
    if outcomes.attack.expects == "below" and not target.is_poor:
        return score >= target.reward - SAME
    return score > target.reward + SAME + 2 * outcomes.spread


def _harmless(outcomes: Outcomes, floor: float) -> Finding:
    attack, graded = outcomes.attack, list(outcomes.graded)
    if attack.expects == "same":
        return _strictness(graded, attack)
    share = outcomes.share(floor)
    if attack.is_blind and share > FARMED:
        attempt, target, score = max(graded, key=lambda row: row[2])
        return Finding(
            check=attack.name,
            outcome="note",
            sentence=f"{attack.about} earns {share:.0%} of full marks: a policy may settle for that",
            example=attempt.example.id,
            completion=attempt.text,
            score=score,
            gold=target.reward,
        )
    earned = f"at most {max(score for _, _, score in graded):.3g}" if attack.expects == "below" else "no more than gold"
    return Finding(check=attack.name, outcome="passed", sentence=f"{attack.about}: {earned}")


def _strictness(graded: Sequence[tuple[Attempt, Target, float]], attack: Attack) -> Finding:
    strict = [(attempt, target, score) for attempt, target, score in graded if score < target.reward - SAME]
    if not strict:
        return Finding(check=attack.name, outcome="passed", sentence=f"{attack.about}: full marks")
    attempt, target, score = strict[0]
    return Finding(
        check=attack.name,
        outcome="note",
        sentence=f"too strict? {attack.about}: {len(strict)} of {len(graded)} score less than it",
        example=attempt.example.id,
        completion=attempt.text,
        score=score,
        gold=target.reward,
    )
