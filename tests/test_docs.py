"""docs/algorithms.md is what the code says today, and its prose says nothing that the code does not."""

import ast
import re
from pathlib import Path

import pytest

from pages.algorithms import REFUSED, main, refusal, render
from pages.site.slugs import anchors
from whet.algorithms import advantages, policy_loss
from whet.algorithms.cells import options
from whet.algorithms.table import ALGORITHMS, CELLS, KL_ESTIMATORS
from whet.config import CriticConfig, OnlineConfig, UpdateConfig
from whet.errors import UserError
from whet.recipe import parse_yaml, validate

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "docs" / "algorithms.template.md"
PAGE = ROOT / "docs" / "algorithms.md"
TEXT = PAGE.read_text("utf-8")


def section(heading: str) -> str:
    start = TEXT.index(f"\n## {heading}\n")
    end = TEXT.find("\n## ", start + 1)
    return TEXT[start : end if end > 0 else None]


def test_the_page_is_fresh(tmp_path: Path) -> None:
    main([str(TEMPLATE), str(tmp_path / "page.md")])
    fresh = (tmp_path / "page.md").read_text("utf-8")
    assert fresh == TEXT, "docs/algorithms.md is stale: renew it with `make docs`"


def test_it_names_every_row_and_every_cell() -> None:
    by_row = section("Formulas")
    assert re.findall(r"^### (\w+)$", by_row, re.MULTILINE) == list(ALGORITHMS)
    neutral = {"unscaled", "uncorrected", "keep_all"}
    for table in (*CELLS.values(), KL_ESTIMATORS):
        assert {name for name in table if f"`{name}`" not in TEXT} <= neutral
    options_of_cells = {f"{name}.{key}" for t in CELLS.values() for name, cell in t.items() for key in options(cell)}
    assert {key for key in options_of_cells if f"`{key}`" not in TEXT} == set()


def test_the_same_name_section_has_one_line_for_each_row() -> None:
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", section("The same name in other libraries"), re.MULTILINE)
    assert [name for name, _ in rows][1 : 1 + len(ALGORITHMS)] == list(ALGORITHMS)


def test_its_links_are_well_formed() -> None:
    links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", TEXT)
    assert len(links) >= 2 * len(ALGORITHMS)
    for text, target in links:
        if target.startswith("#"):
            assert f"\n### {target[1:]}\n" in TEXT
        elif not (PAGE.parent / target.partition("#")[0]).is_file():
            number = re.fullmatch(r"https://arxiv\.org/abs/(\d{4}\.\d{5})", target)
            assert number, target
            assert text == f"arXiv {number[1]}"


def test_its_tables_are_tables() -> None:
    for block in re.findall(r"(?:^\|.*\|\n)+", TEXT, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block.splitlines()[0]


def test_every_reason_of_the_config_is_shown_once() -> None:
    """Counted in the source: a new refusal needs a combination that triggers it."""
    source = ROOT / "src" / "whet" / "config"
    reasons = _nodes(source / "refusals.py", ast.Yield)
    reasons += _nodes(source / "algorithm.py", ast.Raise, inside="KlConfig")
    reasons += 3  # a random reference without a shape, a critic that never ends its warm-up, an empty band of weights
    found = [refusal(combination) for combination in REFUSED]
    assert len(set(found)) == len(found) == reasons
    assert all(reason in section("Refused combinations") for reason in found)


def _nodes(path: Path, kind: type[ast.AST], inside: str = "") -> int:
    tree: ast.AST = ast.parse(path.read_text("utf-8"))
    if inside:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == inside)
    return sum(isinstance(node, kind) for node in ast.walk(tree))


def test_a_combination_that_is_allowed_cannot_be_shown_as_refused() -> None:
    with pytest.raises(UserError, match="is not refused"):
        refusal("algorithm: grpo")


def test_a_template_must_mark_every_part() -> None:
    with pytest.raises(UserError, match="the template marks"):
        render(TEMPLATE.read_text("utf-8").replace("<!-- here: refused -->", "<!-- here: refusals -->"))


def test_its_examples_are_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (losses,) = re.findall(r"```python\n# losses.py\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "losses.py").write_text(losses, "utf-8")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    examples += re.findall(r"`(algorithm: \{preset: reinforce[^`]*)`, or", TEXT)
    assert len(examples) == 3
    for text in examples:
        config = validate(
            {"steps": 1, "model": {"new": {}}, "task": "sorting", **parse_yaml(text, where="docs")}, where="docs"
        )
        assert isinstance(config, OnlineConfig)


def test_its_own_loss_passes_check_loss(tmp_path: Path) -> None:
    from whet.train.check.checks import check_loss

    (losses,) = re.findall(r"```python\n# losses.py\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "losses.py").write_text(losses, "utf-8")
    assert not check_loss(f"{tmp_path}/losses.py:tempered", {}).failed


def test_the_defaults_that_the_prose_states() -> None:
    assert all(row.kl_coefficient == 0 for row in ALGORITHMS.values())
    assert (UpdateConfig().epochs, UpdateConfig().minibatches) == (1, 1)
    assert options(advantages.standardize) == {"epsilon": 1e-6}
    assert options(advantages.gae) == {"gamma": 1.0, "lam": 0.95}
    assert CriticConfig().model == "separate"
    assert options(policy_loss.stopped_ratio) == {"low": 1.0, "high": 4.0}
    assert options(policy_loss.sequence_clip) == {"low": 3e-4, "high": 4e-4}
    summed = {key for key, row in ALGORITHMS.items() if row.weighting.__name__ == "sequence_sum"}
    assert summed == {"reinforce", "rloo", "remax", "opo", "maxrl", "online_dpo"}
    whitened = {key for key, row in ALGORITHMS.items() if row.scaling is advantages.whiten}
    assert whitened == {"ppo", "reinforce_pp", "reinforce_pp_baseline"}


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md"), ROOT / "studies" / "README.md"]),
    ids=lambda page: page.name,
)
def test_links_between_pages_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"\w+:", target):
            continue
        file, _, heading = target.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), target
        assert not heading or heading in anchors(found.read_text("utf-8")), target
