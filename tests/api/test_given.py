"""What Python gives becomes the recipe that the command line would have made."""

import functools
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import whet
from tests import own_cells
from whet.api.given import Objects, read_given, read_source
from whet.errors import UserError
from whet.imports import importable, load_named, passing
from whet.recipe import read_any, validated
from whet.tasks.procedural import Reverse, Sorting
from whet.train.start import start_run


def built(source, data=None, overrides=(), rewards=None, **keys):
    given = read_given(keys, rewards, overrides, data)
    written, name, where = read_source(source, None)
    with passing(given.objects):
        return validated(given.on(written), name=name, where=where)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"steps": 5, "lr": 3e-4}, ["steps=5", "lr=3e-4"]),
        ({"rollout": {"prompts": 8}, "optimizer": {"lr": 1e-4}}, ["rollout.prompts=8", "optimizer.lr=1e-4"]),
        ({"overrides": {"algorithm.clip.high": 0.28}}, ["algorithm.clip.high=0.28"]),
        ({"overrides": ["algorithm.clip.high=0.28"]}, ["algorithm.clip.high=0.28"]),
        ({"algorithm": "rloo"}, ["algorithm=rloo"]),
        (
            {"algorithm": {"preset": "rloo", "kl": {"coefficient": 0.1}}},
            ["algorithm=rloo", "algorithm.kl.coefficient=0.1"],
        ),
        ({"algorithm": {"clip": {"high": 0.3}}}, ["algorithm.clip.high=0.3"]),
        ({"model": {"new": {"layers": 2}}}, ["model.new.layers=2"]),
        ({"model": "somewhere"}, ["model=somewhere"]),
        ({"task": {"level": 2, "name": "sorting"}}, ["task.name=sorting", "task.level=2"]),
        ({"task": Sorting(level=2)}, ["task={name: sorting, level: 2, chat: false}"]),
        ({"steps": np.int64(5), "lr": np.float32(0.5)}, ["steps=5", "lr=0.5"]),
        ({"rewards": ["a:b", ("c.py:d", 2)]}, ["reward.functions=[a:b, {use: c.py:d, weight: 2}]"]),
        ({"algorithm": {"surrogate": own_cells.steep}}, ["algorithm.surrogate=tests.own_cells:steep"]),
    ],
)
def test_keywords_are_what_the_command_would_say(keys, words):
    assert built("grpo-sorting", **keys).config == read_any("grpo-sorting", words).config


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"stepz": 3}, ["stepz=3"]),
        ({"rollout": {"promts": 3}}, ["rollout.promts=3"]),
        ({"steps": "many"}, ["steps=many"]),
        ({"algorithm": "grpoo"}, ["algorithm=grpoo"]),
        (
            {"algorithm": {"kl": {"coefficient": 0.1, "estimator": "k1"}}},
            ["algorithm.kl={coefficient: 0.1, estimator: k1}"],
        ),
    ],
)
def test_wrong_ones_are_refused_in_the_same_words(keys, words):
    with pytest.raises(UserError) as ours:
        built("grpo-sorting", **keys)
    with pytest.raises(UserError) as commands:
        read_any("grpo-sorting", words)
    assert str(ours.value) == str(commands.value)


def test_a_stage_of_a_pipeline_is_changed_by_its_name():
    ours = built("rlhf-reviews", stages={"sft": {"steps": 3}})
    assert ours.config == read_any("rlhf-reviews", ["stages.sft.steps=3"]).config


def test_a_dict_is_a_recipe_and_stays_as_it_is():
    recipe = {"steps": 1, "model": {"new": {}}, "task": "sorting", "algorithm": {"preset": "grpo"}}
    assert built(recipe, algorithm={"clip": {"high": 0.3}}).config.algorithm.options_of("clip")["high"] == 0.3
    assert recipe["algorithm"] == {"preset": "grpo"}
    with pytest.raises(UserError, match="the recipe: unknown key 'stepz'; did you mean 'steps'"):
        built({**recipe, "stepz": 1})


def test_only_what_another_process_finds_has_a_name_in_a_module():
    def inner(completions):
        return [0.0] * len(completions)

    assert importable(own_cells.steep) == "tests.own_cells:steep"
    assert load_named("tests.own_cells:steep", "cell") is own_cells.steep
    alias = functools.wraps(own_cells.steep)(lambda *terms: own_cells.steep(*terms))  # says that it is `steep`
    for thing in (inner, lambda completions: [], alias, functools.partial(inner), print, 3):
        assert importable(thing) is None


def test_objects_are_named_by_their_own_name_and_their_order():
    objects = Objects()

    class Judge:
        def __call__(self, completions):
            return [0.0] * len(completions)

        def __eq__(self, other):  # equal ones may differ in what is not compared: each keeps its own name
            return isinstance(other, Judge)

        __hash__ = None

    def a_2(completions): ...

    def make():
        def a(completions): ...

        return a

    first, judge = make(), Judge()
    given = [first, a_2, make(), lambda: 1, lambda: 2, judge, functools.partial(first, completions=()), judge.__call__]
    given.append(Judge())
    assert [objects.plain(one) for one in given] == [
        f"<python>:{name}" for name in ("a", "a_2", "a_3", "lambda", "lambda_2", "Judge", "a_4", "__call__", "Judge_2")
    ]
    assert objects.plain(first) == "<python>:a"  # the same object, the same name
    with pytest.raises(UserError, match=r"a set, which a recipe cannot hold"):
        objects.plain({1})


@dataclass(frozen=True)
class Counted(Sorting):
    """Named by its class, for all of it is in its options."""

    extra: int = 0


@dataclass(frozen=True, slots=True)
class Slotted(Counted):
    """Without a __dict__ of its own."""

    more: int = 0


class Stateful(Counted):
    """Not equal to one that is made of the same options."""

    def __eq__(self, other):
        return self is other

    __hash__ = None


def test_a_task_that_its_options_make_again_is_named_by_its_class():
    objects = Objects()
    assert objects.plain(Reverse()) == {"name": "reverse", **{key: getattr(Reverse(), key) for key in vars(Reverse())}}
    assert objects.plain(Counted(extra=3)) == {
        "name": "tests.api.test_given:Counted", "level": 1, "chat": False, "extra": 3,
    }  # fmt: skip
    assert objects.plain(Slotted(more=2))["more"] == 2
    assert objects.plain(Stateful()) == "<python>:Stateful"
    assert objects.plain(Counted) == "tests.api.test_given:Counted"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "data is an empty list"),
        (["prompt", "answer"], r"data\[0\] is a str, not a dict \(of a DataFrame, give .to_dict"),
        ([{"prompt": "a"}, {"prompt": object()}], r"data\[1\] holds something that JSON cannot"),
        (3, "data is a int: give a path, or a list of dicts"),
    ],
)
def test_rows_that_are_none(data, sentence):
    with pytest.raises(UserError, match=sentence):
        read_given({}, None, (), data)


def test_import_is_cheap_and_names_are_where_they_are_said_to_be():
    code = "import sys, whet; print('torch' in sys.modules, 'pydantic' in sys.modules, 'typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
    assert all(getattr(whet, name) is not None for name in whet.__all__)
    assert callable(whet.train)
    assert whet.train.start.start_run is start_run  # a package stays one, and is called all the same
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        whet.trian  # noqa: B018
