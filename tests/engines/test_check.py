"""`check_engine`: each fault is named at the levels that promise its absence, and only there."""

import math
from dataclasses import replace

import pytest

from tests.small import small_model
from whet.engines.check_engine import EngineProblem, check_engine
from whet.engines.native.native_engine import NativeEngine
from whet.errors import UserError

LEVELS = ("exact", "seeded", "sampled")


def changed(groups, change):
    return [[change(c) for c in group] for group in groups]


class Unrepeatable(NativeEngine):
    """Draws anew in every call."""

    calls = 0

    def generate(self, prompts, sampling, *, count=1):
        self.calls += 1
        fresh = [replace(p, stream=(*p.stream, self.calls)) for p in prompts]
        return super().generate(fresh, sampling, count=count)


class Crowded(NativeEngine):
    """Lets the batch decide what is drawn."""

    def generate(self, prompts, sampling, *, count=1):
        shifted = [replace(p, stream=(*p.stream, len(prompts))) for p in prompts]
        return super().generate(shifted, sampling, count=count)


class Rounded(NativeEngine):
    """Computes as another implementation does: log-probs are off by a thousandth."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        return changed(groups, lambda c: replace(c, logprobs=tuple(x * 1.001 for x in c.logprobs)))


class Raw(NativeEngine):
    """Reports the log-prob of the temperature 1, whatever it sampled with."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        return changed(groups, lambda c: replace(c, logprobs=tuple(x * 1.3 for x in c.logprobs)))


class Unknown(NativeEngine):
    """Does not tell its log-probs."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        return changed(groups, lambda c: replace(c, logprobs=(math.nan,) * len(c.tokens)))


class Stale(NativeEngine):
    """Forgets to take new weights."""

    def sync(self, policy, *, version):
        pass


class OneWay(NativeEngine):
    """Takes new weights once more and never again."""

    def sync(self, policy, *, version):
        if version < 3:
            super().sync(policy, version=version)


class OneStream(NativeEngine):
    """Gives every sample of a prompt the same seed."""

    def generate(self, prompts, sampling, *, count=1):
        return [group * count for group in super().generate(prompts, sampling, count=1)]


class GreedyTold(NativeEngine):
    """Reports how likely the greedy token was."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        if sampling.temperature > 0:
            return groups
        return changed(groups, lambda c: replace(c, logprobs=(-0.1,) * len(c.tokens)))


class GreedyDrawn(NativeEngine):
    """Draws where it should take the most likely token."""

    def generate(self, prompts, sampling, *, count=1):
        if sampling.temperature > 0:
            return super().generate(prompts, sampling, count=count)
        groups = super().generate(prompts, replace(sampling, temperature=1.0), count=count)
        return changed(groups, lambda c: replace(c, logprobs=(0.0,) * len(c.tokens)))


class Short(NativeEngine):
    """Loses the last token of what was cut off."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        shorter = lambda c: replace(c, tokens=c.tokens[:-1], logprobs=c.logprobs[:-1])  # noqa: E731
        return changed(groups, lambda c: shorter(c) if c.finish == "length" else c)


class WithoutEnd(NativeEngine):
    """Leaves the end-of-sequence token out, as servers like to do."""

    def generate(self, prompts, sampling, *, count=1):
        groups = super().generate(prompts, sampling, count=count)
        bare = lambda c: replace(c, tokens=c.tokens[:-1], logprobs=c.logprobs[:-1])  # noqa: E731
        return changed(groups, lambda c: bare(c) if c.finish == "stop" and len(c.tokens) > 1 else c)


# Engine, the sentence, and the levels at which it is said.
FAULTS = [
    (Unrepeatable, "gave other completions the second time", ("exact", "seeded")),
    (Crowded, "changes with what else is in the batch", ("exact",)),
    (Rounded, "log-probs differ from the trainer's by up to", ("exact",)),
    (Raw, "log-probs differ from the trainer's", LEVELS),
    (Unknown, "log-probs differ from the trainer's", LEVELS),
    (Stale, "stale", LEVELS),
    (OneWay, "sync back|after sync back", LEVELS),
    (OneStream, "samples of a prompt are all the same", LEVELS),
    (GreedyTold, "greedy token has a log-prob other than 0", LEVELS),
    (GreedyDrawn, "greedy completions change with the stream", ("exact", "seeded")),
    (Short, "truncated after 7 of 8 tokens", LEVELS),
    (WithoutEnd, "finish is 'stop' and the last token does not end it", LEVELS),
]
CASES = [(engine, sentence, level, level in levels) for engine, sentence, levels in FAULTS for level in LEVELS]


def check(engine, level, **options):
    model, tokenizer = small_model()
    prompts = [tokenizer.encode(text) for text in ("12+", "a", "77+1", "b0", "=")]
    check_engine(engine(model, tokenizer), model, tokenizer, prompts, level=level, **options)


@pytest.mark.parametrize(("engine", "sentence", "level", "said"), CASES)
def test_each_fault_is_named_where_its_absence_is_promised(engine, sentence, level, said):
    if not said:
        check(engine, level)
        return
    with pytest.raises(EngineProblem, match=sentence) as problem:
        check(engine, level)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("level", LEVELS)
def test_the_native_engine_passes_every_level(level):
    check(NativeEngine, level)


def test_a_tolerance_takes_the_place_of_the_levels_own():
    check(Rounded, "exact", tolerance=0.05)
    with pytest.raises(EngineProblem, match="on average by"):
        check(Rounded, "sampled", tolerance=1e-6)


def test_an_unknown_level_is_refused():
    with pytest.raises(UserError, match="unknown level 'good': choose one of exact, seeded, sampled"):
        check(NativeEngine, "good")


class Lost(NativeEngine):
    """Answers all prompts but the last."""

    def generate(self, prompts, sampling, *, count=1):
        return super().generate(prompts, sampling, count=count)[:-1]


def test_a_missing_group_is_counted():
    with pytest.raises(EngineProblem, match=r"5 prompts × 3 gave groups of \[3, 3, 3, 3\]"):
        check(Lost, "sampled")
