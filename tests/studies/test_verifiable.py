"""The study of verifiable tasks: its recipes are valid, and the page says what the results say."""

import json
from pathlib import Path

import pytest

from studies.verifiable import page
from studies.verifiable.run import STUDIES
from whet.recipe import read_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", STUDIES)
def test_recipes_are_valid(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    files = []
    for key, file in study.files.items():
        (tmp_path / Path(file).name).touch()
        files.append(f"{key}={tmp_path / Path(file).name}")
    recipe = read_recipe(str(ROOT / "studies" / "verifiable" / f"{study.recipe}.yaml"), [f"model={tmp_path}", *files])
    assert recipe.config.loop == "online"


def test_the_page_says_what_the_results_say() -> None:
    results = json.loads(page.RESULTS.read_text("utf-8"))
    written = (ROOT / "docs" / "tasks" / "results.md").read_text("utf-8")
    assert written == page.NOTICE + "\n".join(page.lines(results)) + "\n"
    assert not any("failed" in result for result in results)
    assert page.picture(results)[:4] == b"\x89PNG"
