"""Modal: an app file with one function. Runs are on a Modal volume, secrets are Modal's by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from whet.errors import UserError
from whet.launch.job import WRONG_INPUT, Job
from whet.launch.tool import Launch, Tool

MOUNT, WORK = "/runs", "/job"
MOST_SECONDS = 86400  # Modal's limit of a function; after it the function is retried, which resumes the run
MOST_RETRIES = 10  # Modal's limit
NAMES = {"h200": "H200", "h100": "H100", "a100-80": "A100-80GB", "a100-40": "A100-40GB", "l40s": "L40S"}
PYTHON = "3.12"
NOT_COPIED = [".git", ".venv", "runs", "**/__pycache__"]

APP = '''"""Written by `whet launch modal`. Started again, it resumes its run: modal run --detach FILE"""

import subprocess

import modal

COMMAND = {command}
SECRETS = [{secrets}
]

app = modal.App({name!r})
runs = modal.Volume.from_name({volume!r}, create_if_missing=True)
image = (
    {image}
    .add_local_dir(".", {work!r}, ignore={ignore})
)


@app.function(
    image=image,
    gpu={gpu!r},
    volumes={{{mount!r}: runs}},
    secrets=SECRETS,
    timeout={seconds},  # seconds; then the function is retried
    retries=modal.Retries(max_retries={retries}, initial_delay=10.0),
    max_containers=1,  # one process writes the run
)
def train():
    child = subprocess.Popen(COMMAND, cwd={work!r})
    try:
        code = child.wait()
    except BaseException:  # the container is taken away: whet saves a checkpoint
        child.terminate()
        child.wait()
        raise
    finally:
        runs.commit()
    if code == {wrong}:  # wrong input, which another attempt would refuse too
        print("whet: not retried, because the input is wrong")
    elif code:
        raise RuntimeError(f"whet train exited with code {{code}}")


@app.local_entrypoint()
def main():
    print("started", train.spawn().object_id)
'''


def render(job: Job) -> str:
    """The app."""
    if job.nodes > 1:
        raise UserError(
            f"--nodes {job.nodes}: several machines are an experiment of Modal that it enables for single workspaces: "
            "use --gpus 8 on one machine, or another tool"
        )
    if job.restarts > MOST_RETRIES:
        raise UserError(f"--restarts {job.restarts} exceeds Modal's limit of {MOST_RETRIES}: lower it")
    if job.seconds is not None and job.seconds > MOST_SECONDS:
        raise UserError(
            f"--time exceeds Modal's limit of a day: leave it out; with --restarts, a run of up to "
            f"{MOST_RETRIES + 1} days goes on after each"
        )
    return APP.format(
        command=_listed(_command(job)),
        secrets="".join(f"\n    {line}," for line in _secrets(job)),
        name=job.name,
        volume=job.settings["volume"],
        image="\n    ".join(_image(job)),
        work=WORK,
        ignore=repr(NOT_COPIED).replace("'", '"'),
        gpu=_gpu(job),
        mount=MOUNT,
        seconds=job.seconds or MOST_SECONDS,
        retries=job.restarts,
        wrong=WRONG_INPUT,
    )


def _command(job: Job) -> list[str]:
    if job.is_alone:
        return ["whet", *job.train]
    # Without restarts of its own: a new container has a new machine, too.
    return ["torchrun", "--standalone", f"--nproc-per-node={job.processes}", "-m", "whet", *job.train]


def _listed(words: list[str]) -> str:
    return "[\n" + "".join(f"    {word!r},\n" for word in words) + "]"


def _secrets(job: Job) -> Iterator[str]:
    for variable, stored in job.secrets.items():
        yield f"modal.Secret.from_name({stored!r}, required_keys=[{variable!r}])"


def _image(job: Job) -> Iterator[str]:
    yield (
        f"modal.Image.from_registry({job.image!r})"
        if job.image
        else f"modal.Image.debian_slim(python_version={PYTHON!r})"
    )
    yield from (f".run_commands({command!r})" for command in job.setup)
    if job.environment:
        yield f".env({dict(job.environment)!r})"


def _gpu(job: Job) -> str | None:
    if not job.gpus:
        return None
    if job.gpu is None:
        raise UserError("Modal needs the kind of GPU: add --gpu NAME, e.g. --gpu h100")
    if job.gpu not in NAMES:
        raise UserError(f"--gpu {job.gpu}: Modal has none of these; choose one of {', '.join(NAMES)}")
    return f"{NAMES[job.gpu]}:{job.gpus}"


def _submit(_job: Job, file: Path) -> list[str]:
    return ["modal", "run", "--detach", str(file)]


def _identify(printed: str, job: Job) -> str:
    found = re.search(r"\bap-[A-Za-z0-9]+", printed)
    if found is None:
        raise UserError(f"modal run did not print the id of an app: look for {job.name} in `modal app list`")
    return found[0]


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    return ["modal", "app", "logs", launch.id, *(["--follow"] if follow else ["--tail", "1000"])]


def _read_state(said: str, launch: Launch) -> str:
    try:
        rows = json.loads(said)
        found = [row for row in rows if launch.id in row.values()]
    except (ValueError, AttributeError):
        return "unknown: modal app list printed no JSON"
    states = [str(value) for row in found for key, value in row.items() if key.lower() == "state"]
    return states[0] if states else "ended"  # an app that has ended is not listed for long


MODAL = Tool(
    name="modal",
    program="modal",
    install="pip install modal, and modal setup",
    ending=".py",
    render=render,
    submit=_submit,
    identify=_identify,
    logs=_logs,
    stop=lambda launch: ["modal", "app", "stop", "--yes", launch.id],
    state=lambda _launch: ["modal", "app", "list", "--json"],
    read_state=_read_state,
)
