"""The parts that shell scripts of several tools share: quoted words, variables, torchrun and where it meets."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from whet.launch.job import Job

PORT = 29400  # torchrun's own
MEETING_SECONDS = 1800  # nodes start minutes apart, while images are pulled and machines are made


def quoted(words: Sequence[str]) -> str:
    """Words as a shell reads them back, unchanged."""
    return shlex.join(words)


def exports(job: Job) -> Iterator[str]:
    """Lines that set the variables of a job."""
    for name, value in job.environment.items():
        yield f"export {name}={shlex.quote(value)}"


def require_secrets(job: Job, where: str) -> Iterator[str]:
    """Lines that end a script whose secrets are not set, before it trains for hours; values are never written."""
    for name in job.secrets:
        yield f': "${{{name}:?is not set: export it {where}}}"'


def setup(job: Job) -> Iterator[str]:
    """The commands of --setup; the first that fails ends the script."""
    if job.setup:
        yield from ("set -e", *job.setup, "set +e")


def command(job: Job, *, restarts: bool) -> str:
    """The command of the only node, which restarts processes itself if `restarts`."""
    if job.is_alone and not (restarts and job.restarts):
        return quoted(["whet", *job.train])
    many = ["--standalone", f"--nproc-per-node={job.processes}", f"--max-restarts={job.restarts}"]
    return quoted(["torchrun", *many, "-m", "whet", *job.train])


def node(job: Job, endpoint: str, address: str) -> list[str]:
    """The command of a node up to the words of `whet`, as parts of a script; `endpoint` and `address` are such parts.

    The script sets `is_host` to 1 on the first node. torchrun would compare host names instead, and guess wrong where
    a machine has several. A failed process makes all nodes meet again, and so does a node that comes back.
    """
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={job.restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-id={job.name}",
        f'--rdzv-endpoint="{endpoint}"',
        f'--rdzv-conf="is_host=$is_host,join_timeout={MEETING_SECONDS},read_timeout={MEETING_SECONDS}"',
        f'--local-addr="{address}"',
        "-m whet",
    ]


def meeting(rank: str) -> list[str]:
    """Lines before that command; `rank` is the variable with the number of the node.

    Agents count their own restarts, so after a failure on one node the counts differ, and with the store that torchrun
    shares with the ranks each of them would read addresses of another attempt. A new store for each attempt has none.
    """
    return [
        f'[ "${rank}" = 0 ] && is_host=1 || is_host=0',
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # a store of its own for every attempt",
    ]


def wrapped(words: Sequence[str]) -> str:
    """Parts of a command on lines of their own."""
    return " \\\n  ".join(words)
