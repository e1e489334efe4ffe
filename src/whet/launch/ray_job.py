"""Ray: `ray job submit` of a small driver (`ray_nodes`), which takes nodes of the cluster and trains there.

The file is the runtime environment. The job is in a variable of it, because versions of Ray quote the words of an
entry point in different ways, and some of them lose words with quotes or dollars.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from whet.errors import UserError
from whet.launch.job import Job
from whet.launch.tool import Launch, Tool, last_line
from whet.launch.yaml_text import to_yaml

VARIABLE = "WHET_JOB"
APART = "STRICT_SPREAD"  # how Ray calls it that each node of a run is another machine
# GPU types as Ray finds them (ray.util.accelerators); the A100s of both sizes are one type.
NAMES = {
    "h200": "H200",
    "h100": "H100",
    "a100-80": "A100",
    "a100-40": "A100",
    "l40s": "L40S",
    "a6000": "A6000",
    "5090": "RTX-5090",
    "4090": "RTX-4090",
    "3090": "RTX-3090",
}


def render(job: Job) -> str:
    """The runtime environment."""
    what = {
        "name": job.name,
        "nodes": job.nodes,
        "gpus": job.gpus,
        "kind": NAMES[job.gpu] if job.gpu and job.gpus else None,
        "restarts": job.restarts,
        "secrets": list(job.secrets),
        "setup": list(job.setup),
        "train": job.train,
    }
    return to_yaml({"env_vars": {**job.environment, VARIABLE: json.dumps(what)}})


def _submit(job: Job, file: Path) -> list[str]:
    return [
        *("ray", "job", "submit", "--no-wait", *_address(job.settings.get("address"))),
        *("--runtime-env", str(file), "--working-dir", "."),
        *("--", "python", "-m", "whet.launch.ray_nodes"),
    ]


def _identify(printed: str, job: Job) -> str:
    found = re.search(r"Job '(\S+)' submitted", printed)
    if found is None:
        raise UserError(f"ray job submit did not print the id of a job: look for {job.name} in `ray job list`")
    return found[1]


def _read_state(said: str, launch: Launch) -> str:
    found = re.search(rf"[Jj]ob '{re.escape(launch.id)}':? (?:was )?(\w+)", said)
    return found[1].lower() if found else last_line(said)


def _address(address: str | None) -> list[str]:
    return ["--address", address] if address else []


def _job(command: str, launch: Launch) -> list[str]:
    return ["ray", "job", command, *_address(launch.settings.get("address")), launch.id]


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    return [*_job("logs", launch), *(["--follow"] if follow else [])]


RAY = Tool(
    name="ray",
    program="ray",
    install="pip install 'ray[default]' of the version that the cluster has",
    ending=".yaml",
    render=render,
    submit=_submit,
    identify=_identify,
    logs=_logs,
    stop=lambda launch: [*_job("stop", launch), "--no-wait"],
    state=lambda launch: _job("status", launch),
    read_state=_read_state,
)
