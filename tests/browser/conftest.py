"""One browser for all tests here, a page of its own for each."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium, Page
from tests.browser.served import served
from tests.report.fake_run import online_run, supervised_run
from tests.report.fake_sweep import comparison
from whet.runs.directory import RunDirectory

HOSTILE = "hostile"
RICH = "rich"
ATTACK = "<script>pwned=1</script><img src=x onerror=pwned=1>\x1b]0;pwned\x07\u202edesrever\u2028\ud800'\"`</textarea>"


def rollout(draw: random.Random, step: int, prompt: str, number: int, text: str) -> dict:
    """A row as whet.train.online.token_record writes it, with everything that the microscope can show."""
    size = len(text)
    logprobs = [-abs(draw.gauss(0, 0.8)) for _ in text]
    old = [value + draw.gauss(0, 0.05) for value in logprobs]
    right = number % 2 == 0
    texts = {"id": prompt, "prompt": f"What is {prompt}?", "text": text, "finish": "length" if number == 3 else "stop"}
    tokens = {"tokens": [1, 2, *range(10, 10 + size)], "mask": [False, False, *[True] * size], "pieces": list(text)}
    judged = {
        "reward": 1.0 if right else 0.2 * number,
        "parts": {"correct": float(right), "format": 1.0 - 0.1 * number},
    }
    trained = {"trained": True, "advantage": 1.5 if right else -0.5 * number, "version": step - 1}
    numbers = {
        "logprobs": [0.0, 0.0, *logprobs],
        # The trainer reads the tokens of a second minibatch only after the first update.
        "old_logprobs": [None] * size if step == 12 else old,
        "reference_logprobs": [value - 0.1 * i for i, value in enumerate(old)],
        "entropies": [0.1 * (i % 9) for i in range(size)],
        "ratios": [1 + 0.01 * i for i in range(size)],
        "clipped": [3, 8],
        "top_tokens": [[10 + i, 4] for i in range(size)],
        "top_logprobs": [[-0.1, -2.4] for _ in text],
        "top_pieces": [[piece, "<script>"] for piece in text],
    }
    return texts | tokens | judged | trained | numbers


def rich_run(root: Path) -> None:
    """Rollouts of 12 steps, with numbers for each token."""
    draw = random.Random(3)
    config = "steps: 12\nalgorithm: {preset: grpo}\nrollout: {prompts: 3, group: 4}\noptimizer: {lr: 0.001}\n"
    with RunDirectory.create(root, RICH, config, path=root / RICH) as run:
        for step in range(1, 13):
            run.log(step, {"reward/mean": 0.05 * step, "kl": 0.01 * step, "entropy": 2 - 0.1 * step})
            groups = [(f"{step}+{group}", number) for group in range(3) for number in range(4)]
            rows = [rollout(draw, step, prompt, number, f"it is {number} apples") for prompt, number in groups]
            run.record(step, rows)


def hostile(root: Path) -> None:
    """Every text an attack, one of them a megabyte long."""
    said = {"id": ATTACK, "prompt": ATTACK, "text": ATTACK, "finish": ATTACK}
    numbers = {"tokens": [1, 2], "mask": [False, True], "logprobs": [0.0, -1.0], "pieces": [ATTACK], "trained": True}
    row = {**said, **numbers, "reward": 1.0, "parts": {ATTACK: 1.0}, "advantage": 1.0}
    long = row | {"id": "long", "text": "\u202e" + "x" * 1_000_000, "pieces": ["x" * 1_000_000]}
    answer = {**said, "answer": ATTACK, "correct": True, "tokens": 1, "sample": 0}
    results = {"before": {}, "after": {}, "machine": {ATTACK: ATTACK}, "versions": {}, "seconds": 1.0, "recipe": ATTACK}
    config = f"steps: 1\n{json.dumps(ATTACK)}: {json.dumps(ATTACK)}\n"
    with RunDirectory.create(root, HOSTILE, config, path=root / HOSTILE) as run:
        run.log(0, {f"eval/{ATTACK}": 1.0})
        run.log(1, {f"parts/{ATTACK}": 1.0, "parts/b": 1.0, "reward/mean": 0.5})
        run.record_answers(0, [answer])
        run.record_answers(1, [answer | {"correct": False}])
        run.record(1, [row, long])
        run.finish({**results, "loop": "online", "steps": 1, "seed": 0})
    report = "<h1>report</h1><script>parent.pwned=1;document.title='pwned'</script>"
    (root / HOSTILE / "report.html").write_text(report)


def corrupt(root: Path) -> None:
    """Truncated, broken, missing and foreign files, a run for each."""
    for name in ("truncated", "broken", "missing", "linked"):
        online_run(root / "made", steps=20).rename(root / name)
    archive = root / "truncated" / "rollouts" / "step-000020.jsonl.gz"
    archive.write_bytes(archive.read_bytes()[:300])
    lines = ['{"step": 1, "kl": 0.5}', '{"step": 2, "kl"\x00', '{"step": 3, "kl": 0.6}']
    (root / "broken" / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    (root / "broken" / "final_results.json").write_text("{")
    (root / "missing" / "metrics.jsonl").unlink()
    (root / "missing" / "final_results.json").unlink()
    (root / "linked" / "evals" / "step-000099.jsonl").symlink_to("/etc/passwd")
    (root / "made").rmdir()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    online_run(root, steps=100)
    supervised_run(root, steps=40)
    rich_run(root)
    hostile(root)
    corrupt(root)
    comparison(root / "sweep", {"grpo": [[0.1, 0.9]], "rloo": [[0.1, 0.4]]})
    return root


@pytest.fixture(scope="session")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as url:
        yield url


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    """A new tab; afterwards no script may have failed and no policy may have been violated."""
    chromium.events.clear()
    made = chromium.page()
    yield made
    assert made.troubles() == []
    made.close()
