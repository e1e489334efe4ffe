"""Slurm: an sbatch script. The folder of runs, the environment and the files are shared by the nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from whet.errors import UserError
from whet.launch import shell
from whet.launch.job import WRONG_INPUT, Job
from whet.launch.tool import Launch, Tool, require_exported

WARNING_SECONDS = 120  # before the time limit: enough to end a step and save a checkpoint
NAMES = {"a100-80": "a100", "a100-40": "a100"}  # GPU types as most sites call them; the others as they are
# sbatch reads its lines with rules of its own: % stands for numbers, quotes and backslashes are removed.
PLAIN = re.compile(r"[^\s%\"'\\#]+")


def render(job: Job) -> str:
    """The script: directives, then one task per node."""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _directives(job)), ""]
    return "\n".join([*lines, *_body(job)]) + "\n"


def log_path(job: Job) -> str:
    return f"{job.run}.log"


def _directives(job: Job) -> Iterator[str]:
    yield f"--job-name={job.name}"
    for name in ("partition", "account"):
        if name in job.settings:
            yield f"--{name}={_plain(name, job.settings[name])}"
    yield f"--nodes={job.nodes}"
    yield "--ntasks-per-node=1"
    if job.gpus:
        kind = f"{NAMES.get(job.gpu, job.gpu)}:" if job.gpu else ""
        yield f"--gpus-per-node={kind}{job.gpus}"
    if cpus := job.settings.get("cpus"):
        yield f"--cpus-per-task={cpus}"
    if job.seconds is not None:
        days, rest = divmod(job.seconds, 86400)
        yield f"--time={days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    yield f"--output={_plain('runs', log_path(job))}"
    yield "--open-mode=append"
    yield "--requeue"
    yield f"--signal=TERM@{WARNING_SECONDS}"
    yield "--export=ALL"
    for line in job.directives:
        if not line.startswith("--") or "\n" in line:
            raise UserError(f"--sbatch {line!r} is not an option of sbatch: write e.g. --sbatch --mem=200G")
        yield line


def _plain(option: str, text: str) -> str:
    if not PLAIN.fullmatch(text):
        raise UserError(f"--{option}: {text!r} has a space, %, # or a quote, which sbatch reads otherwise: rename it")
    return text


def _body(job: Job) -> Iterator[str]:
    yield from shell.exports(job)
    if bin_directory := job.settings.get("bin"):
        yield f'export PATH={shlex.quote(bin_directory)}:"$PATH"'
    yield from shell.require_secrets(job, "in the shell that runs sbatch")
    yield from shell.setup(job)
    if "cpus" in job.settings:
        yield f"export SRUN_CPUS_PER_TASK={job.settings['cpus']}  # srun does not take it from sbatch"
    yield "stopped="
    yield "trap 'stopped=1' TERM  # scancel: the run ends, and is not queued again"
    if job.nodes == 1:
        yield f"srun --ntasks=1 {shell.command(job, restarts=False)}"
    else:
        yield from _several(job)
    yield "code=$?"
    yield "# A time limit, a lost node or a failure: the same command resumes the run. Wrong input would fail again."
    yield f'if [ "$code" != 0 ] && [ "$code" != {WRONG_INPUT} ] && [ -z "$stopped" ] \\'
    yield f'  && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.restarts} ]; then'
    yield '  scontrol requeue "$SLURM_JOB_ID"'
    yield "fi"
    yield 'exit "$code"'


def _several(job: Job) -> Iterator[str]:
    """srun starts a task on every node, where torchrun meets at the first one; arguments pass as they are."""
    task = [
        *shell.meeting("SLURM_NODEID"),
        "exec " + shell.wrapped([*shell.node(job, "$WHET_RENDEZVOUS", "${SLURMD_NODENAME:-$(hostname)}"), '"$@"']),
    ]
    yield 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    yield 'export WHET_RENDEZVOUS="$head:$((20000 + SLURM_JOB_ID % 20000))"  # a port for each job'
    script = "\n".join(task)
    yield f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(script)} whet {shell.quoted(job.train)}"


def _submit(job: Job, file: Path) -> list[str]:
    require_exported(job)
    Path(job.runs).mkdir(parents=True, exist_ok=True)  # slurmd writes the log there, and makes no directory
    return ["sbatch", "--parsable", str(file)]


def _identify(printed: str, job: Job) -> str:
    found = re.search(r"^(\d+)(;|$)", printed.strip(), re.MULTILINE)
    if found is None:
        raise UserError(
            f"sbatch did not print the number of a job but {printed.strip()!r}: look for {job.name} in squeue"
        )
    return found[1]


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    return ["tail", "-n", "+1", *(["-F"] if follow else []), "--", launch.log]


SLURM = Tool(
    name="slurm",
    program="sbatch",
    install="run this on a login node of the cluster",
    ending=".sbatch",
    render=render,
    submit=_submit,
    identify=_identify,
    logs=_logs,
    stop=lambda launch: ["scancel", launch.id],
    state=lambda launch: ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={launch.id}"],
    log=log_path,
)
