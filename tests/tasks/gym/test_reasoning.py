"""reasoning-gym as a task: its promises, rewards by hand, hostile answers, limits of its scorers."""

import json
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from whet.errors import UserError
from whet.limited_process import LimitedProcess
from whet.records import Example
from whet.tasks.check import check_task
from whet.tasks.gym import generators, scorer_worker
from whet.tasks.gym.generators import highest_level, scored
from whet.tasks.gym.reasoning import ReasoningGym
from whet.tasks.gym.think_format import SYSTEM_PROMPT, formatted

pytestmark = pytest.mark.skipif(not find_spec("reasoning_gym"), reason="the package reasoning-gym is not installed")
DOZEN = ("basic_arithmetic", "binary_matrix", "chain_sum", "coin_flip", "countdown", "game_of_life_halting")
DOZEN += (
    "graph_color",
    "gsm_symbolic",
    "number_sorting",
    "polynomial_multiplication",
    "rubiks_cube",
    "simple_equations",
)
WITHOUT_ANSWER = {"boxnet", "rush_hour"}  # several solutions exist, and the library gives none
SLOW = "9**9**9**9"  # sympy takes it for a number and computes it
GARBAGE = ("banana", "[]", "{}", "nan", "x" * 2000, "\x00", "¿🦙?", "lambda: 1", "1; 2", "(((", "not sure")


def posed(name: str, index: int) -> tuple[Any, dict[str, Any]]:
    """A generator of the library, and its problem of this number."""
    from reasoning_gym import create_dataset

    dataset = create_dataset(name, size=100, seed=0)
    return dataset, dataset[index]


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "gcd", "level": 2, "format_weight": 0.5, "system_prompt": ""},
        {"datasets": [{"name": "spell_backward", "weight": 3, "config": {"max_word_len": 5}}, "chain_sum"]},
    ],
    ids=["one", "mixture"],
)
def test_task_keeps_its_promises(options: dict[str, Any]) -> None:
    check_task(ReasoningGym(**options))


def test_an_example_is_generator_and_index_and_asks_its_question() -> None:
    task = ReasoningGym(dataset="spell_backward", config={"min_word_len": 4, "max_word_len": 4}, seed=5)
    one = task.held_out(1)[0]
    assert one.columns["dataset"] == "spell_backward"
    assert len(json.dumps(dict(one.columns))) < 200
    system, user = one.prompt
    assert not isinstance(system, str)
    assert not isinstance(user, str)
    assert (system.role, system.content) == ("system", SYSTEM_PROMPT)
    # The library itself, asked for the same problem.
    from reasoning_gym import create_dataset

    entry = create_dataset("spell_backward", min_word_len=4, max_word_len=4, seed=5, size=10_000)
    assert user.content == entry[one.columns["index"]]["question"]
    word = user.content.rpartition(" ")[2]
    assert one.answer == formatted(word[::-1])
    assert len(word) == 4


def test_no_question_is_both_trained_on_and_held_out() -> None:
    task = ReasoningGym(dataset="gcd", config={"max_value": 6}, held_out_examples=50)  # few questions: many repeat
    asked = {one.twin for one in task.held_out(50)}
    trained = {one.twin for step in range(1, 5) for one in task.draw(200, seed=(0, step))}
    assert len(asked) >= 5
    assert not asked & trained
    again = ReasoningGym(dataset="gcd", config={"max_value": 6}, held_out_examples=50)
    assert again.draw(20, seed=(1, 3)) == task.draw(20, seed=(1, 3)) != task.draw(20, seed=(2, 3))


def test_weights_are_followed_exactly() -> None:
    task = ReasoningGym(datasets=[{"name": "chain_sum", "weight": 3}, {"name": "gcd", "weight": 1}])
    drawn = [one.part for step in range(1, 4) for one in task.draw(6, seed=(0, step))]
    assert Counter(drawn[:6])["chain_sum"] in (4, 5)  # 4.5
    assert Counter(drawn[:12]) == {"chain_sum": 9, "gcd": 3}
    assert Counter(one.part for one in task.held_out(10)) == {"chain_sum": 5, "gcd": 5}


def test_levels_of_its_curricula() -> None:
    def words(**options: object) -> set[int]:
        task = ReasoningGym(dataset="spell_backward", **options)  # type: ignore[arg-type]
        return {len(one.twin.rpartition(" ")[2]) for one in task.draw(60, seed=(0, 1))}

    assert words(level=1) == {3}  # levels 3, 5, 7, …
    assert words(level=2) | {3, 4} == {3, 4, 5}
    assert max(words(levels={"word_len": 3})) == 7
    assert words(level=3, config={"min_word_len": 7}) == {7}  # options of the recipe win
    assert highest_level("spell_backward") == 5
    assert highest_level("composite") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either dataset .* or datasets"),
        ({"dataset": "gcd", "datasets": ["gcd"]}, "either dataset .* or datasets"),
        ({"dataset": "spel_backwards"}, "no generator 'spel_backwards'; did you mean 'spell_backward'"),
        ({"dataset": "composite"}, "several generators: datasets"),
        ({"dataset": "gcd", "config": {"min_valu": 1}}, "no option 'min_valu'; did you mean 'min_value'"),
        ({"dataset": "gcd", "config": {"min_numbers": 0}}, "refuses its options: min_numbers must be at least 2"),
        ({"dataset": "gcd", "config": {"size": 5}}, "size is an option of the task"),
        ({"dataset": "gcd", "level": 9}, "level is 9, must be between 1 and 4"),
        ({"dataset": "gcd", "levels": {"valu": 1}}, "no level of 'valu'; did you mean 'value'"),
        ({"dataset": "gcd", "levels": {"value": 0}}, "the level of value is 0, must be 1 to 4"),
        ({"dataset": "gsm_symbolic", "level": 1}, "has no curriculum"),
        ({"datasets": [{"name": "gcd", "weigth": 1}]}, "no 'weigth'; did you mean 'weight'"),
        ({"datasets": [{"weight": 1}]}, "must be a name or a mapping with one"),
        ({"datasets": [{"name": "gcd", "weight": 0}]}, "must be a number above 0"),
        ({"datasets": ["gcd"], "level": 2}, "are of one dataset"),
        ({"dataset": "gcd", "partial_weight": 2.0}, "must be from 0 to 1"),
        ({"dataset": "gcd", "format_weight": -1.0}, "must be 0 or more"),
        ({"dataset": "gcd", "held_out_examples": 0}, "must be 1 or more"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ReasoningGym(**options).draw(1, seed=(0, 1))  # type: ignore[arg-type]


def test_the_package_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match="reasoning_gym"):
        ReasoningGym(dataset="gcd")


def word_task(**options: float) -> tuple[ReasoningGym, Example, str]:
    """A task, a problem of a six-letter word, and its answer."""
    lengths = {"min_word_len": 6, "max_word_len": 6}
    task = ReasoningGym(dataset="spell_backward", config=lengths, held_out_examples=1, **options)  # type: ignore[arg-type]
    one = task.held_out(1)[0]
    return task, one, one.twin.rpartition(" ")[2][::-1]


@pytest.mark.parametrize(
    ("text", "accuracy", "kept"),
    [
        ("<think>so</think><answer>{right}</answer>", 1.0, 1.0),
        ("<answer>{right}</answer>", 1.0, 0.5),
        ("<answer> {right}\n</answer> bye", 1.0, 0.25),
        ("<answer>{upper}</answer>", 1.0, 0.5),
        ("{right}", 0.0, 0.0),  # not in its place
        ("<think>{right}</think>", 0.0, 0.5),
        ("<answer>{right}", 0.0, 0.25),
        ("{right}</answer>", 0.0, 0.0),
        ("<answer></answer>", 0.0, 0.25),
        ("<answer>{right}</answer><answer></answer>", 0.0, 0.0),  # the last one counts
        ("<answer>{right}</answer><answer>??????</answer>", 0.0, 0.0),
        ("<answer>??????</answer><answer>{right}</answer>", 1.0, 0.0),
        ("<think>a</think><answer>??????</answer>", 0.0, 1.0),
        # Half of the letters in place; all of them and more; listing both readings.
        ("<answer>{half}???</answer>", 0.1, 0.5),
        ("<answer>{right}{right}</answer>", 0.2, 0.5),
        ("<answer>{right} or {wrong}</answer>", 0.2, 0.5),
        ("<answer>{right}xxxxxxxx</answer>", 0.2, 0.5),
        ("<answer>The answer is {right}</answer>", None, 0.5),
        ("<answer>print('{right}')</answer>", None, 0.5),
    ],
)
def test_rewards(text: str, accuracy: float | None, kept: float) -> None:
    task, one, right = word_task(format_weight=0.5)
    filled = text.format(right=right, upper=right.upper(), half=right[:3], wrong=right[::-1])
    score = task.score(one, filled)
    assert score.parts["format"] == kept
    assert score.parts["correct"] == float(accuracy == 1.0)
    assert task.correct(one, filled) == (accuracy == 1.0)
    if accuracy is None:
        assert score.parts["accuracy"] <= 0.2
    else:
        assert score.parts["accuracy"] == pytest.approx(accuracy)
    assert score.reward == pytest.approx(score.parts["accuracy"] + 0.5 * kept)


def test_the_rewards_of_the_book_and_right_or_wrong() -> None:
    task, one, right = word_task(format_weight=0.5, partial_weight=1.0)
    assert task.score(one, formatted(right)).reward == 1.5
    assert task.score(one, f"<answer>{right[:3]}???</answer>").reward == pytest.approx(0.5 + 0.25)
    task, one, right = word_task(partial_weight=0.0)
    assert task.score(one, f"<answer>{right[:3]}???</answer>").reward == 0
    assert task.score(one, f"<answer>{right}</answer>").reward == 1


HOSTILE = [  # generator, answer with {gold} and {question}, the score that it must get
    ("game_of_life_halting", "banana", 0.0),  # its scorer takes any text for right
    ("game_of_life_halting", "True or False", 0.0),
    ("game_of_life_halting", "{gold} {gold}", 0.0),
    ("coin_flip", "0", 0.0),  # its scorer takes a prefix for right
    ("coin_flip", "0.", 0.0),
    ("coin_flip", "-{gold}", 0.0),
    ("complex_arithmetic", "nan", 0.0),  # its scorer takes it for right
    ("complex_arithmetic", "nan+nanj", 0.0),
    ("gsm_symbolic", "-{gold}", 0.0),  # its scorer drops the sign
    ("gsm_symbolic", "{gold} or 7", 0.0),  # its scorer takes the first number
    ("gsm_symbolic", "{gold} {gold}", 0.0),
    ("gsm_symbolic", "{question}", 0.01),
    ("fraction_simplification", "{gold} {gold}", 0.01),
    ("fraction_simplification", "{gold} or 1/2", 0.01),
    ("time_intervals", "{gold} 6 days", 0.0),
    ("puzzle24", "6*4*1*1", 0.0),  # its scorer takes any four numbers
    ("puzzle24", "24", 0.01),
    ("puzzle24", "[x.__class__ for x in (1,)]", 0.0),
    ("countdown", "__import__('os').getpid()", 0.0),
    ("countdown", "open('/etc/passwd').read()", 0.0),
    ("countdown", "9**9**9**9", 0.0),
    ("countdown", "exec('1')", 0.0),
    ("simple_integration", "Integral(x**2, x)", 0.0),  # sympy would solve the problem
    ("simple_integration", "integrate(x, x)", 0.0),
    ("simple_integration", "__import__('os').system('true')", 0.0),
    ("simple_integration", "x.__class__", 0.0),
    ("polynomial_multiplication", "expand({question})", 0.0),
    ("polynomial_multiplication", "expand((x + 1)*(x - 1))", 0.0),
    ("polynomial_multiplication", "sympify('1')", 0.0),
    ("polynomial_multiplication", "{gold}; 1", 0.0),
    ("n_queens", "__import__('os').getpid()", 0.0),  # its scorer calls eval
    ("n_queens", "(lambda: 1)()", 0.0),
    ("spiral_matrix", "[n for n in range(9)]", 0.0),
    ("spiral_matrix", "open('/etc/passwd')", 0.0),
    ("string_insertion", "exit()", 0.0),
    ("string_insertion", "{gold}{gold}", 0.0),
    ("binary_matrix", "__import__('time').sleep(100)", 0.0),
    ("binary_matrix", "{gold}\n{gold}", 0.0),
    ("number_sorting", "{question}", 0.0),
    ("basic_arithmetic", "eval('1+1')", 0.0),
    ("graph_color", "{{}}", 0.01),
    ("rubiks_cube", "banana", 0.01),
]


@pytest.mark.parametrize(("name", "answer", "score"), HOSTILE)
def test_hostile_answers(name: str, answer: str, score: float) -> None:
    worst = 0.0
    for index in range(3):
        dataset, entry = posed(name, index)
        text = answer.format(gold=entry["answer"], question=entry["question"])
        if text.strip().casefold() != str(entry["answer"]).casefold():
            worst = max(worst, scorer_worker.score_of(name, dataset, entry, text))
    assert worst == score


def test_a_repeated_premise_is_no_conclusion() -> None:
    dataset, entry = posed("propositional_logic", 0)
    premises = [str(one) for one in entry["metadata"]["premises"]]
    premise = next(one for one in premises if dataset.score_answer(one, entry) == 1)  # the library takes it
    assert scorer_worker.score_of("propositional_logic", dataset, entry, f" {premise}") == 0


def test_every_scorer_that_runs_answers_is_known() -> None:
    """A later version of the library with another `eval` fails here."""
    import inspect

    from reasoning_gym.factory import DATASETS

    def runs(kind: type, call: str) -> bool:
        own = kind.__dict__.get("score_answer")
        return own is not None and call in inspect.getsource(own)

    evaluated = {name for name, (kind, _) in DATASETS.items() if runs(kind, "eval(answer")}
    parsed = {name for name, (kind, _) in DATASETS.items() if runs(kind, "parse_expr(answer")}
    assert evaluated == set(scorer_worker.LITERALS)
    assert parsed == {name for name in DATASETS if not scorer_worker.is_harmless(name, "__import__('os')")}


def test_a_scorer_that_raises_or_hangs_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ReasoningGym(dataset="prime_factorization", held_out_examples=1)
    one = task.held_out(1)[0]
    score = task.score(one, "<answer>banana</answer>")  # int('banana') raises in its scorer
    assert (score.reward, score.parts["failed"]) == (0.0, 1.0)
    assert not task.correct(one, "<answer>banana</answer>")
    monkeypatch.setattr(generators, "SECONDS", 0.3)
    task = ReasoningGym(dataset="simple_integration", held_out_examples=1)
    one = task.held_out(1)[0]

    score = task.score(one, f"<answer>{SLOW}</answer>")
    assert (score.reward, score.parts["failed"]) == (0.0, 1.0)
    assert task.score(one, one.answer).parts == {"correct": 1.0, "accuracy": 1.0, "format": 1.0, "failed": 0.0}


def draws_and_scores(name: str) -> None:
    task = ReasoningGym(dataset=name, size=1000, seed=3, held_out_examples=2)
    sides = [*task.draw(3, seed=(0, 1)), *task.held_out(2)]
    assert [one.answer != "" for one in sides] == [name not in WITHOUT_ANSWER] * 5
    for one in sides:
        if one.answer:
            assert task.score(one, one.answer).reward == 1, one.id
    for garbage in GARBAGE:
        found = scored(sides[0].columns["source"], sides[0].columns["index"], garbage)
        assert found is None or found < 0.5, (name, garbage)


def test_problems_do_not_depend_on_the_process() -> None:
    """polynomial_multiplication goes through a set: without a fixed PYTHONHASHSEED every process makes others."""
    source = {"name": "polynomial_multiplication", "config": {}, "level": 0, "levels": {}, "size": 1000, "seed": 3}
    other = LimitedProcess(Path(scorer_worker.__file__))
    task = ReasoningGym(dataset="polynomial_multiplication", size=1000, seed=3, held_out_examples=3)
    for one in task.draw(10, seed=(0, 1)):
        assert one.columns["source"] == source
        assert other.ask({"source": source, "index": one.columns["index"]})["question"] == one.twin
    other.close()


@pytest.mark.parametrize("name", DOZEN)
def test_a_dozen_generators(name: str) -> None:
    draws_and_scores(name)


@pytest.mark.slow
def test_every_generator() -> None:
    from reasoning_gym.factory import DATASETS

    for name in sorted(set(DATASETS) - {"composite", *DOZEN}):
        draws_and_scores(name)
