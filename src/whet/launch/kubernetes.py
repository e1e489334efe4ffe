"""Kubernetes: a Job; for several nodes an indexed one, whose pods find each other by a headless Service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import UserError
from whet.launch import shell
from whet.launch.job import WRONG_INPUT, Job
from whet.launch.tool import Launch, Tool
from whet.launch.yaml_text import to_yaml

MOUNT, RECIPES = "/runs", "/whet-recipe"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - of the pod
LARGEST_RECIPE = 2**19  # bytes; a ConfigMap holds a megabyte
GRACE_SECONDS = 120  # from SIGTERM to SIGKILL: enough to end a step and save a checkpoint
# What NVIDIA's device plugin writes on nodes, as nvidia.com/gpu.product.
PRODUCTS = {
    "h200": ["NVIDIA-H200", "NVIDIA-H200-NVL"],
    "h100": ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"],
    "a100-80": ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"],
    "a100-40": ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"],
    "l40s": ["NVIDIA-L40S"],
    "a6000": ["NVIDIA-RTX-A6000"],
    "5090": ["NVIDIA-GeForce-RTX-5090"],
    "4090": ["NVIDIA-GeForce-RTX-4090"],
    "3090": ["NVIDIA-GeForce-RTX-3090"],
}


def render(job: Job) -> str:
    """The manifests, in the order in which they are needed."""
    return "---\n".join(to_yaml(manifest) for manifest in _manifests(job))


def recipe_path(source: str) -> str:
    """Where a recipe of the user's own is in the pods."""
    return f"{RECIPES}/{Path(source).name}"


def _manifests(job: Job) -> Iterator[dict[str, Any]]:
    if text := job.settings.get("recipe_text"):
        if len(text.encode()) > LARGEST_RECIPE:
            raise UserError(f"recipe {job.recipe} has {len(text):,} characters: put it into the image or on the volume")
        name = Path(job.recipe).name
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(job), "data": {name: text}}
    if job.nodes > 1:
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _metadata(job),
            # Pods meet before they are ready.
            "spec": {"clusterIP": "None", "selector": {"job-name": job.name}, "publishNotReadyAddresses": True},
        }
    yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(job), "spec": _spec(job)}


def _metadata(job: Job) -> dict[str, Any]:
    space = {"namespace": job.settings["namespace"]} if "namespace" in job.settings else {}
    return {"name": job.name, **space, "labels": {"app.kubernetes.io/managed-by": "whet"}}


def _spec(job: Job) -> dict[str, Any]:
    several = {"completionMode": "Indexed", "completions": job.nodes, "parallelism": job.nodes} if job.nodes > 1 else {}
    limit = {} if job.seconds is None else {"activeDeadlineSeconds": job.seconds}
    return {
        **several,
        **limit,
        "backoffLimit": job.restarts * job.nodes,  # one failure of the run may end the pods of all nodes
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [WRONG_INPUT]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},  # preempted, or drained
            ]
        },
        "template": {"metadata": {"labels": {"app.kubernetes.io/managed-by": "whet"}}, "spec": _pod(job)},
    }


def _pod(job: Job) -> dict[str, Any]:
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS}
    if job.nodes > 1:
        spec["subdomain"] = job.name
    if job.gpu and job.gpus:
        same = {"key": "nvidia.com/gpu.product", "operator": "In", "values": PRODUCTS[job.gpu]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [same]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": job.settings["volume"]}}
    # NCCL and data loaders need more shared memory than the 64 MB of a container.
    volumes: list[dict[str, Any]] = [claim, {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if "recipe_text" in job.settings:
        volumes.append({"name": "recipe", "configMap": {"name": job.name}})
    return {**spec, "containers": [_container(job)], "volumes": volumes}


def _container(job: Job) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if cpus := job.settings.get("cpus"):
        resources["requests"] = {"cpu": cpus}
    if job.gpus:
        resources["limits"] = {"nvidia.com/gpu": job.gpus}
    mounts = [{"name": "runs", "mountPath": MOUNT}, {"name": "shared-memory", "mountPath": SHARED_MEMORY}]
    if "recipe_text" in job.settings:
        mounts.append({"name": "recipe", "mountPath": RECIPES})
    return {
        "name": "train",
        "image": job.image,
        "command": [_literal(word) for word in _command(job)],
        "env": list(_environment(job)),
        **({"resources": resources} if resources else {}),
        "volumeMounts": mounts,
    }


def _command(job: Job) -> list[str]:
    if job.nodes == 1 and not job.setup:
        return _alone(job)
    lines = list(shell.setup(job))
    if job.nodes == 1:
        return ["bash", "-c", "\n".join([*lines, 'exec "$@"']), "whet", *_alone(job)]
    lines += shell.meeting("JOB_COMPLETION_INDEX")
    words = shell.node(job, f"{job.name}-0.{job.name}:{shell.PORT}", "$POD_IP")
    lines.append("exec " + shell.wrapped([*words, '"$@"']))
    return ["bash", "-c", "\n".join(lines), "whet", *job.train]


def _alone(job: Job) -> list[str]:
    if job.is_alone:
        return ["whet", *job.train]
    meeting = ["--standalone", f"--nproc-per-node={job.processes}", f"--max-restarts={job.restarts}"]
    return ["torchrun", *meeting, "-m", "whet", *job.train]


def _environment(job: Job) -> Iterator[dict[str, Any]]:
    for name, value in job.environment.items():
        yield {"name": name, "value": _literal(value)}
    for name, stored in job.secrets.items():
        yield {"name": name, "valueFrom": {"secretKeyRef": {"name": stored, "key": name}}}
    if job.nodes > 1:
        yield {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _literal(text: str) -> str:
    """Text in which Kubernetes expands no $(VARIABLE): it reads $$ as one $."""
    return text.replace("$", "$$")


def _submit(_job: Job, file: Path) -> list[str]:
    return ["kubectl", "apply", "--filename", str(file)]


def _space(launch: Launch) -> list[str]:
    return ["--namespace", launch.settings["namespace"]] if "namespace" in launch.settings else []


def _logs(launch: Launch, *, follow: bool) -> list[str]:
    of_pods = ["--selector", f"job-name={launch.id}", "--prefix", "--tail=-1", "--max-log-requests=100"]
    return ["kubectl", "logs", *_space(launch), *of_pods, *(["--follow"] if follow else [])]


def _stop(launch: Launch) -> list[str]:
    return ["kubectl", "delete", "--ignore-not-found", "--wait=false", "--filename", launch.file]


def _state(launch: Launch) -> list[str]:
    shown = "{.status.conditions[?(@.status=='True')].type} active={.status.active} failed={.status.failed}"
    return ["kubectl", "get", "job", launch.id, *_space(launch), "--output", f"jsonpath={shown}"]


KUBERNETES = Tool(
    name="k8s",
    program="kubectl",
    install="install kubectl and point it at your cluster",
    ending=".yaml",
    render=render,
    submit=_submit,
    identify=lambda _printed, job: job.name,
    logs=_logs,
    stop=_stop,
    state=_state,
)
