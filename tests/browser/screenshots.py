"""The pictures of docs/ui.md, taken of small runs that are trained for them if they are not there:

    python -m tests.browser.screenshots --runs DIR --to docs

Needs Debian's chromium; about six minutes on one core the first time, then seconds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pages.pictures import compact
from tests.browser.chromium import Chromium, Page
from tests.browser.served import WHET, served, training

WATCHED = ("algorithm.kl.coefficient=0.02", "update.minibatches=2", "update.epochs=2", "save.top_tokens=5")
RUNS = {
    "reviews": ("grpo-reviews", *WATCHED, "save.rollouts_every_steps=1"),
    "sorting": ("toy-sorting",),
    "too-fast": ("toy-sorting", "optimizer.lr=2e-2"),
}
LIVE = "live"
LIVE_STEPS = 300
ROLLOUT = "step=20&group=3&number=2"
DRAWN = "document.querySelectorAll('.chart .curve').length > 6"
JUDGED = "document.querySelector('#health')"
PATIENCE = 400.0  # seconds until a picture is given up


@dataclass(frozen=True, kw_only=True, slots=True)
class Shot:
    """A picture: an address of the page, what must be there, and what is done before."""

    name: str
    at: str  # after #
    ready: str
    before: Callable[[Page], None] = lambda page: None
    dark: bool = False
    height: int = 800


def _hide_folder(page: Page) -> None:
    """The path on the machine that takes the picture says nothing to readers."""
    page.run("document.querySelector('.lead code').textContent = 'runs'")


def _point_at_token(page: Page) -> None:
    """The first token in which the policy has clearly left its reference."""
    page.run("document.querySelector('[name=colour][value=kl]').click()")
    page.run("document.querySelector('.tokens').focus()")
    shaded = "[...document.querySelectorAll('.token')].findIndex((one) => /[pn][4-6]/.test(one.className))"
    page.press("ArrowRight", int(page.run(shaded)))


def _listed(page: Page) -> None:
    line = "document.querySelector('p[role=status]').innerText"
    page.wait(f"/of/.test({line}) && !/reading|searching/.test({line})", PATIENCE)
    page.wait("![...document.querySelectorAll('td.excerpt .line')].some((one) => one.innerText === '…')", PATIENCE)


SHOTS = (
    Shot(
        name="ui-runs",
        at="runs",
        ready="/training\\s+[1-9]/.test(document.querySelector('tbody').innerText)",
        before=_hide_folder,
        height=420,
    ),
    Shot(name="ui-run", at="run?run=too-fast", ready=f"{JUDGED} && {DRAWN}", height=1230),
    Shot(
        name="ui-rollouts",
        at="rollouts?run=reviews&find=great&order=advantage",
        ready="document.querySelectorAll('tbody tr').length > 8",
        before=_listed,
        height=640,
    ),
    Shot(
        name="ui-microscope",
        at=f"rollout?run=reviews&{ROLLOUT}",
        ready="document.querySelectorAll('.token').length > 8",
        before=_point_at_token,
        height=860,
    ),
    Shot(name="ui-compare", at="compare?run=sorting&run=too-fast", ready=DRAWN, height=900),
    Shot(name="ui-dark", at="run?run=reviews", ready=f"{JUDGED} && {DRAWN}", dark=True, height=900),
)


def train_missing(runs: Path) -> None:
    for name, (recipe, *keys) in RUNS.items():
        if not (runs / name / "final_results.json").is_file():
            subprocess.run([*WHET, "train", recipe, *keys, "--out", str(runs / name)], check=True)


def take(page: Page, url: str, shot: Shot) -> bytes:
    page.resize(1280, shot.height)
    page.scheme("dark" if shot.dark else "light")
    page.open(f"{url}#{shot.at}")
    page.wait(shot.ready, PATIENCE)
    shot.before(page)
    page.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
    return compact(page.shot())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--to", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--only", default="", metavar="WORD", help="pictures with this in their name")
    options = parser.parse_args(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    train_missing(options.runs)
    wanted = [shot for shot in SHOTS if options.only in shot.name]
    shutil.rmtree(options.runs / LIVE, ignore_errors=True)
    live = (
        training(options.runs, LIVE, f"steps={LIVE_STEPS}") if any(shot.name == "ui-runs" for shot in wanted) else None
    )
    browser = Chromium()
    try:
        with served(options.runs) as url:
            for shot in wanted:
                page = browser.page()
                data = take(page, url, shot)
                (options.to / f"{shot.name}.png").write_bytes(data)
                sys.stdout.write(f"{shot.name}.png: {len(data) // 1000} kB {page.troubles() or ''}\n")
                page.close()
    finally:
        browser.close()
        if live is not None:
            live.kill()
            live.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
