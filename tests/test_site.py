"""The documentation as a site: its pages, their links, and what a built one must not have."""

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from pages.site.check import problems
from pages.site.slugs import anchors, slug
from pages.site.staging import LINK, ROOT, SETTINGS, navigation, outside_of_fences, pages, stage

BUILDER = ROOT / ".venv-site" / "bin" / "python"


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "pages"
    stage(target)
    return target


def prose(page: Path) -> str:
    return "\n".join(line for line, is_prose in outside_of_fences(page.read_text("utf-8")) if is_prose)


def test_every_page_of_the_docs_has_a_place_and_no_template_has_one() -> None:
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    templates = {name for name in written if name.endswith(".template.md")}
    assert len(templates) > 5
    listed = navigation()
    assert len(listed) == len(set(listed))
    assert written - templates <= set(listed)
    assert not templates & set(listed)
    assert sorted(pages().values()) == sorted(listed)


def test_links_of_the_site_lead_to_its_pages_pictures_and_headings(staged: Path) -> None:
    found = 0
    for place in navigation():
        page = staged / place
        for _, _, target in LINK.findall(prose(page)):
            if re.match(r"\w+:", target):
                continue
            file, _, anchor = target.partition("#")
            aim = page.parent / file if file else page
            assert Path(os.path.normpath(aim)).is_relative_to(staged), (place, target)
            assert aim.is_file(), (place, target)
            assert not anchor or anchor in anchors(aim.read_text("utf-8")), (place, target)
            found += 1
    assert found > 300


def test_the_first_page_is_the_readme_with_links_inside_of_the_site(staged: Path) -> None:
    text = (staged / "index.md").read_text("utf-8")
    assert "[docs/keys.md](keys.md)" in text
    assert "[studies](studies.md)" in text
    assert "../README.md" not in (staged / "tasks" / "rewards.md").read_text("utf-8")
    assert "](../../src/" not in (staged / "learn" / "10-grpo.md").read_text("utf-8")


def test_lists_and_tables_begin_after_a_blank_line(staged: Path) -> None:
    """Python-Markdown reads them as text otherwise."""
    for place in navigation():
        lines = prose(staged / place).splitlines()
        for before, line in pairwise(lines):
            if line.startswith("|"):
                assert not before.strip() or before.startswith("|"), (place, line)
            if re.match(r"[-*] ", line) and before.strip():
                assert re.match(r"\s*([-*]|\d+\.) |\s", before), (place, line)


def test_anchors_are_those_of_github() -> None:
    assert slug("The `same` name: in other libraries") == "the-same-name-in-other-libraries"
    assert slug("a — b") == "a--b"
    text = "# One\n## Two\n```sh\n# no heading\n```\n## Two\n### A [link](x.md)\n"
    assert anchors(text) == ["one", "two", "two-1", "a-link"]


def test_problems_of_a_built_site_are_found(tmp_path: Path) -> None:
    good = '<link rel="stylesheet" href="a.css"><a href="other.html#there">x</a><a href="https://arxiv.org">paper</a>'
    (tmp_path / "a.css").write_text("p { color: red }")
    (tmp_path / "index.html").write_text(good)
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    assert list(problems(tmp_path)) == []
    bad = {
        "loads https://cdn.example/x.js": '<script src="https://cdn.example/x.js"></script>',
        "loads //cdn.example/x.css": '<link rel="stylesheet" href="//cdn.example/x.css">',
        "loads http://cdn.example/x.png": '<img src="http://cdn.example/x.png">',
        "links to nowhere.html: there is no such file": '<a href="nowhere.html">x</a>',
        "links to other.html#here: the page has no such anchor": '<a href="other.html#here">x</a>',
    }
    for told, html in bad.items():
        (tmp_path / "index.html").write_text(html)
        assert list(problems(tmp_path)) == [f"index.html {told}"]
    (tmp_path / "index.html").write_text(good)
    (tmp_path / "a.css").write_text(
        "@import 'https://fonts.example/f.css';\n@font-face { src: url(//fonts.example/f) }"
    )
    assert list(problems(tmp_path)) == ["a.css loads https://fonts.example/f.css", "a.css loads //fonts.example/f"]
    (tmp_path / "a.css").write_text("")
    (tmp_path / "doctor.template.html").write_text("")
    assert list(problems(tmp_path)) == ["doctor.template.html is a template"]


def test_what_builds_the_site_is_pinned_and_loads_no_fonts() -> None:
    lines = (SETTINGS.parent / "requirements.txt").read_text("utf-8").split()
    assert any(line.startswith("mkdocs-material==") for line in lines)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    settings = SETTINGS.read_text("utf-8")
    assert "font: false" in settings
    assert "use_directory_urls: false" in settings
    assert "iframe-worker" in settings  # else the plugin adds one from another host
    assert "http" not in settings


@pytest.fixture(scope="module")
def built(staged: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not BUILDER.exists():
        pytest.skip("make site makes .venv-site")
    place = tmp_path_factory.mktemp("built")
    settings = SETTINGS.read_text("utf-8").replace("../../build/pages", str(staged))
    settings = settings.replace("../../site", str(place / "site")).replace("hooks.py", f"{SETTINGS.parent}/hooks.py")
    (place / "mkdocs.yml").write_text(settings)
    command = [str(BUILDER), "-m", "mkdocs", "build", "--quiet", "-f", str(place / "mkdocs.yml")]
    subprocess.run(command, cwd=ROOT, check=True)
    return place / "site"


@pytest.mark.slow
def test_a_built_site_has_no_problems(built: Path) -> None:
    assert list(problems(built)) == []
    assert (built / "search" / "search_index.js").stat().st_size > 100_000


@pytest.mark.browser
def test_search_works_from_a_file(built: Path) -> None:
    """The address of a page may hold a question; all hosts are unknown to this browser."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom"]
    page = f"{(built / 'learn' / '10-grpo.html').as_uri()}?q=advantage"
    unreachable = "--host-resolver-rules=MAP * ~NOTFOUND"
    done = subprocess.run(["chromium", *options, unreachable, page], capture_output=True, text=True, check=True)
    assert re.search(r"\d+ matching documents", done.stdout)
