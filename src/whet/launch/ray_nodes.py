"""The entry point of a Ray job: takes nodes, runs torchrun on each, starts all again after a failure.

Ray only places and restarts; the processes of a run talk to each other as everywhere. Runs on the cluster.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from typing import Any

from whet.errors import RunFailed, UserError
from whet.imports import optional_package
from whet.launch.job import WRONG_INPUT, log_line
from whet.launch.ray_job import APART, VARIABLE
from whet.launch.shell import MEETING_SECONDS

LOST = 1  # the exit code of a node that died


def main() -> int:
    """Trains, with restarts; returns the exit code of the job."""
    job = json.loads(os.environ.pop(VARIABLE))
    for name in job["secrets"]:
        if not os.environ.get(name):
            raise UserError(f"{name} is not set on the cluster: export it where ray start runs")
    ray = optional_package("ray", "a Ray job")
    ray.init(log_to_driver=True)
    for attempt in range(job["restarts"] + 1):
        codes = _attempt(ray, job)
        if not any(codes):
            return 0
        if WRONG_INPUT in codes:  # another attempt would refuse it too
            return WRONG_INPUT
        log_line(f"attempt {attempt + 1} of {job['restarts'] + 1} ended with codes {codes}")
    return 1


def _attempt(ray: Any, job: dict[str, Any]) -> list[int]:
    """One start on fresh nodes; the exit codes of the nodes that ended before the others were stopped."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": 1.0, **({"GPU": float(job["gpus"])} if job["gpus"] else {})}
    if job["kind"]:
        bundle[f"accelerator_type:{job['kind']}"] = 0.001
    strategy = APART if job["nodes"] > 1 else "PACK"
    group = placement_group([bundle] * job["nodes"], strategy=strategy)
    log_line(f"waiting for {job['nodes']} node(s) with {bundle}")
    ray.get(group.ready())

    def on(rank: int, function: Any) -> Any:
        place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=rank)
        options = {"num_cpus": 1, "num_gpus": job["gpus"], "max_retries": 0, "scheduling_strategy": place}
        return ray.remote(**options)(function)

    try:
        endpoint = ray.get(on(0, _endpoint).remote()) if job["nodes"] > 1 else ""
        waiting = [on(rank, _train).remote(job, rank, endpoint) for rank in range(job["nodes"])]
        return _until_one_fails(ray, waiting)
    finally:
        remove_placement_group(group)


def _until_one_fails(ray: Any, waiting: list[Any]) -> list[int]:
    """Exit codes in the order in which nodes end; after a failure the others are stopped."""
    codes = []
    while waiting:
        (done,), waiting = ray.wait(waiting)
        try:
            codes.append(int(ray.get(done)))
        except ray.exceptions.RayError as error:
            log_line(f"a node was lost: {type(error).__name__}")
            codes.append(LOST)
        if codes[-1]:
            for task in waiting:
                ray.cancel(task, force=True)  # Ray ends the children of a worker with it
            break
    return codes


def _endpoint() -> str:
    """An address of this node where its torchrun can listen."""
    from ray.util import get_node_ip_address

    with socket.socket() as free:
        free.bind(("", 0))
        return f"{get_node_ip_address()}:{free.getsockname()[1]}"


def _train(job: dict[str, Any], rank: int, endpoint: str) -> int:
    """The run on this node; its exit code."""
    from ray.util import get_node_ip_address

    return subprocess.run(node_words(job, rank, endpoint, get_node_ip_address()), check=False).returncode


def node_words(job: dict[str, Any], rank: int, endpoint: str, address: str) -> list[str]:
    """The command of one node. Restarts are the driver's: a new attempt may have other nodes."""
    processes = max(1, job["gpus"])
    if job["nodes"] * processes == 1:
        words = [sys.executable, "-m", "whet", *job["train"]]
    else:
        meeting = ["--standalone"]
        if job["nodes"] > 1:
            conf = f"--rdzv-conf=is_host={int(rank == 0)},join_timeout={MEETING_SECONDS},read_timeout={MEETING_SECONDS}"
            where = [f"--rdzv-endpoint={endpoint}", conf, f"--local-addr={address}"]
            meeting = [f"--nnodes={job['nodes']}", "--rdzv-backend=c10d", f"--rdzv-id={job['name']}", *where]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *meeting, f"--nproc-per-node={processes}"]
        words = [*torchrun, "-m", "whet", *job["train"]]
    if job["setup"]:
        return ["bash", "-c", "\n".join(["set -e", *job["setup"], f"exec {shlex.join(words)}"])]
    return words


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (UserError, RunFailed) as error:
        sys.exit(f"whet: {error}")
