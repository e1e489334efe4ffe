"""Jobs, programs that stand in for a tool, and what reaches the other side."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whet.launch.job import Job

GOLDEN = Path(__file__).parent / "golden"
ONE = Job(name="demo", recipe="grpo-sorting", runs="/runs", overrides=("steps=5",), settings={"volume": "my-runs"})
TWO = replace(ONE, nodes=2, gpus=8, gpu="h100", environment={"NCCL_DEBUG": "INFO"}, secrets={"HF_TOKEN": "hf-token"})
IMAGE = "docker.io/me/whet:1"

# Prints how it was called, as JSON lines in the file of $SEEN.
RECORDER = """#!{python}
import json, os, sys
with open(os.environ["SEEN"], "a", encoding="utf-8") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.environ.get("HOSTILE")]) + "\\n")
"""
# Runs its command as a node of Slurm would: with --ntasks=1 once, else for both nodes of the job.
SRUN = """#!/bin/bash
count=2
while [[ "$1" == --* ]]; do [ "$1" = --ntasks=1 ] && count=1; shift; done
for node in $(seq 0 $((count - 1))); do SLURM_NODEID=$node SLURMD_NODENAME=localhost "$@" & pids="$pids $!"; done
code=0
for pid in $pids; do wait $pid || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo localhost; echo 127.0.0.1; else echo "$@" >> "$REQUEUED"; fi
"""


def program(folder: Path, name: str, text: str) -> Path:
    """An executable in a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def recorders(folder: Path) -> Path:
    """A folder with a `whet` and a `torchrun` that only say how they were called, and the programs of Slurm."""
    for name in ("whet", "torchrun"):
        program(folder, name, RECORDER.format(python=sys.executable))
    program(folder, "srun", SRUN)
    program(folder, "scontrol", SCONTROL)
    return folder


def seen(
    words: Sequence[str], folder: Path, place: Path, more: Mapping[str, str] | None = None
) -> list[tuple[str, list[str], str | None]]:
    """How `whet` and `torchrun` are called by a command."""
    file = place / "seen.jsonl"
    file.unlink(missing_ok=True)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SEEN": str(file), **(more or {})}
    done = subprocess.run(words, env=environment, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    calls: list[Any] = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [(name, arguments, hostile) for name, arguments, hostile in calls]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """What Kubernetes makes of text: $(NAME) is a variable, $$ is $, all else stays.

    As its documentation of `command` and `env` has it.
    """
    out, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            out, at = out + "$", at + 2
        elif text.startswith("$(", at) and ")" in text[at:]:
            end = text.index(")", at)
            out, at = out + variables.get(text[at + 2 : end], text[at : end + 1]), end + 1
        else:
            out, at = out + text[at], at + 1
    return out
