"""With a keyboard, with a screen reader, in dark and in light."""

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import RICH

pytestmark = pytest.mark.browser
ONLINE = "20260314-101500-grpo-reverse"
VIEWS = (
    *("runs", f"run?run={ONLINE}", f"rollouts?run={RICH}", f"rollout?run={RICH}&step=3&group=1&number=0"),
    *(f"held_out?run={ONLINE}", f"compare?run={ONLINE}&run={RICH}", "comparison?in=sweep", f"recipe?run={ONLINE}"),
    "run?run=linked",
)
ACTING = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "slider", "spinbutton", "listbox"}
# The lowest contrast of any text on the page with what is behind it, and that text.
CONTRAST = """(() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    const scale = colour.startsWith('color(') ? 255 : 1;
    return [r * scale, g * scale, b * scale, a];
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  let worst = [99, ''];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest('.hidden, .skip, [aria-disabled=true]')) continue;
    const style = getComputedStyle(node), ground = behind(node);
    const ink = over(parse(node.closest('svg') ? style.fill : style.color), ground);
    const [dark, bright] = [light(ink), light(ground)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    const told = `${node.tagName} ${node.getAttribute('class')} ${node.textContent.slice(0, 30)}`;
    if (ratio < worst[0]) worst = [ratio, told];
  }
  return worst;
})()"""


@pytest.mark.parametrize("view", VIEWS)
def test_everything_that_acts_has_a_name(page: Page, address: str, view: str) -> None:
    page.open(f"{address}#{view}")
    page.wait("document.querySelector('main h1')")
    nodes = [node for node in page.send("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    roles = {node["role"]["value"] for node in nodes}
    assert {"banner", "main", "heading", "navigation"} <= roles
    acting = [node for node in nodes if node["role"]["value"] in ACTING]
    assert len(acting) > 3
    nameless = [node for node in acting if not node.get("name", {}).get("value", "").strip()]
    assert nameless == []
    assert page.run("document.activeElement.tagName") == "H1"  # a reader begins at the heading
    assert page.run("document.querySelectorAll('h1').length") == 1
    assert page.run("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read(page: Page, address: str, scheme: str) -> None:
    """WCAG 2.2 asks for a contrast of 4.5."""
    page.scheme(scheme)
    for view in VIEWS:
        page.open(f"{address}#{view}")
        page.wait("document.querySelector('main h1')")
        ratio, text = page.run(CONTRAST)
        assert ratio >= 4.5, (view, text, ratio)


def test_the_theme_follows_the_system_until_one_is_chosen(page: Page, address: str) -> None:
    def ground() -> str:
        return str(page.run("getComputedStyle(document.body).backgroundColor"))

    page.scheme("dark")
    page.open(address)
    dark = ground()
    page.scheme("light")
    light = ground()
    assert dark != light
    page.click("#theme")  # system → light
    page.scheme("dark")
    assert ground() == light
    page.open(address)  # it is remembered
    assert ground() == light
    page.click("#theme")
    page.scheme("light")
    assert ground() == dark
    page.click("#theme")
    assert ground() == light


def test_a_run_is_reached_without_a_mouse(page: Page, address: str) -> None:
    page.open(address)
    page.press("/")
    assert page.run("document.activeElement.id") == "search"
    page.type(RICH)
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    page.press("Escape")
    page.run("document.querySelector('h1').focus()")
    for _ in range(8):
        page.press("Tab")
        if page.run("document.activeElement.innerText") == RICH:
            break
    page.press("Enter")
    page.wait(f"document.querySelector('h1').innerText === {RICH!r}")
    page.wait("document.querySelector('.chart svg')")
    page.run("document.querySelector('.chart svg').focus()")
    before = page.run("document.activeElement.getAttribute('aria-valuetext')")
    page.press("ArrowLeft", 3)
    after = page.run("document.activeElement.getAttribute('aria-valuetext')")
    assert after.startswith("step 9: ")
    assert before != after
    page.press("?")
    assert page.run("document.querySelector('dialog').open")
    page.press("Escape")
    assert not page.run("document.querySelector('dialog').open")
    page.press("g")
    page.wait("document.querySelector('h1').innerText === 'Runs'")


def test_the_list_of_rollouts_is_walked_with_arrows(page: Page, address: str) -> None:
    page.open(f"{address}#rollouts?run={RICH}")
    page.wait("document.querySelectorAll('a.open').length > 10")
    page.run("document.querySelector('a.open').focus()")
    page.press("ArrowDown", 2)
    name = page.run("document.activeElement.getAttribute('aria-label')")
    assert name == "open rollout 2 of group 0, step 12"
    page.press("Enter")
    page.wait("document.querySelector('h1').innerText.startsWith('Rollout 2 of group 0')")
    page.press("n")
    page.wait("document.querySelector('h1').innerText.startsWith('Rollout 3 of group 0')")


def test_a_narrow_window_is_not_wider_than_itself(page: Page, address: str) -> None:
    page.resize(390, 800)
    for view in VIEWS:
        page.open(f"{address}#{view}")
        page.wait("document.querySelector('main h1')")
        assert page.run("document.documentElement.scrollWidth") <= 390, view
