"""The study of the GPT-2 lab: its page is fresh, its methods can be trained, and costs are counted right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.gpt2_lab import page
from studies.gpt2_lab.run import ALL, MAIN, METHODS, baselines, cost
from tests.data.corpus.texts import invented, written
from whet.recipe import plain, read_recipe

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_fresh() -> None:
    content = json.loads((page.HERE / "results.json").read_text("utf-8"))
    template = (DOCS / "gpt2-lab.template.md").read_text("utf-8")
    assert (DOCS / "gpt2-lab.md").read_text("utf-8") == page.page(template, content), "run `make docs`"
    assert not any("failed" in one for one in content["results"])
    assert page.picture(content["results"], content["baselines"])


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


def test_baselines_are_those_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    found = baselines(str(written(tmp_path / "text.txt", invented(300))))
    assert [one["order"] for one in found] == [1, 2, 3]
    assert found[0]["loss"] > found[1]["loss"] > found[2]["loss"]
