"""The page in a real browser, over a real server."""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import RICH
from tests.browser.served import served, training
from whet.number_format import signed

pytestmark = pytest.mark.browser
ONLINE = "20260314-101500-grpo-reverse"


def shown(page: Page) -> str:
    """The line that says how many rollouts are listed, once all have arrived."""
    line = "(document.querySelector('p[role=status]')?.innerText ?? '')"
    page.wait(f"/of/.test({line}) && !/reading|searching/.test({line})")
    return page.text("p[role=status]")


def choose(page: Page, name: str, value: str) -> None:
    page.run(
        f"(() => {{ const field = document.querySelector('[name={name}]'); field.value = {value!r};"
        "field.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )


def test_it_opens_with_all_runs_and_asks_no_other_server(page: Page, address: str) -> None:
    page.open(address)
    text = page.text("main")
    for name in (ONLINE, "20260314-111500-sft-reverse", RICH, "sweep", "grpo/seed-0"):
        assert name in text
    assert "finished" in text
    page.click(f"a[href*='{ONLINE}']")
    page.wait("document.querySelectorAll('.chart').length > 6")
    page.wait("document.querySelector('.findings')")
    assert "Held-out accuracy" in page.text("main")
    assert all(url.startswith((address, "about:", "data:")) for url in page.requests())
    assert page.run("document.querySelectorAll('.chart .curve').length") >= 8


def test_the_list_is_searched_by_any_words(page: Page, address: str) -> None:
    page.open(address)
    page.press("/")
    page.type("sft finished")
    page.wait("document.querySelectorAll('tbody tr').length === 1")
    assert "find=sft+finished" in page.run("location.hash")
    page.open(f"{address}#runs?find=nothing-like-that")
    assert "Nothing has all these words" in page.text("main")


def test_curves_follow_a_run_that_trains(page: Page, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        process = training(
            tmp_path, "live", "steps=60", "eval.every_steps=20", "eval.examples=20", "save.every_steps=60"
        )
        try:
            page.open(url)
            page.wait("document.querySelector('.badge.live')", 120)  # the list finds it by itself
            page.open(f"{url}#run?run=live")
            reward = "[...document.querySelectorAll('.chart')].find((one) => one.innerText.startsWith('Reward'))"
            page.wait(reward, 120)
            last = f"Number({reward}.querySelector('svg').getAttribute('aria-valuemax'))"
            first = page.run(last)
            page.wait(f"{last} > {first}", 120)
            page.wait("document.querySelector('.facts .badge').innerText === 'finished'", 240)
            assert process.wait(60) == 0
            page.wait(f"{last} === 60")
            assert "the run is finished" in page.run("document.getElementById('spoken').textContent")
        finally:
            process.kill()


def test_rollouts_are_found_filtered_and_sorted(page: Page, address: str) -> None:
    page.open(f"{address}#rollouts?run={RICH}")
    assert shown(page).startswith("144 of 144 rollouts")
    choose(page, "find", "IS 3 APPLES")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('36 of 144')")
    assert shown(page)
    choose(page, "step_from", "11")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('6 of 144')")
    choose(page, "find", "")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('24 of 144')")
    choose(page, "finish", "length")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('6 of 144')")
    choose(page, "finish", "")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('24 of 144')")
    choose(page, "judged", "true")
    choose(page, "part", "format")
    choose(page, "worth_to", "0.85")
    page.wait("document.querySelector('p[role=status]').innerText.startsWith('6 of 144')")  # number 2 of each group
    assert "part=format" in page.run("location.hash")
    page.open(page.run("location.href"))  # the address keeps what was chosen
    assert shown(page).startswith("6 of 144")
    page.open(f"{address}#rollouts?run={RICH}&order=advantage")
    shown(page)
    texts = page.run("[...document.querySelectorAll('tbody .advantage')].map((one) => one.innerText)")
    sizes = [abs(float(text.replace("−", "-"))) for text in texts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 1.5


def test_the_microscope_shows_every_token(page: Page, address: str) -> None:
    page.open(f"{address}#rollout?run={RICH}&step=3&group=1&number=3")
    page.wait("document.querySelectorAll('.token').length === 'it is 3 apples'.length")
    assert "truncated" in page.text(".facts")
    colours = page.run("[...document.querySelectorAll('[name=colour]')].map((one) => one.value)")
    assert set(colours) == {
        *("advantage", "logprobs", "old_logprobs", "reference_logprobs", "entropies", "ratios", "clipped"),
        *("kl", "mismatch"),
    }
    clipped = "[...document.querySelectorAll('.token.clipped')].map((one) => one.innerText).join('')"
    assert page.run(clipped) == "ia"  # tokens 3 and 8 of "it is 3 apples"
    assert "<script>" in page.text(".instead")
    page.run("document.querySelector('[value=entropies]').click()")
    classes = page.run("[...document.querySelectorAll('.tokens .token')].map((one) => one.className)")
    assert "q" not in classes[0].removeprefix("token").replace("chosen", "")  # an entropy of 0
    assert "q6" in classes[8]
    page.run("document.querySelector('.tokens').focus()")
    page.press("ArrowRight", 4)
    assert "token 5 of 14" in page.text(".details")
    details = page.text(".details")
    row = page.run("ask('rollout', {run: 'rich', step: 3, group: 1, number: 3})")
    assert f"{row['columns']['entropies'][4]:g}" in details
    assert page.run("document.querySelector('.tokens').getAttribute('aria-activedescendant')") == "token-4"
    page.press("p")
    page.wait("document.querySelector('h1').innerText.includes('Rollout 2 of group 1')")
    page.click("main a[href*='#prompt']")
    page.wait("document.querySelector('h1').innerText.includes('3+1')")
    assert "4 rollouts in 1 step" in page.text("main")


def test_without_old_logprobs_the_samplers_stand_for_them(page: Page, address: str) -> None:
    page.open(f"{address}#rollout?run={RICH}&step=12&group=1&number=0")
    page.wait("document.querySelectorAll('.token').length")
    colours = page.run("[...document.querySelectorAll('[name=colour]')].map((one) => one.value)")
    assert "kl" in colours
    assert not {"old_logprobs", "mismatch"} & set(colours)
    page.run("document.querySelector('.tokens').focus()")
    page.press("ArrowRight", 2)
    assert "␣" in page.text(".details .piece")  # a blank is seen
    columns = page.run("ask('rollout', {run: 'rich', step: 12, group: 1, number: 0})")["columns"]
    difference = columns["logprobs"][2] - columns["reference_logprobs"][2]
    assert signed(difference) in page.text(".details")


def test_runs_are_compared(page: Page, address: str) -> None:
    page.open(address)
    for name in ("sweep/grpo/seed-0", "sweep/rloo/seed-0"):
        page.click(f"input[aria-label='compare {name}']")
    page.wait("document.querySelector('.heading .button').innerText === 'Compare 2 runs'")
    page.click(".heading .button")
    page.wait("document.querySelectorAll('.chart').length")
    assert page.run(
        "[...document.querySelectorAll('.chart')].every((one) => one.querySelectorAll('.curve').length === 2)"
    )
    page.open(f"{address}#compare?run={ONLINE}&run={RICH}")
    text = page.text("main")
    assert "optimizer.lr" in text
    assert "Not every run has stored answers" in text
    page.open(f"{address}#compare?run={ONLINE}&run=broken")
    page.wait("document.querySelectorAll('.answer').length >= 4")
    assert "examples that all runs answered" in page.text("main")


def test_held_out_answers_before_and_after(page: Page, address: str) -> None:
    page.open(f"{address}#held_out?run={ONLINE}&only=right")
    page.wait("document.querySelectorAll('tbody tr').length > 3")
    of_row = "[...row.querySelectorAll('.mark')].map((one) => one.innerText).join('')"
    marks = page.run(f"[...document.querySelectorAll('tbody tr')].map((row) => {of_row})")
    assert set(marks) == {"✗✓"}


def test_pipelines_reports_and_recipes(page: Page, address: str) -> None:
    page.open(f"{address}#comparison?in=sweep")
    assert "grpo/seed-0" in page.text("main")
    page.open(f"{address}#recipe?run={ONLINE}")
    assert "preset: grpo" in page.text("main")
    page.open(f"{address}#{quote('no-such-page')}")
    assert "there is no such page" in page.text("main")
    page.open(f"{address}#run?run=none")
    assert "there is no directory" in page.text("main")
