"""The README's commands run, and its table is the code's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.command_lines import check_example, check_mention
from whet.algorithms.cells import name
from whet.algorithms.table import ALGORITHMS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
UNFINISHED = re.compile(r"…|\[|RECIPE|@last")  # of commands in prose: placeholders


def commands():
    """The lines of the block that says it is tested."""
    block = README[README.index("<!-- test:") :]
    block = block[block.index("```sh\n") + 6 :]
    return [line.split("#")[0].strip() for line in block[: block.index("```")].splitlines()]


# In one process, because starting Python with torch takes seconds; the first one by itself, as a user starts it.
DRIVER = """
import glob, shlex, subprocess, sys
from whet.cli.app import main

first, *others = sys.argv[1:]
subprocess.run(first, shell=True, check=True)
for line in others:
    print("$", line, flush=True)
    program, *words = shlex.split(line)
    assert program == "whet", line
    sys.argv = ["whet", *(found for word in words for found in (glob.glob(word) or [word]))]
    try:
        main()
    except SystemExit as end:
        assert not end.code, line
"""


def test_every_command_runs(tmp_path):
    """The block of commands; then the README's own reward, taken from its text, for a step."""
    (tmp_path / "rewards.py").write_text(re.search(r"```python\n(# rewards.py\n.*?)```", README, re.DOTALL).group(1))
    line = next(line for line in README.splitlines() if "reward.functions=[rewards:short]" in line)
    own_reward = f"{line} steps=1 rollout.prompts=4 eval.examples=4 --runs own"
    binaries = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "WHET_HOME": str(tmp_path / "home")}
    driven = [sys.executable, "-c", DRIVER, *commands(), own_reward]
    done = subprocess.run(driven, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(commands()) == 17
    assert "pass@4" in done.stdout
    assert (tmp_path / "page" / "index.html").is_file()
    (run,) = (tmp_path / "runs").glob("*-grpo-sorting")
    assert (run / "report.html").stat().st_size > 10_000
    assert (run / "training_curves.png").stat().st_size > 10_000
    assert '"parts/short"' in next((tmp_path / "own").glob("*/metrics.jsonl")).read_text()


def printed():
    """Every command in a block of the README and of the docs, and those that their prose mentions."""
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "learn").glob("*.md")),
    ):
        text = page.read_text("utf-8")
        blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
        lines = [line.partition(" #")[0].strip() for line in blocks.splitlines()]
        prose = re.findall(r"`(whet [^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        yield from ((page.name, line, check_example) for line in lines if line.startswith("whet "))
        yield from ((page.name, line, check_mention) for line in prose if not UNFINISHED.search(line))


def test_every_printed_command_exists_and_fits_its_recipe(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "20260101-120000-reward"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("")
    monkeypatch.setenv("WHET_RUNS", str(run.parent))
    found = list(printed())
    assert len(found) > 100
    for page, line, check in found:
        try:
            check(line)
        except Exception as error:
            raise AssertionError(f"{page}: {line}") from error


def test_the_table_is_the_codes():
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \| (\w+) \|$", README, re.MULTILINE)
    expected = [(k, name(r.advantage), name(r.surrogate), name(r.weighting)) for k, r in ALGORITHMS.items()]
    assert rows[1:] == expected
    assert rows[0] == ("preset", "advantage", "surrogate", "weighting")


def test_its_links_and_make_targets_exist():
    for link in re.findall(r"\]\((\w[^)#:]*)\)", README):
        assert (ROOT / link).is_file(), link
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"make (\w+)", README)) - {"the"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_data_command_is_a_recipe(tmp_path, monkeypatch):
    """The command with a file in its format and a small chat model in place of the pulled one."""
    from tests.small import small_chat_model
    from whet.cli.progress import SilentProgress
    from whet.recipe import read_recipe
    from whet.train.start import start_run

    line = next(line for line in README.splitlines() if "task.path=questions.jsonl" in line)
    (tmp_path / "questions.jsonl").write_text('{"prompt": "12+34", "answer": "46"}\n{"prompt": "1+1", "answer": "2"}\n')
    monkeypatch.chdir(tmp_path)
    tiny = [f"model.path={small_chat_model(tmp_path / 'model')}", "steps=1", "rollout.prompts=2", "device=cpu"]
    recipe = read_recipe("grpo-arithmetic", [*line.split()[3:], *tiny])
    assert (start_run(recipe, tmp_path / "runs", lambda config, run: SilentProgress()) / "report.html").is_file()


def test_its_own_recipe_trains_and_is_evaluated(tmp_path, monkeypatch):
    """my.yaml and its command as printed, with a small model and a few rows."""
    from tests.small import small_chat_model
    from whet.cli.progress import SilentProgress
    from whet.recipe import read_recipe
    from whet.train.start import start_run

    (tmp_path / "my.yaml").write_text(re.search(r"```yaml\n(# my.yaml\n.*?)```", README, re.DOTALL).group(1))
    (tmp_path / "rewards.py").write_text(re.search(r"```python\n(# rewards.py\n.*?)```", README, re.DOTALL).group(1))
    for file, first in (("questions.jsonl", 1), ("test.jsonl", 60)):
        rows = [json.dumps({"question": f"What is 1+{i}?", "solution": i + 1}) for i in range(first, first + 8)]
        (tmp_path / file).write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    small_chat_model(tmp_path / "DIR")
    line = next(line.split("#")[0] for line in README.splitlines() if line.startswith("whet train my.yaml"))
    tiny = ["rollout.prompts=4", "rollout.max_tokens=4", "eval.max_tokens=4", "device=cpu"]
    recipe = read_recipe("my.yaml", [*line.split()[3:], *tiny])
    run = start_run(recipe, tmp_path / "runs", lambda config, run: SilentProgress())
    asked = [json.loads(row)["prompt"] for row in (run / "evals" / "step-000000.jsonl").read_text().splitlines()]
    assert sorted(asked) == [f"user: What is 1+{i}?" for i in range(60, 68)]  # as messages, like those trained on
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 2  # an epoch of eight prompts, four a step
    assert {"eval/accuracy", "eval/reward", "eval/parts/short"} <= rows[-1].keys()
