"""An export, opened as a file."""

import subprocess
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import HOSTILE, RICH
from tests.browser.served import WHET

pytestmark = pytest.mark.browser
ONLINE = "20260314-101500-grpo-reverse"


@pytest.fixture(scope="module")
def exported(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("export") / "out"
    runs = [str(folder / name) for name in (ONLINE, RICH, HOSTILE, "broken", "sweep")]
    subprocess.run([*WHET, "ui", "--export", str(out), *runs], check=True, capture_output=True)
    return (out / "index.html").as_uri()


def test_it_needs_no_server(page: Page, exported: str) -> None:
    page.open(exported)
    text = page.text("main")
    assert all(name in text for name in (ONLINE, RICH, "sweep"))
    assert "linked" not in text
    page.click(f"a[href*='{ONLINE}']")
    page.wait("document.querySelectorAll('.chart').length > 6")
    page.wait("document.querySelector('.findings')")
    assert all(url.startswith(("file:", "about:", "data:")) for url in page.requests())


def test_rollouts_can_be_searched_and_dissected(page: Page, exported: str) -> None:
    page.open(f"{exported}#rollouts?run={RICH}&find=is 3 APPLES")
    page.wait("(document.querySelector('p[role=status]')?.innerText ?? '').startsWith('36 of 144')")
    page.run("document.querySelector('a.open').focus()")
    page.press("Enter")
    page.wait("document.querySelectorAll('.token').length === 14")
    page.press("n")
    page.wait("document.querySelector('h1').innerText.startsWith('Rollout 3 of group 1')")
    page.open(f"{exported}#prompt?run={RICH}&id=3%2B1")
    assert "4 rollouts in 1 step" in page.text("main")
    page.open(f"{exported}#rollout?run={RICH}&step=2&row=5")  # as the doctor's findings link it
    page.wait("document.querySelector('h1').innerText === 'Rollout 1 of group 1, step 2'")


def test_runs_are_compared(page: Page, exported: str) -> None:
    page.open(f"{exported}#compare?run={ONLINE}&run=broken")
    page.wait("document.querySelectorAll('.answer').length >= 4")
    page.open(f"{exported}#comparison?in=sweep")
    assert "grpo/seed-0" in page.text("main")
    page.open(f"{exported}#run?run=elsewhere")
    assert "left out of the export" in page.text("main")


@pytest.mark.parametrize("view", ["run", "rollouts", "held_out", "recipe", "report"])
def test_hostile_text_is_as_harmless_as_on_the_server(page: Page, exported: str, view: str) -> None:
    page.open(f"{exported}#{view}?run={HOSTILE}")
    page.wait("document.querySelector('main h1')")
    found = page.run("[typeof window.pwned, document.querySelectorAll('main script, main img[src=x]').length]")
    assert found == ["undefined", 0]
