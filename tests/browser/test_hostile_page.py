"""Contents that attack the page, or are damaged: nothing runs, everything is explained."""

import json
import time
from urllib.parse import quote

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import HOSTILE
from whet.errors import ACTIVE

pytestmark = pytest.mark.browser
VIEWS = ("run", "rollouts", "held_out", "recipe", "report")


def is_unharmed(page: Page) -> bool:
    """No script of the contents ran, and none of their markup became an element."""
    found = page.run(
        "[typeof window.pwned, document.title.includes('pwned') && !document.title.includes('script'),"
        "document.querySelectorAll('main script, main img[src=x]').length]"
    )
    return found == ["undefined", False, 0]


@pytest.mark.parametrize("view", VIEWS)
def test_text_is_shown_and_never_run(page: Page, address: str, view: str) -> None:
    page.open(f"{address}#{view}?run={HOSTILE}")
    page.wait("document.querySelector('main h1')")
    time.sleep(0.5)  # what would run, had its time
    assert is_unharmed(page)
    if view in ("rollouts", "held_out"):
        page.wait("document.querySelector('main .control')")
        controls = page.run("[...new Set([...document.querySelectorAll('main .control')].map((one) => one.innerText))]")
        assert {"␛", "U+202E", "U+0007", "U+2028", "U+D800"} <= set(controls)
        assert "<script>pwned=1</script>" in page.text("main")
    if view == "report":
        assert page.run("document.querySelector('iframe').getAttribute('sandbox')") == ""


def test_a_line_of_a_megabyte_is_cut_until_it_is_asked_for(page: Page, address: str) -> None:
    page.open(f"{address}#rollout?run={HOSTILE}&step=1&row=1")
    page.wait("document.querySelector('.token')")
    assert page.run("document.querySelector('main').innerText.length") < 60_000
    assert page.run("document.querySelector('.tokens').innerText.length") < 1_000
    assert is_unharmed(page)


def test_a_prompt_with_markup_in_its_name_has_a_history(page: Page, address: str) -> None:
    page.open(f"{address}#rollouts?run={HOSTILE}")
    page.wait("document.querySelectorAll('main a[href*=prompt]').length === 2")
    page.click("main a[href*=prompt]")
    page.wait("document.querySelector('h1').innerText.startsWith('Prompt')")
    assert is_unharmed(page)


def test_the_policy_itself_refuses_markup_and_scripts(page: Page, address: str) -> None:
    page.open(address)
    for attempt in ("document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = 'pwned=1'"):
        assert page.run(f"(() => {{ try {{ {attempt} }} catch (error) {{ return error.name }} }})()") == "TypeError"
    assert page.run("fetch('http://127.0.0.2:9/').catch((error) => error.name)") == "TypeError"
    page.forget()  # these refusals are what was tested


def test_every_active_character_is_named(page: Page, address: str) -> None:
    """The page treats the characters as the terminal does, tabs and newlines aside, and noncharacters too."""
    page.open(address)
    codes = "Array.from({length: 0x110000}, (_, code) => code)"
    found = set(page.run(f"{codes}.filter((code) => String.fromCodePoint(code).replace(ACTIVE, '') === '')"))
    active = {code for code in range(0x110000) if ACTIVE.fullmatch(chr(code))}
    expected = active - {9, 10} | {0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF}
    assert found == expected


DAMAGE = {
    "truncated": ("rollouts", "cannot be read to its end"),
    "broken": ("run", "metrics.jsonl, line 2: not valid JSON"),
    "missing": ("run", "metrics.jsonl is missing"),
    "linked": ("run", "it holds links out of its folder"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_explained_where_it_is_met(page: Page, address: str, name: str) -> None:
    view, words = DAMAGE[name]
    page.open(f"{address}#{view}?run={name}")
    page.wait(f"document.querySelector('main').innerText.includes({json.dumps(words)})")
    page.open(address)
    assert name in page.text("main")


def test_a_damaged_run_hides_no_other(page: Page, address: str) -> None:
    page.open(address)
    text = page.text("main")
    assert text.count("finished") >= 4
    assert "damaged" in text
    page.open(f"{address}#run?run={quote('../' * 8 + 'etc')}")
    assert "is not the name of a run" in page.text("main")
