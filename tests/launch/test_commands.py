"""`whet launch …` with programs in place of the tools: what they are given, and what is said when they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.refusal import refused, write_recipe
from tests.cli.tiny import Whet
from tests.launch.jobs import program

HELD = "hf_verysecret"
# A tool that writes how it was called, prints what its namesake prints, and fails if it is told to.
TOOL = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLS"
if [ -n "$FAILS" ]; then printf 'no quota\\n\\033]52;c;x\\007' >&2; exit 3; fi
case "$(basename "$0") $*" in
  sbatch*) echo "77;cluster" ;;
  squeue*) echo RUNNING ;;
  "modal run"*) echo "View run at https://modal.com/apps/me/main/ap-Abc123" ;;
  "modal app list"*) echo '[{"App ID": "ap-Abc123", "State": "running"}]' ;;
  "ray job submit"*) echo "Job 'raysubmit_9' submitted successfully" ;;
  "ray job status"*) printf "\\033[32mStatus for job 'raysubmit_9': RUNNING\\033[0m\\n-----\\n" ;;
  kubectl\\ get*) echo "active=1 failed=" ;;
  sky\\ status*) printf 'NAME STATUS\\ndemo   UP\\n' ;;
  *logs*) printf '\\033[36mstep\\033[0m 1\\n\\033[2Jstep 2\\n' ;;
esac
"""
MORE = {  # options of the tools besides --name
    "slurm": ("--gpus", 2),
    "ray": ("--runs", "/shared/runs"),
    "skypilot": ("--runs", "my-volume", "--gpu", "h100", "--image", "i"),
    "modal": ("--gpu", "h100", "--image", "i"),
    "k8s": ("--runs", "claim", "--image", "i", "--namespace", "lab"),
}
CALLED = {
    "slurm": ["sbatch --parsable {}.sbatch"],
    "ray": ["ray job submit --no-wait --runtime-env {}.yaml --working-dir . -- python -m whet.launch.ray_nodes"],
    "skypilot": ["sky launch --yes --detach-run --cluster demo {}.yaml"],
    "modal": ["modal run --detach {}.py"],
    "k8s": ["kubectl apply --filename {}.yaml"],
}
LATER = {
    "slurm": ("77", "RUNNING", "scancel 77"),
    "ray": ("raysubmit_9", "running", "ray job stop raysubmit_9 --no-wait"),
    "skypilot": ("demo", "demo UP", "sky down --yes demo"),
    "modal": ("ap-Abc123", "running", "modal app stop --yes ap-Abc123"),
    "k8s": ("demo", "active=1 failed=", "kubectl delete --ignore-not-found --wait=false --filename {}.yaml"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $WHET_HOME, in a folder with nothing else; no tool is installed."""
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return tmp_path / "home" / "launches"


@pytest.fixture
def calls(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which tools write how they were called."""
    for name in ("sbatch", "scancel", "squeue", "sky", "modal", "kubectl", "ray"):
        program(tmp_path / "bin", name, TOOL)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def called(calls: Path) -> list[str]:
    lines = calls.read_text().splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize("tool", MORE)
def test_a_launch_from_beginning_to_end(whet: Whet, tool: str, home: Path, calls: Path) -> None:
    submit = ("launch", tool, "grpo-sorting", "steps=5", "--name", "demo", *MORE[tool])
    (shown,) = CALLED[tool]
    number, state, stopped = LATER[tool]
    dry = whet(*submit, "--dry-run")
    assert (dry.code, called(calls), home.exists()) == (0, [], False)
    result = whet(*submit)
    assert (result.code, result.out) == (0, f"demo: {tool} {number}\n"), result.err
    assert called(calls) == [shown.format(home / "demo")]
    (written,) = (path for path in home.iterdir() if path.suffix != ".json")
    assert written.read_text() == dry.out
    assert "whet launch stop demo" in refused(whet, *submit)  # a second job would write the same run
    assert called(calls) == []
    (row,) = json.loads(whet("launch", "list", "--json").out)
    assert (row["name"], row["tool"], row["id"], row["state"]) == ("demo", tool, number, state)
    called(calls)
    assert whet("launch", "stop", "demo").code == 0
    assert called(calls) == [stopped.format(home / "demo")]
    assert json.loads(whet("launch", "list", "--json").out)[0]["state"] == "stopped"
    assert called(calls) == []
    assert whet(*submit).code == 0  # resumes the run


@pytest.mark.parametrize("tool", [tool for tool in MORE if tool != "slurm"])
def test_logs_are_those_of_the_tool_and_escaped(whet: Whet, tool: str, calls: Path, home: Path) -> None:
    whet("launch", tool, "grpo-sorting", "--name", "demo", *MORE[tool])
    called(calls)
    shown = whet("launch", "logs", "demo")
    assert (shown.code, shown.out) == (0, "step 1\n\\x1b[2Jstep 2\n")
    words = called(calls)[0].split()
    assert "logs" in words
    assert ("--namespace" in words) == (tool == "k8s")
    lines = whet("launch", "logs", "demo", "--json", "--follow").out.splitlines()
    assert [json.loads(line)["line"] for line in lines] == ["step 1", "\x1b[2Jstep 2"]
    assert called(calls) != [" ".join(words)]


def test_logs_of_slurm_are_a_file_of_the_shared_folder(whet: Whet, calls: Path, tmp_path: Path) -> None:
    whet("launch", "slurm", "grpo-sorting", "--name", "demo", "--runs", "runs")
    assert f"there is no log {tmp_path}/runs/demo.log yet" in refused(whet, "launch", "logs", "demo")
    (tmp_path / "runs" / "demo.log").write_text("step 1\n")
    assert whet("launch", "logs", "demo").out == "step 1\n"


@pytest.mark.parametrize("tool", MORE)
def test_a_tool_that_is_not_installed_is_named(
    whet: Whet, tool: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    line = refused(whet, "launch", tool, "grpo-sorting", "--name", "demo", *MORE[tool])
    assert CALLED[tool][0].split()[0] + " is not installed here: " in line
    assert list(home.iterdir()) == []


def test_a_tool_that_fails_says_why_and_leaves_nothing(
    whet: Whet, home: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    line = refused(whet, "launch", "slurm", "grpo-sorting", "--name", "demo", code=1)
    assert line.startswith("sbatch --parsable ")
    assert line.endswith("failed with exit code 3 and said: no quota \\x1b]52;c;x\\x07")
    assert list(home.iterdir()) == []


def test_a_record_whose_tool_knows_nothing_more_can_be_forgotten(
    whet: Whet, home: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whet("launch", "slurm", "grpo-sorting", "--name", "demo")
    monkeypatch.setenv("FAILS", "1")
    (row,) = json.loads(whet("launch", "list", "--json").out)
    assert row["state"].startswith("unknown: squeue")
    refused(whet, "launch", "stop", "demo", code=1)
    assert whet("launch", "stop", "demo", "--forget").code == 0
    assert list(home.iterdir()) == []
    assert "there are none" in refused(whet, "launch", "logs", "demo")


def test_a_secret_goes_by_its_name(whet: Whet, home: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ("launch", "skypilot", "grpo-sorting", "--name", "demo", *MORE["skypilot"], "--secret", "HF_TOKEN")
    assert "export it first" in refused(whet, *submit)
    monkeypatch.setenv("HF_TOKEN", HELD)
    assert whet(*submit).code == 0
    assert called(calls)[0].endswith("--cluster demo --secret HF_TOKEN " + str(home / "demo.yaml"))
    assert not any(HELD in path.read_text() for path in home.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--env", "HF_TOKEN=x"), "use --secret HF_TOKEN"),
        (("--env", "A"), "write --env NAME=VALUE"),
        (("--secret", "A B"), "is not the name of a variable"),
        (("--secret", f"HF_TOKEN={HELD}"), "must name a stored secret"),
        (("--name", "A b"), "must be of small letters"),
        (("--name", "x" * 41), "at most 40 characters"),
        (("--time", "tomorrow"), "write e.g. 90m"),
        (("--time", "0s"), "above 0 seconds"),
        (("--gpu", "h900"), "unknown GPU"),
        (("--gpu", "24GiB"), "needs a kind"),
        (("steps=no",), "steps"),
        (("rollout.prompts=1", "--gpus", 2), "cannot be shared by 2 processes: raise rollout.prompts"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    whet: Whet, home: Path, calls: Path, options: tuple[object, ...], words: str
) -> None:
    line = refused(whet, "launch", "modal", "grpo-sorting", *MORE["modal"], *options)
    assert words in line
    assert HELD not in line
    assert (called(calls), home.exists()) == ([], False)


def test_a_machine_without_whet_is_refused(whet: Whet, home: Path) -> None:
    assert "has no whet" in refused(whet, "launch", "modal", "grpo-sorting", "--gpu", "h100")


def test_a_recipe_that_is_not_copied_is_refused(
    whet: Whet, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    assert "start the command in the folder" in refused(whet, "launch", "ray", recipe, *MORE["ray"])
    monkeypatch.chdir(tmp_path)
    assert '\\"train\\", \\"tiny.yaml\\"' in whet("launch", "ray", recipe, *MORE["ray"], "--dry-run").out


def test_a_recipe_travels_to_kubernetes(whet: Whet, home: Path, tmp_path: Path) -> None:
    shown = whet("launch", "k8s", write_recipe(tmp_path), *MORE["k8s"], "--dry-run").out
    assert "  tiny.yaml: |" in shown
    assert "        - /whet-recipe/tiny.yaml\n" in shown


def test_the_verdict_of_the_plan_is_said(whet: Whet, home: Path) -> None:
    """On standard error, so that the file alone is on standard output."""
    given = ("launch", "modal", "grpo", "model=Qwen/Qwen3-8B", "task=arithmetic", "--image", "i", "--dry-run", "--gpu")
    small, large = whet(*given, "l40s"), whet(*given, "h200")
    assert "grpo does not fit on l40s, needs " in small.err
    assert small.err.count("\n") == 1
    assert "grpo " in large.err
    assert (small.code, large.code) == (0, 0)
    assert small.out.startswith('"""Written by')


def test_pipelines_train_in_one_process(whet: Whet, home: Path) -> None:
    assert "is a pipeline" in refused(whet, "launch", "slurm", "rlhf-reviews", "--gpus", 2, "--dry-run")
    assert whet("launch", "slurm", "rlhf-reviews", "--dry-run").code == 0


def test_a_damaged_record_is_named(whet: Whet, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "x.json").write_text("[]")
    assert f"cannot read {home / 'x.json'}" in refused(whet, "launch", "list")


def test_names_are_made_from_recipes(whet: Whet, home: Path, tmp_path: Path) -> None:
    from whet.launch.job import NAME, name_of

    for source in ("grpo-sorting", "dir/My Recipe (2).yaml", "7.yaml", "é.yaml", "x" * 100):
        assert NAME.fullmatch(name_of(source, "1118-204131")), source
