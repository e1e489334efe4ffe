"""Commands that compute nothing, and errors of a recipe, do not wait for torch and its kin."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "matplotlib")
# Several commands in one process: what one of them imports is found after it.
CALLS = """
import sys
from whet.cli.app import main

for words, code in CASES:
    sys.argv = ["whet", *words]
    try:
        main()
    except SystemExit as stop:
        assert (stop.code or 0) == code, (words, stop.code)
    loaded = [name for name in HEAVY if name in sys.modules]
    assert not loaded, (words, loaded)
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after a step, as its files say."""
    place = tmp_path / "runs" / "20260101-120000-tiny"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("steps: 2\n", "utf-8")
    (place / "metrics.jsonl").write_text('{"step": 0, "eval/accuracy": 0.25}\n{"step": 1, "eval/accuracy": 0.5}\n')
    return place


def test_commands_that_compute_nothing_do_not_import_torch(run: Path) -> None:
    cases = [
        (["keys"], 0),
        (["metrics"], 0),
        (["recipes"], 0),
        (["recipes", "grpo", "--json"], 0),
        (["runs", str(run.parent)], 0),
        (["tasks"], 0),
        (["models", "list"], 0),
        (["data", "formats"], 0),
        (["train", "grpo-sorting", "stepz=3"], 2),
        (["train", "rlhf-reviews", "stages.sft.stepz=3"], 2),
        (["train", "dpo", "model=x", "data={path:rows.jsonl}"], 2),
        (["explain", "grpo-sorting", "algorithm=gpro"], 2),
    ]
    program = f"HEAVY, CASES = {HEAVY!r}, {cases!r}\n{CALLS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert run.name in done.stdout
    assert "25.0% → 50.0%" in done.stdout
