"""Flags of `whet train` that stand for keys: end to end, for other loops, and what is said about wrong ones."""

import json
from pathlib import Path
from typing import get_args

import pytest
import yaml

from tests.cli.refusal import refused
from tests.cli.tiny import Whet
from tests.train import text_windows
from whet.cli.key_flags import FLAGS, REFERENCES, SECTION, with_flags
from whet.config.algorithm import KlConfig
from whet.config.loops import LOOPS
from whet.config.section import Section
from whet.errors import UserError

ONLINE = f"""
steps: 2
model: {{new: {{family: gpt2, layers: 1, heads: 2, width: 16, context: 32}}}}
task: {{name: "{text_windows.__name__}:Windows", length: 20}}
algorithm: {{preset: grpo, advantage: to_go_leave_one_out}}
reward: {{tokens: plus}}
rollout: {{prompts: 2, group: 2, max_tokens: 4, min_tokens: 4}}
eval: {{every_steps: 2, examples: 4, max_tokens: 4}}
track: []
"""
OFFLINE = """
loop: offline
steps: 2
model: {new: {family: gpt2, layers: 1, heads: 2, width: 16, context: 16}}
task: {name: sorting, level: 1}
batch_size: 4
eval: {every_steps: 2, examples: 4, max_tokens: 3}
track: []
"""
SPOKEN = (
    *("--horizon", 16, "--partial-logprob", 0.05, "--beta-kl", "1e-3", "--kl-warmup-tokens", 200000),
    *("--reference", "bigram", "--reward-mode", "plusminus", "--batch-size", 4, "--group-size", 3, "--seed", 1),
)


def written(directory: Path, text: str = ONLINE) -> Path:
    path = directory / "text.yaml"
    path.write_text(text)
    return path


def test_a_run_by_flags(whet: Whet, tmp_path: Path) -> None:
    result = whet("train", written(tmp_path), *SPOKEN, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["seed"] == 1
    assert config["reward"]["tokens"] == {"mode": "plusminus", "partial_logprob": 0.05}
    kl = config["algorithm"]["kl"]
    assert (kl["coefficient"], kl["anneal_tokens"], kl["reference"]) == (1e-3, 200000, "bigram")
    rollout = config["rollout"]
    assert [rollout[key] for key in ("prompts", "group", "max_tokens", "min_tokens")] == [4, 3, 16, 16]
    assert config["eval"]["max_tokens"] == 16  # raised with the horizon
    assert "note: flags set rollout.max_tokens=16 " in result.err
    assert " eval.max_tokens=16 rollout.min_tokens=16\n" in result.err
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["length/mean"], last["step"]) == (16, 2)
    assert last["tokens"] == 2 * 4 * 3 * 16


def test_with_an_equals_sign_and_other_words_for_a_reference(whet: Whet, tmp_path: Path) -> None:
    words = [f"{flag}={value}" for flag, value in zip(SPOKEN[::2], SPOKEN[1::2], strict=True)]
    words = ["--reference=frozen" if word.startswith("--reference") else word for word in words]
    assert whet("train", written(tmp_path), *words, "steps=1", "--out", tmp_path / "run").code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["algorithm"]["kl"]["reference"], config["rollout"]["max_tokens"]) == ("start", 16)


def test_a_shorter_horizon_leaves_evaluations_as_they_are(tmp_path: Path) -> None:
    recipe = str(written(tmp_path))
    assert with_flags(recipe, [], {"--horizon": "3"}) == ["rollout.max_tokens=3", "rollout.min_tokens=3"]
    asked = ["eval.max_tokens=9", "rollout.min_tokens=1"]
    assert with_flags(recipe, asked, {"--horizon": "6"}) == [*asked, "rollout.max_tokens=6"]
    plain = str(written(tmp_path, ONLINE.replace(", min_tokens: 4", "")))
    assert with_flags(plain, [], {"--horizon": "6"}) == ["rollout.max_tokens=6", "eval.max_tokens=6"]
    assert with_flags(plain, ["steps=1"], {flag: None for flag in FLAGS}) == ["steps=1"]


def test_a_horizon_fits_the_windows_of_a_corpus() -> None:
    def with_horizon(number: int, *overrides: str, recipe: str = "grpo-char") -> list[str]:
        return with_flags(recipe, overrides, {"--horizon": str(number)})[len(overrides) :]

    assert with_horizon(1) == ["rollout.max_tokens=1"]
    assert with_horizon(4) == ["rollout.max_tokens=4", "eval.max_tokens=4", "task.prompt_characters=28"]
    assert with_horizon(3, recipe="ppo-char")[1:] == ["eval.max_tokens=3", "task.prompt_characters=29"]
    assert with_horizon(20)[2:] == ["task.answer_characters=20", "model.new.context=51"]  # more than half the context
    assert with_horizon(4, "task.prompt_characters=31")[2:] == ["model.new.context=35"]
    assert with_horizon(20, "model.new.context=32")[2:] == ["task.answer_characters=20", "task.prompt_characters=12"]
    assert with_horizon(20, "task.answer_characters=64", "model.new.context=64")[2:] == []
    assert with_horizon(4, recipe="grpo-bpe")[2:] == ["task.answer_characters=32"]
    assert with_horizon(4, "task=sorting")[2:] == []
    with pytest.raises(UserError, match=r"prompts of 31 characters exceed model\.new\.context 32: raise"):
        with_horizon(4, "task.prompt_characters=31", "model.new.context=32")
    with pytest.raises(UserError, match=r"prompts of 1 characters exceed model\.new\.context 32: raise"):
        with_horizon(40, "model.new.context=32")
    with pytest.raises(UserError, match=r"--horizon 20 exceeds task\.answer_characters 16, and tokens beyond"):
        with_horizon(20, "task.answer_characters=16")


def test_a_recipe_that_makes_rows_has_no_evaluations_to_raise(tmp_path: Path) -> None:
    collect = "loop: collect\nsteps: 1\nmodel: x\ntask: sorting\nrollout: {max_tokens: 4}\n"
    assert with_flags(str(written(tmp_path, collect)), [], {"--horizon": "900"}) == ["rollout.max_tokens=900"]
    with pytest.raises(UserError, match=r"--beta-kl sets algorithm\.kl\.coefficient, which recipe .* \(loop collect\)"):
        with_flags(str(written(tmp_path, collect)), [], {"--beta-kl": "1"})
    strange = str(written(tmp_path, "loop: sideways\nrollout: {min_tokens: many, max_tokens: 4}\n"))
    assert with_flags(strange, ["steps=1"], {"--horizon": "9"}) == ["steps=1"]


def test_an_offline_recipe_takes_those_that_it_has(whet: Whet, tmp_path: Path) -> None:
    recipe = written(tmp_path, OFFLINE)
    words = ("--batch-size", 3, "--seed", 7, "--stop-on", "critical")
    assert whet("train", recipe, *words, "--out", tmp_path / "run").code == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["batch_size"], config["seed"], config["early_stopping"]["alarm"]) == (3, 7, "critical")
    for flag in set(FLAGS) - set(words):
        sentence = (
            f"{flag} sets {FLAGS[flag].keys[0]}, which recipe {recipe} (loop offline) does not have: leave it out"
        )
        assert refused(whet, "train", recipe, flag, 1) == sentence


def test_what_is_said_about_wrong_ones(whet: Whet, tmp_path: Path) -> None:
    recipe = written(tmp_path)
    assert refused(whet, "train", recipe, "--seed", 1, "seed=2") == (
        "--seed and seed= are both given, and mean the same: leave one out"
    )
    assert "rollout.max_tokens must be a whole number, not 'many'" in refused(
        whet, "train", recipe, "--horizon", "many"
    )
    assert "rollout.max_tokens must be greater than 0, not 0" in refused(whet, "train", recipe, "--horizon", 0)
    assert "reward.tokens.mode must be 'plus' or 'plusminus', not 'minus'" in refused(
        whet, "train", recipe, "--reward-mode", "minus"
    )
    assert "algorithm.kl.reference must be 'start', " in refused(whet, "train", recipe, "--reference", "me")
    assert refused(whet, "train", tmp_path, "--resume", "--horizon", 3) == (
        "--horizon is for a new run, and --resume continues one: leave it out"
    )
    assert "No such option: --horizn" in refused(whet, "train", recipe, "--horizn", 3)
    assert refused(whet, "train", "rlhf-reviews", "--horizon", 3) == (
        "--horizon is for a recipe of one run, and rlhf-reviews is a pipeline of several: set "
        "stages.NAME.rollout.max_tokens=3"
    )
    with pytest.raises(UserError, match="no recipe 'nowhere'"):
        with_flags("nowhere", [], {"--seed": "1"})


def test_the_help_has_them_in_a_section_of_their_own_with_their_keys(whet: Whet) -> None:
    shown = whet("train", "--help").out
    options, _, flags = shown.partition(f"\n{SECTION}:\n")
    assert "--resume" in options
    for flag, one in FLAGS.items():
        assert flag not in options.partition("Options:")[2]
        assert f"{flag} {one.metavar}" in flags
        assert " ".join(one.help.split()) in " ".join(flags.split())


def test_the_references_of_the_flag_are_those_of_the_key() -> None:
    assert get_args(KlConfig.model_fields["reference"].annotation) == REFERENCES


def test_every_key_exists() -> None:
    def has(model: type[Section], key: str) -> bool:
        first, _, rest = key.partition(".")
        field = model.model_fields.get(first)
        if field is None or not rest:
            return field is not None
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        return any(has(one, rest) for one in inner if isinstance(one, type) and issubclass(one, Section))

    for one in FLAGS.values():
        assert all(any(has(model, key) for model in LOOPS.values()) for key in one.keys), one.keys
