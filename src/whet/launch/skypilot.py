"""SkyPilot: a task in YAML. The folder of the command is copied to the cluster; runs are on a volume or in a bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.launch import shell
from whet.launch.job import Job
from whet.launch.tool import Launch, Tool, require_exported
from whet.launch.yaml_text import to_yaml

MOUNT = "/runs"
IDLE_MINUTES = 10  # after the run, the cluster is taken down: an idle one costs as much as a busy one
NAMES = {
    "h200": "H200",
    "h100": "H100",
    "a100-80": "A100-80GB",
    "a100-40": "A100",
    "l40s": "L40S",
    "a6000": "RTXA6000",
    "5090": "RTX5090",
    "4090": "RTX4090",
    "3090": "RTX3090",
}
BUCKET = re.compile(r"(s3|gs|r2|cos|oci|azure|https)://\S+")


def render(job: Job) -> str:
    """The task."""
    resources: dict[str, Any] = {"autostop": {"idle_minutes": IDLE_MINUTES, "down": True}}
    if job.gpus:
        if job.gpu is None:
            raise UserError("SkyPilot needs the kind of GPU: add --gpu NAME, e.g. --gpu h100")
        resources = {"accelerators": f"{NAMES[job.gpu]}:{job.gpus}", **resources}
    if job.image:
        resources["image_id"] = f"docker:{job.image}"
    # Of `sky jobs launch FILE`, which also moves to another cloud when a spot machine is taken away.
    resources["job_recovery"] = {"max_restarts_on_errors": job.restarts}
    task = {"name": job.name, "num_nodes": job.nodes, "workdir": ".", "resources": resources, **_storage(job)}
    if job.environment:
        task["envs"] = dict(job.environment)
    if job.secrets:
        task["secrets"] = dict.fromkeys(job.secrets)
    if job.setup:
        task["setup"] = "\n".join(["set -e", *job.setup]) + "\n"
    return to_yaml({**task, "run": "\n".join(_run(job)) + "\n"})


def _storage(job: Job) -> dict[str, Any]:
    where = job.settings["volume"]
    if not BUCKET.fullmatch(where):
        return {"volumes": {MOUNT: where}}
    if job.nodes > 1:
        raise UserError(
            f"--runs {where}: all nodes read one run directory, and a bucket shows files late: make a volume that "
            "several nodes can mount (sky volumes apply), and give its name"
        )
    # Not the mode MOUNT: it cannot rename a directory, which is how a checkpoint is completed.
    return {"file_mounts": {MOUNT: {"source": where, "mode": "MOUNT_CACHED"}}}


def _run(job: Job) -> Iterator[str]:
    if job.nodes == 1:
        yield f"exec {shell.command(job, restarts=True)}"
        return
    yield 'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    yield 'own=$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")'
    yield from shell.meeting("SKYPILOT_NODE_RANK")
    words = shell.node(job, f"$head:{shell.PORT}", "$own")
    yield "exec " + shell.wrapped([*words, shell.quoted(job.train)])


def _submit(job: Job, file: Path) -> list[str]:
    require_exported(job)
    secrets = [word for name in job.secrets for word in ("--secret", name)]  # the value is read by sky itself
    return ["sky", "launch", "--yes", "--detach-run", "--cluster", job.name, *secrets, str(file)]


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    return ["sky", "logs", launch.id, *([] if follow else ["--no-follow"])]


SKYPILOT = Tool(
    name="skypilot",
    program="sky",
    install="pip install skypilot, and sky check",
    ending=".yaml",
    render=render,
    submit=_submit,
    identify=lambda _printed, job: job.name,
    logs=_logs,
    stop=lambda launch: ["sky", "down", "--yes", launch.id],
    state=lambda launch: ["sky", "status", launch.id],
)
