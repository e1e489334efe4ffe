"""Recipes: YAML in which 5e-6 is a number, dotted overrides, and mistakes that name the nearest key."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.algorithms.table import ALGORITHMS
from whet.config import OnlineConfig
from whet.errors import UserError, nearest
from whet.recipe import apply_override, dump, packaged_recipes, parse_yaml, read_any, read_recipe, set_key, validate

TEXT = """
steps: 10
model: {new: {layers: 1, heads: 2, width: 8}}
task: sorting
algorithm: grpo
optimizer: {lr: 5e-6}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return str(path)


def refusal(source: Any, *overrides: str) -> str:
    with pytest.raises(UserError) as stop:
        read_recipe(str(source), overrides)
    message = str(stop.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("text", ["5e-6", "5E-6", "+5e-6", "5.e-6", ".5e-5", "0.000005", "5_0e-7"])
def test_a_number_in_any_spelling_is_a_number(text: str) -> None:
    assert parse_yaml(f"lr: {text}", where="here") == {"lr": pytest.approx(5e-6)}


@pytest.mark.parametrize("text", ["'5e-6'", "e5", "5e", "1e2e3", "v1e5", "5e-6x"])
def test_text_that_looks_a_little_like_a_number_is_text(text: str) -> None:
    assert isinstance(parse_yaml(f"x: {text}", where="here")["x"], str)


def test_a_file_is_read_and_named_after_its_stem(mine: str) -> None:
    recipe = read_recipe(mine)
    assert (recipe.name, recipe.config.steps, recipe.config.optimizer.lr) == ("mine", 10, 5e-6)
    assert recipe.written == {
        "steps": 10,
        "model": {"new": {"layers": 1, "heads": 2, "width": 8}},
        "task": "sorting",
        "algorithm": "grpo",
        "optimizer": {"lr": 5e-6},
    }


def test_overrides_reach_into_sections_and_leave_the_rest(mine: str) -> None:
    config: Any = read_recipe(
        mine,
        ["algorithm.clip.high=0.28", "lr=3e-4", "task.level=2", "rollout.stop=[a, b]", "eval.every_steps=7"],
    ).config
    assert config.algorithm.options_of("clip") == {"low": 0.2, "high": 0.28}
    assert config.algorithm.preset == "grpo"  # `algorithm: grpo` became a mapping to hold clip
    assert config.optimizer.lr == 3e-4
    assert (config.task.name, config.task.options) == ("sorting", {"level": 2})
    assert config.rollout.stop == ("a", "b")
    assert config.eval.every_steps == 7


def test_the_last_of_two_overrides_wins_and_a_value_may_hold_an_equals_sign(mine: str) -> None:
    assert read_recipe(mine, ["steps=3", "steps=4"]).config.steps == 4
    assert read_recipe(mine, ["rollout.stop=[a=b]"]).config.rollout.stop == ("a=b",)  # type: ignore[union-attr]
    model = read_recipe(mine, ["model=./a=b"]).config.model
    assert (model.path, model.new) == ("./a=b", None)


def test_a_value_that_only_looks_like_yaml_is_refused(mine: str) -> None:
    """A regular expression in double quotes has escapes that YAML does not know; unquoted, it is plain text."""
    said = refusal(mine, r'task.name="a\.b"')
    assert said.startswith(r'task.name="a\.b": the value is no valid YAML (found unknown escape character')
    assert said.endswith(r"in double quotes \ begins an escape: use single quotes")
    assert "no valid YAML (expected ',' or ']'" in refusal(mine, "rollout.stop=[a: b: c]")
    for written in (r"'a\.[bc]'", r"a\.[bc]", "[bc]a: b: c"):
        value: dict[str, Any] = {}
        apply_override(value, f"name={written}")
        assert value == {"name": written.strip("'")}


@pytest.mark.parametrize("override", ["lr", "=3", "lr 3", "", ".lr=3", "rollout.=3", "rollout..group=3", ".=1"])
def test_what_is_no_override_is_shown_how_to_be_one(mine: str, override: str) -> None:
    assert refusal(mine, override) == f"{override!r} is not an override: write key=value, e.g. optimizer.lr=1e-5"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stepz=3", "unknown key 'stepz'; did you mean 'steps'? (valid here: steps, seed, model,"),
        ("rollout.grup=3", "unknown key 'rollout.grup'; did you mean 'group'? (valid here: prompts, group,"),
        ("algorithm.clip.hihg=3", "unknown key 'algorithm.clip.hihg'; did you mean 'high'? (valid here: low, high)"),
        ("algorithm.clp.high=3", "unknown key 'algorithm.clp'; did you mean 'clip'?"),
        ("algorithm.kl.coef=3", "unknown key 'algorithm.kl.coef'; did you mean 'coefficient'?"),
        ("model.new.layerz=3", "unknown key 'model.new.layerz'; did you mean 'layers'?"),
        ("steps=abc", "steps must be a whole number, not 'abc'"),
        ("steps=2.5", "steps must be a whole number, not 2.5"),
        ("steps=", "steps must be a whole number, not None"),
        ("steps=-3", "steps must be greater than 0, not -3"),
        ("lr=fast", "optimizer.lr must be a number, not 'fast'"),
        ("lr=[1, 2]", "optimizer.lr must be a number"),
        ("lr=.inf", "optimizer.lr must be a finite number, not inf"),
        ("rollout=3", "rollout must be a section with keys of its own, not 3"),
        ("steps.x=3", "'steps' is a value, not a section"),
        ("track=wandb", "track must be a list, e.g. [a, b], not 'wandb'"),
        ("track=[csv]", "track.0 must be 'tensorboard', 'wandb', 'mlflow' or 'trackio', not 'csv'"),
        ("task.name=[1]", "task.name must be text"),
        ("device=tpu", "device must be 'auto', 'cpu' or 'cuda', not 'tpu'"),
        (
            "algorithm=gpro",
            "algorithm: unknown preset 'gpro'; did you mean 'gspo'? (known: reinforce, rloo",
        ),
        ("loop=[online]", "loop is ['online']; it must be one of online, offline"),
        ("loop=sideways", "loop is 'sideways'; it must be one of online, offline"),
        ("loop=offline", "unknown key 'algorithm' (valid here: "),
        ("schedule=cosine", "unknown key 'schedule'; did you mean optimizer.schedule?"),
        ("group=4", "unknown key 'group'; did you mean rollout.group?"),
        ("max_tokens=4", "unknown key 'max_tokens'; did you mean eval.max_tokens or rollout.max_tokens?"),
        ("columns={prompt: question}", "unknown key 'columns'; did you mean task.columns?"),
        ("nosuch=1", "unknown key 'nosuch' (valid here: steps, seed, model, task, data, optimizer,"),
        ("optimizer=moun", "optimizer.name must be 'adamw', 'adamw_bf16', 'adamw_8bit', 'lion' or 'muon', not 'moun'"),
        (
            "rollout={group:4, stop: [a]}",
            "'rollout={group:4, stop: [a]}': 'group:4' has no value: write a space after the colon: group: 4",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(mine: str, override: str, told: str) -> None:
    assert told in refusal(mine, override)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("steps: 3\nmodel: some/model\nalgorithm: grpo\n")
    assert refusal(path) == f"{path}: key 'task' is missing: add data=FILE (your prompts), or task=NAME"


def test_names_that_are_no_recipe(tmp_path: Path) -> None:
    assert "did you mean 'demo-grpo'?" in refusal("demo-gpro")
    assert "cannot read the recipe nowhere.yaml: No such file" in refusal("nowhere.yaml")
    assert "no recipe 'mine.txt' (see `whet recipes`, or give a .yaml file)" in refusal("mine.txt")
    assert f"whet train {tmp_path} --resume" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "a recipe is a mapping of keys to values"),
        (b"just text", "a recipe is a mapping of keys to values"),
        (b"- a\n- b\n", "a recipe is a mapping of keys to values"),
        (b"steps: [1, 2\nfoo: : :", "not valid YAML: expected ',' or ']', but got ':' in line 2, column 4"),
        (b"steps: 3\n\tseed: 1\n", "not valid YAML"),
        (b"steps: 3\x00\n", "not valid YAML"),
        (b"? [a, b]\n: 3\n", "not valid YAML: found unhashable key in line 1, column 3"),
        (b"steps: 3\nseed: 1\nsteps: 4\n", "not valid YAML: key 'steps' comes again in line 3, column 1"),
        (b"seed: 2001-13-45\n", "not valid YAML: month must be in 1..12"),
        (b"model:/tmp/x\nsteps: 4\n", "not valid YAML: line 1: write a space after the colon: model: /tmp/x"),
        (b"seed: 1\nsteps:4  # few\n", "not valid YAML: line 2: write a space after the colon: steps: 4"),
        (b"task:\n  level:1\n  name: x\n", "not valid YAML: line 2: write a space after the colon: level: 1"),
        (b"model: a: b\n", "not valid YAML: mapping values are not allowed here in line 1, column 9"),
        (b"[" * 20_000, "not valid YAML: it is nested too deeply"),
        (b"\xff\xfe\x00\x01binary", "is not a text file in UTF-8: invalid start byte at byte 0"),
        (b"!!python/object/apply:os.abort []\n", "not valid YAML: could not determine a constructor"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(str(path))
    assert told in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(mine: str) -> None:
    Path(mine).chmod(0)
    assert "Permission denied" in refusal(mine)


@pytest.mark.parametrize("preset", ALGORITHMS)
def test_a_saved_preset_reads_as_the_same_config(mine: str, preset: str) -> None:
    config = read_recipe(mine, [f"algorithm={preset}"]).config
    saved = dump(config)
    assert validate(parse_yaml(saved, where="saved"), where="saved") == config
    assert "advantage:" in saved  # the cells stand there, so a later change of the preset does not change the run


def test_packaged_recipes_take_overrides() -> None:
    for recipe, text in packaged_recipes().items():
        is_whole = any(f"\n{key}:" in text for key in ("model", "stages", "environment"))
        own = [] if is_whole else ["model=DIR", "data={path: FILE, match: exact}"]
        own = own[:1] if "\ntask:" in text else own
        own = [one.replace(", match: exact", "") for one in own] if "loop: offline" in text else own
        assert read_any(recipe, [*own, "seed=7"]).config.seed == 7


finite = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["1e5", "null", "yes", "2001-01-01", "~", "0x1"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.integers(1, 2**40),
    seed=st.integers(0, 2**63 - 1),
    lr=finite,
    max_grad_norm=finite,
    stop=st.lists(words, max_size=3),
    path=st.text(st.characters(codec="utf-8"), min_size=1),
    option=plain,
)
def test_whatever_a_config_holds_survives_being_saved(
    steps: int, seed: int, lr: float, max_grad_norm: float, stop: list[str], path: str, option: Any
) -> None:
    written = {
        "steps": steps,
        "seed": seed,
        "model": {"path": path},
        "task": {"name": "own:Task", "option": option},
        "algorithm": "grpo",
        "optimizer": {"lr": lr},
        "update": {"max_grad_norm": max_grad_norm},
        "rollout": {"stop": stop},
    }
    config = validate(written, where="generated")
    again = validate(parse_yaml(dump(config), where="saved"), where="saved")
    assert again == config
    assert again.task.options == {"option": option}


@settings(deadline=None)
@given(value=finite)
def test_an_override_reads_every_number_that_python_prints(value: float) -> None:
    assert read_recipe("demo-grpo", [f"lr={value!r}"]).config.optimizer.lr == value


@settings(deadline=None)
@given(text=st.text(max_size=40) | st.text(st.sampled_from("a:- \n[]{}&*!|>'\"%@`#?,01e."), max_size=20))
def test_no_text_crashes_the_reader_of_yaml(text: str) -> None:
    with suppress(UserError):
        assert isinstance(parse_yaml(text, where="there"), dict)


def test_the_nearest_word_or_none() -> None:
    assert nearest("stepz", ["steps", "seed"]) == "; did you mean 'steps'?"
    assert nearest("zzz", ["steps", "seed"]) == ""
    assert nearest("coef", ["clip", "coefficient"]) == "; did you mean 'coefficient'?"
    assert nearest("k4", ["k1", "unbiased"]) == "; did you mean 'k1'?"


@pytest.mark.parametrize("word", ["use_peft", "schedule", "nosuch", "strategy"])
def test_no_word_is_suggested_that_is_not_like_it(word: str) -> None:
    assert nearest(word, read_recipe("grpo-sorting").config.model_dump()) == ""


@pytest.mark.parametrize("text", ["data: {path:rows.jsonl, match: number}", "data:\n  - {path:rows.jsonl}"])
def test_a_missing_space_after_a_colon_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{TEXT}{text}\n")
    assert "'path:rows.jsonl' has no value: write a space after the colon: path: rows.jsonl in line" in refusal(path)


def test_keys_without_a_value_or_with_a_quoted_colon_are_read() -> None:
    text = "{critic: {lr: }, 'a:b': , c: 'x:y', functions: ['r.py:f'], x: {r.py:f: }}"
    read = {"critic": {"lr": None}, "a:b": None, "c": "x:y", "functions": ["r.py:f"], "x": {"r.py:f": None}}
    assert parse_yaml(text, where="here") == read


def test_the_name_of_an_optimizer_leaves_its_other_keys(mine: str) -> None:
    for overrides in (["optimizer=muon", "optimizer.momentum=0.9"], ["optimizer.momentum=0.9", "optimizer=muon"]):
        found = read_recipe(mine, overrides).config.optimizer  # type: ignore[union-attr]
        assert (found.name, found.lr, found.momentum) == ("muon", 5e-6, 0.9)
    written = {**parse_yaml(TEXT, where="here"), "optimizer": "lion"}
    assert validate(written, where="here").optimizer.name == "lion"  # type: ignore[union-attr]


def test_prompts_are_set_as_keys_of_data_or_of_the_task() -> None:
    start = ["model=m", "data=rows.jsonl"]
    mapping = {"prompt": "question"}
    for key in ("data.columns", "task.columns"):
        task = read_recipe("grpo", [*start, "data.match=number", f"{key}={{prompt: question}}"]).config.task
        assert (task.name, task.options["columns"], task.options["path"]) == ("data", mapping, "rows.jsonl")
    named = ["model=m", "task={name: data, path: rows.jsonl, match: exact}"]
    assert read_recipe("grpo", [*named, "data.columns={prompt: question}"]).config.task.options["columns"] == mapping
    assert "task.match and data.match are both set" in refusal("grpo", *named, "data.match=number")
    assert "unknown key 'match'; did you mean data.match?" in refusal("grpo", *start, "match=number")
    collect = {"loop": "collect", "steps": 1, "model": "m", "data": {"path": "rows.jsonl", "match": "exact"}}
    assert validate(collect, where="here").task.options == {"path": "rows.jsonl", "match": "exact"}


def test_another_task_drops_the_options_of_the_first() -> None:
    config = read_recipe("grpo-arithmetic", ["task.name=rows", "task.path=q.jsonl", "task.chat=true"]).config
    assert (config.task.name, config.task.options) == ("rows", {"path": "q.jsonl", "chat": True})
    same = read_recipe("grpo-sorting", ["task.name=sorting"]).config
    assert same.task.options == {"level": 1}
    assert read_recipe("grpo-sorting", ["model.path=some/model"]).config.model.new is None


def test_one_warm_up_replaces_the_other() -> None:
    settings = read_recipe("sft", ["model=m", "data=d.jsonl", "optimizer.warmup_steps=2"]).config.optimizer
    assert (settings.warmup_steps, settings.warmup_share) == (2, 0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_word_for_sharding_leaves_the_other_keys_of_its_section(order: tuple[int, int]) -> None:
    words = ["distributed=fsdp2", "distributed.replicas=2"]
    config = read_recipe("grpo-sorting", [words[place] for place in order]).config
    assert isinstance(config, OnlineConfig)
    assert (config.distributed.sharding, config.distributed.replicas) == ("fsdp2", 2)


def test_a_word_for_sharding_in_a_file_takes_further_keys() -> None:
    written: dict[str, Any] = {"distributed": "fsdp2"}
    set_key(written, "distributed.cpu_offload", True, said="test")
    assert written == {"distributed": {"sharding": "fsdp2", "cpu_offload": True}}
