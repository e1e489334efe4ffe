"""A learner's function beside an oracle: on every case the same values and, where asked for, the same gradient.

Where they differ, the answer is looked up among those of common mistakes; their remarks say what went wrong and why.
Oracles take and return plain lists, so they share neither code nor rounding with an answer in torch, and their
gradients are differences of their values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.learn.calling import Plain, Wrong, as_plain, as_tensor, called, flat, invoked, is_number, same, shape, short
from whet.learn.exercise import Functions, Remark

STEP = 1e-5  # of the differences


@dataclass(frozen=True)
class Case:
    arguments: Mapping[str, Plain]
    remark: str = ""  # what is said of a wrong answer to this one that no common mistake explains


@dataclass(frozen=True)
class Mistake:
    answer: Callable[..., Plain]  # what somebody who makes it returns
    remark: str


@dataclass(frozen=True)
class Compared:
    """A check: the learner's `function` gives what the oracle gives."""

    function: str
    oracle: Callable[..., Plain]
    cases: Sequence[Case]  # small ones first: they are shown
    mistakes: Sequence[Mistake] = ()
    gradient_of: Sequence[str] = ()  # arguments for which the gradient must agree too
    tensors: bool = True  # whether lists are given as tensors
    tolerance: float = 1e-4
    reading: Callable[[Any], Plain] = as_plain  # what of the answer is compared

    def __call__(self, functions: Functions) -> Remark | None:
        try:
            answers = [self._answer(functions, case) for case in self.cases]
        except Wrong as wrong:
            return wrong.remark
        for case, answer in zip(self.cases, answers, strict=True):
            expected = self.oracle(**case.arguments)
            if not same(answer, expected, self.tolerance):
                sentence = self._known(answers) or case.remark or differing(self.function, answer, expected)
                return Remark(sentence, self._example(case, answer, expected))
        return self._gradient_remark(functions)

    def _answer(self, functions: Functions, case: Case) -> Plain:
        return self.reading(called(functions, self.function, case.arguments, tensors=self.tensors))

    def _known(self, answers: Sequence[Plain]) -> str:
        """The remark of the mistake that gives all these answers."""
        return next((mistake.remark for mistake in self.mistakes if self._is_made(mistake, answers)), "")

    def _is_made(self, mistake: Mistake, answers: Sequence[Plain]) -> bool:
        """Whether the mistake gives these answers, on the cases on which it gives any."""
        found = []
        for case, answer in zip(self.cases, answers, strict=True):
            with contextlib.suppress(OverflowError, ValueError, ZeroDivisionError):
                found.append(same(answer, mistake.answer(**case.arguments), self.tolerance))
        return bool(found) and all(found)

    def _example(self, case: Case, answer: Plain, expected: Plain) -> str:
        given = ", ".join(f"{key}={short(value)}" for key, value in case.arguments.items())
        return f"{self.function}({given})\n  expected  {short(expected)}\n  yours     {short(answer)}"

    def _gradient_remark(self, functions: Functions) -> Remark | None:
        try:
            for name in self.gradient_of:
                for case in self.cases:
                    found = self._gradient(functions, case, name)
                    expected = differences(self.oracle, case.arguments, name)
                    if not same(found, expected, 1e-3):
                        sentence = (
                            f"the values of `{self.function}` are right, and its gradient by `{name}` is not: "
                            "some of what depends on it is treated as a constant, or a constant as depending on it"
                        )
                        return Remark(sentence, f"gradient by {name} of {self._example(case, found, expected)}")
        except Wrong as wrong:
            return wrong.remark
        return None

    def _gradient(self, functions: Functions, case: Case, name: str) -> list[float]:
        given = {key: as_tensor(value) for key, value in case.arguments.items()}
        leaf = given[name].requires_grad_()
        answer = invoked(functions, self.function, given)
        if not getattr(answer, "requires_grad", False):
            raise Wrong(
                f"no gradient reaches `{name}` through `{self.function}`, so nothing could be trained with it: "
                "a number was taken out of its tensor (`.item()`, `float`, `.detach()`, `torch.no_grad`, a new tensor)"
            )
        answer.sum().backward()
        return flat(as_plain(leaf.grad)) if leaf.grad is not None else [0.0] * leaf.numel()


def differences(oracle: Callable[..., Plain], arguments: Mapping[str, Plain], name: str) -> list[float]:
    """The gradient of the sum of an oracle's values by one argument, by central differences."""
    count = len(flat(arguments[name]))

    def total(index: int, step: float) -> float:
        return sum(flat(oracle(**{**arguments, name: _moved(arguments[name], index, step)[0]})))

    return [(total(index, STEP) - total(index, -STEP)) / (2 * STEP) for index in range(count)]


def _moved(value: Plain, index: int, step: float) -> tuple[Plain, int]:
    """The value with its number `index` moved, and the index left for what follows."""
    if is_number(value):
        return (value + step if index == 0 else value), index - 1
    parts = []
    for part in value:
        moved, index = _moved(part, index, step)
        parts.append(moved)
    return parts, index


def differing(function: str, answer: Plain, expected: Plain) -> str:
    """How an answer that no known mistake gives differs from the expected one."""
    have, want = shape(answer), shape(expected)
    if want is None or have is None:
        return f"`{function}` gives something else than it should" + (", not numbers" if want is not None else "")
    if have != want:
        return f"`{function}` returns the shape {have or 'of one number'} where it should be {want or 'one number'}"
    return _differing_numbers(function, flat(answer), flat(expected))


def _differing_numbers(function: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    if any(not math.isfinite(number) for number in ours):
        return f"`{function}` gives nan or inf: a log of 0, a division by 0, an exp of a large number, or 0·inf"
    if all(same(-a, b) for a, b in zip(ours, theirs, strict=True)):
        return f"`{function}` has the right size and the wrong sign: whoever descends it goes the wrong way"
    factors = [a / b for a, b in zip(ours, theirs, strict=True) if abs(b) > 1e-9]
    if len(factors) > 1 and all(same(factors[0], factor) for factor in factors) and _zero_where_expected(ours, theirs):
        return f"`{function}` is {factors[0]:.4g} times what it should be: look at what is divided by what"
    if len(ours) > 1 and all(same(a - b, ours[0] - theirs[0]) for a, b in zip(ours, theirs, strict=True)):
        return f"`{function}` is off by the same amount, {ours[0] - theirs[0]:.4g}, everywhere"
    return f"`{function}` gives other numbers than it should"


def _zero_where_expected(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return all(abs(a) < 1e-6 for a, b in zip(ours, theirs, strict=True) if abs(b) <= 1e-9)
