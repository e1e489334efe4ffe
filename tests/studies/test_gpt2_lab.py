"""The study of the GPT-2 lab: its page is fresh, its methods can be trained, and costs are counted right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.gpt2_lab import page, run
from studies.gpt2_lab.run import ALL, MAIN, METHODS, baselines, chosen, cost, kept
from tests.data.corpus.texts import invented, written
from whet.recipe import plain, read_recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_fresh() -> None:
    content = json.loads((page.HERE / "results.json").read_text("utf-8"))
    template = (DOCS / "gpt2-lab.template.md").read_text("utf-8")
    assert (DOCS / "gpt2-lab.md").read_text("utf-8") == page.page(template, content), "run `make docs`"
    assert not any("failed" in one for one in content["results"])
    failed = {"method": "grpo", "seed": 7, "command": "", "failed": "out of memory"}
    assert page.picture([*content["results"], failed], content["baselines"])
    assert page.page(template, {**content, "results": [*content["results"], failed]}) == page.page(template, content)


def test_only_methods_with_rows_are_named() -> None:
    row = {"method": "attention-plain", "seed": 0, "after": {"eval/loss": 1.0}}
    *_, shown = page.attention([row])
    assert "--only attention-plain --runs" in shown


def test_methods_are_chosen_by_name_and_pattern() -> None:
    assert chosen("lm,attention-*,lm") == ["lm", "attention-plain", "attention-grouped", "attention-latent"]
    assert all(chosen(name) == [name] for name in ALL)
    with pytest.raises(ValueError, match="no method 'nothing': choose of lm, "):
        chosen("lm,nothing")


def test_a_failed_repetition_leaves_a_good_result() -> None:
    good, failed = {"after": {}}, {"failed": "why"}
    assert kept(good, failed) is good
    assert kept(failed, good) is good
    assert kept(None, failed) is failed


def test_baselines_are_computed_where_a_method_is_compared_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels, asked = [{"order": 1.0, "loss": 2.0, "accuracy": 0.5}], []
    monkeypatch.setattr(run, "baselines", lambda text: asked.append(text) or levels)
    monkeypatch.setattr(run, "train", lambda name, seed, _: {"method": name, "seed": seed})
    to = tmp_path / "results.json"
    for only, count in (("attention-*", 0), ("lm", 1), ("muon", 1)):
        run.main(["--runs", str(tmp_path), "--to", str(to), "--only", only, "--seeds", "0"])
        assert len(asked) == count
    content = json.loads(to.read_text())
    assert (content["baselines"], len(content["results"])) == (levels, 5)


@pytest.mark.parametrize("name", ALL)
def test_a_method_is_a_recipe_with_keys_that_exist(name: str) -> None:
    method = ALL[name]
    config = read_recipe(method.recipe, method.keys).config
    if name in MAIN:
        assert config.model.new is not None
        assert (config.model.new.layers, config.model.new.width, config.model.new.context) == (3, 128, 32)
        assert config.model.new.family == "gpt2"


def test_what_a_step_costs() -> None:
    supervised = cost(plain(read_recipe("lm-char", METHODS["lm"].keys).config))
    assert supervised == {"targets": 128 * 32, "flops_per_weight": 6 * 128 * 32}
    # 256 prompts of 16 characters on average, each read twice (8 = 2 + 6); the one sampled character is read by nobody
    rollouts = cost(plain(read_recipe("grpo-char").config))
    assert rollouts == {"targets": 256, "flops_per_weight": 8 * 256 * 16}
    # 128 prompts of 14.5 characters on average, and 3 of the 4 sampled characters of each of 16 rollouts: 62.5
    longer = cost(plain(read_recipe("grpo-char", METHODS["grpo-horizon-4"].keys).config))
    assert longer == {"targets": 512, "flops_per_weight": 64000}


def test_baselines_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    found = baselines(str(written(tmp_path / "text.txt", invented(300))))
    assert [one["order"] for one in found] == [1, 2, 3]
    assert found[0]["loss"] > found[1]["loss"] > found[2]["loss"]
