"""The child process that makes problems of reasoning-gym and scores answers; `generators` talks to it in JSON lines.

Several scorers call `eval` or sympy's `parse_expr` on the answer, which run any code in it and can take for ever. So
answers are scored in a process with limits, `eval` reads literals only, and what sympy reads are formulas. Some
generators go through sets, whose order depends on PYTHONHASHSEED, so the process fixes it. Imports nothing of whet, so
that it starts fast.
"""

import ast
import contextlib
import json
import math
import os
import re
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

MEMORY_BYTES = 4 * 2**30
MAKING_SECONDS = 50.0  # CPU time to make a problem
IN_METADATA = {  # where a right answer is, of those whose entries have none under `answer`
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
LITERALS = (
    "string_insertion",
    "spiral_matrix",
    "binary_matrix",
    "n_queens",
)  # their scorers evaluate the answer as code
ARITHMETIC = re.compile(r"[\d\s+*/().-]*")
FORMULA = re.compile(r"[\w\s+*/^().-]*", re.ASCII)
WORD = re.compile(r"[A-Za-z_]\w*")
FUNCTIONS = re.compile(
    r"sqrt|exp|log|ln|(?:a|arc)?(?:sin|cos|tan|cot|sec|csc)|a?(?:sinh|cosh|tanh)|erfi?|Abs|pi|[A-Za-z]"
)


def make_dataset(source: Mapping[str, Any]) -> Any:
    """The generator of a source: its name, config, level, levels, size and seed."""
    from reasoning_gym.factory import DATASETS, create_curriculum

    given = {**source["config"], "size": source["size"], "seed": source["seed"]}
    dataset, config = DATASETS[source["name"]]
    if not source["level"] and not source["levels"]:
        return dataset(config=config(**given))
    curriculum = create_curriculum(source["name"])
    if source["level"]:
        curriculum.set_global_level(source["level"] - 1)
    for attribute, level in source["levels"].items():
        curriculum.set_attr_level(attribute, level - 1)
    return dataset(config=replace(curriculum.generate_configuration(), **given))


def score_of(name: str, dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """The score from 0 to 1, by the scorer of the generator; what it must not be given scores 0."""
    if not answer.strip() or not is_harmless(name, answer):
        return 0.0
    with literals_only(name, dataset):
        score = float(dataset.score_answer(answer, entry))
    if math.isnan(score):
        raise ValueError("the score is not a number")
    if score >= 1 and name in CHECKS and not CHECKS[name](entry, answer):
        return 0.0
    return min(1.0, max(0.0, score))


def is_harmless(name: str, answer: str) -> bool:
    """Whether an answer that sympy reads is arithmetic, or a formula of the usual functions and short names.

    sympy would otherwise run the code in it, or solve the problem: `expand(…)`, `Integral(…)`.
    """
    if name in ("countdown", "puzzle24"):
        return bool(ARITHMETIC.fullmatch(answer)) and "**" not in answer and "//" not in answer
    if name in ("simple_integration", "intermediate_integration", "polynomial_multiplication"):
        is_formula = bool(FORMULA.fullmatch(answer)) and not re.search(r"\.\s*[A-Za-z_]", answer)
        return is_formula and all(FUNCTIONS.fullmatch(word) for word in WORD.findall(answer))
    return True


@contextlib.contextmanager
def literals_only(name: str, dataset: Any) -> Iterator[None]:
    """`eval` in the generator's module is `ast.literal_eval` meanwhile."""
    module = sys.modules[type(dataset).__module__]
    if name not in LITERALS:
        yield
        return
    module.__dict__["eval"] = ast.literal_eval
    try:
        yield
    finally:
        del module.__dict__["eval"]


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _uses_the_numbers(entry: Mapping[str, Any], answer: str) -> bool:
    """puzzle24's scorer takes any four numbers, not those of the puzzle."""
    return Counter(map(int, _numbers(answer))) == Counter(entry["metadata"]["numbers"])


def _is_the_answer(entry: Mapping[str, Any], answer: str) -> bool:
    """game_of_life_halting's scorer takes any text for right, because no text is false."""
    return answer.strip().casefold() == str(entry["answer"]).casefold()


def _is_the_number(entry: Mapping[str, Any], answer: str) -> bool:
    """gsm_symbolic's scorer takes the first of several numbers, and drops a minus."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", answer)
    return len(found) == 1 and float(found[0].replace(",", "")) == float(entry["answer"])


def _is_the_probability(entry: Mapping[str, Any], answer: str) -> bool:
    """coin_flip's scorer takes a prefix such as 0 of 0.25 for right."""
    return abs(Fraction(answer.replace(",", "")) - Fraction(entry["answer"])) <= Fraction(1, 10_000)


def _has_as_many_numbers(entry: Mapping[str, Any], answer: str) -> bool:
    """fraction_simplification's and time_intervals' scorers take the first of several answers, and drop a minus."""
    gold = str(entry["answer"])
    return len(_numbers(answer)) == len(_numbers(gold)) and ("-" not in answer or "-" in gold)


def _is_finite(entry: Mapping[str, Any], answer: str) -> bool:  # noqa: ARG001 - as the other checks
    """complex_arithmetic's scorer takes nan for right."""
    return not re.search(r"nan|inf", answer, re.IGNORECASE)


def _is_no_premise(entry: Mapping[str, Any], answer: str) -> bool:
    """propositional_logic's scorer takes a repeated premise for a conclusion."""

    def bare(text: str) -> str:
        return re.sub(r"[\s()]", "", text)

    return bare(answer) not in {bare(str(premise)) for premise in entry["metadata"]["premises"]}


# What must hold besides, where the scorer of a generator takes too much for right.
CHECKS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    "coin_flip": _is_the_probability,
    "complex_arithmetic": _is_finite,
    "fraction_simplification": _has_as_many_numbers,
    "game_of_life_halting": _is_the_answer,
    "gsm_symbolic": _is_the_number,
    "propositional_logic": _is_no_premise,
    "puzzle24": _uses_the_numbers,
    "time_intervals": _has_as_many_numbers,
}


@lru_cache(maxsize=64)
def _dataset(source: str) -> Any:
    return make_dataset(json.loads(source))


@lru_cache(maxsize=256)
def _entry(source: str, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(source)[index]
    return entry


def _posed(name: str, entry: Mapping[str, Any]) -> dict[str, str]:
    """The question, and an answer that scores full marks; empty if the generator has none."""
    answer = entry["answer"]
    if answer is None and name in IN_METADATA:
        answer = entry["metadata"][IN_METADATA[name]]
    if not isinstance(answer, str):
        answer = "" if answer is None else json.dumps(answer)
    return {"question": str(entry["question"]), "answer": answer}


def _reply(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The score of an answer; without one the problem; without an index nothing, after the options are accepted."""
    source, name = json.dumps(asked["source"], sort_keys=True), asked["source"]["name"]
    try:
        signal.setitimer(signal.ITIMER_PROF, MAKING_SECONDS)
        dataset = _dataset(source)
        if "index" not in asked:
            return {}
        entry = _entry(source, asked["index"])
        if "answer" not in asked:
            return _posed(name, entry)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        return {"score": score_of(name, dataset, entry, asked["answer"])}
    except Exception as error:  # noqa: BLE001 - the library's mistakes may be of any type
        return {"failed": str(error) or type(error).__name__}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Answers line by line until standard input ends."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"  # read when Python starts
        os.execv(sys.executable, [sys.executable, "-P", __file__])  # noqa: S606 - itself
    answers, sys.stdout = sys.stdout, sys.stderr  # generators and scorers print
    import reasoning_gym  # noqa: F401 - slow, and not counted as scoring

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process
    for line in sys.stdin.buffer:
        answers.write(json.dumps(_reply(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
