"""A run over two nodes of which one is lost, twice: its processes are killed, then its network is gone. As root.

    sudo .venv/bin/python -m studies.two_nodes.run --runs DIR --to studies/two_nodes/results.json

The nodes are two network namespaces of this machine with a cable between them (`ip netns`, `ip link`). Each starts one
process with torchrun. Three runs: one without a fault, and one for each fault, which is started again with --resume and
must equal the first, byte for byte. Needs only `ip` (Debian: iproute2) and two CPU cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.runs.directory import RunDirectory

NODES = ("whet-a", "whet-b")
HOSTS = ("10.77.0.1", "10.77.0.2")
CABLES = ("whet-cable-a", "whet-cable-b")
PORT = "29517"
RECIPE = "grpo-sorting"
KEYS = ("steps=150", "save.every_steps=10", "eval.every_steps=50", "eval.examples=50", "track=[]")
LOST_AT = 45  # steps of the run when the node is lost
LIMIT_SECONDS = 20  # after which a node that does not answer counts as lost
PATIENCE_SECONDS = 300
FAULTS = {
    "killed": "kill -9 of all processes of one node",
    "unreachable": "the cable is pulled: the other node answers nothing and closes no connection",
}
COMPARED = ("metrics.jsonl", "best_model", "rollouts", "evals")


def main(arguments: Sequence[str]) -> None:
    """Trains, and writes what happened."""
    options = _options(arguments)
    options.runs.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"command": " ".join(["whet", "train", RECIPE, *KEYS, *options.set]), "faults": {}}
    with nodes():
        whole = options.runs / "whole"
        found["whole"] = finished(started(whole, options.set))
        for fault, about in FAULTS.items():
            out = options.runs / fault
            found["faults"][fault] = {"about": about, **lost(out, fault, options.set)}
            found["faults"][fault]["resumed"] = finished(started(out, options.set, resume=True))
            found["faults"][fault]["identical"] = contents(out) == contents(whole)
    options.to.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


@contextmanager
def nodes() -> Iterator[None]:
    """Two network namespaces with an address each, and a cable between them."""
    remove()
    for node in NODES:
        _ip("netns", "add", node)
    _ip("link", "add", CABLES[0], "type", "veth", "peer", "name", CABLES[1])
    try:
        for node, cable in zip(NODES, CABLES, strict=True):
            _ip("link", "set", cable, "netns", node)
        plug_in()
        yield
    finally:
        remove()


def plug_in() -> None:
    """The cables up, with their addresses."""
    for node, cable, host in zip(NODES, CABLES, HOSTS, strict=True):
        _ip("-n", node, "addr", "replace", f"{host}/24", "dev", cable)
        for device in ("lo", cable):
            _ip("-n", node, "link", "set", device, "up")


def remove() -> None:
    """Without the namespaces of a call before."""
    for node in NODES:
        subprocess.run(["ip", "netns", "delete", node], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@dataclass(frozen=True, slots=True)
class Node:
    """The processes of one node, and what they print."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Ends torchrun and the processes that it started, which are in sessions of their own."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        for one in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(one), signal.SIGKILL)
        self.process.wait()


def started(out: Path, extra: Sequence[str], *, resume: bool = False) -> list[Node]:
    """torchrun on both nodes."""
    made = []
    for rank, (node, cable) in enumerate(zip(NODES, CABLES, strict=True)):
        rendezvous = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"]
        rendezvous += ["--master-addr", HOSTS[0], "--master-port", PORT]
        what = [str(out), "--resume"] if resume else [RECIPE, *KEYS, *extra, "--out", str(out)]
        command = ["ip", "netns", "exec", node, sys.executable, "-m", "torch.distributed.run", *rendezvous]
        log = out.with_name(f"{out.name}-{'resumed-' if resume else ''}{node}.log")
        limits = {"WHET_RANK_TIMEOUT_SECONDS": str(LIMIT_SECONDS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "-m", "whet", "train", *what],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **limits},
                start_new_session=True,
            )
        made.append(Node(node, process, log))
    return made


def finished(both: Sequence[Node]) -> dict[str, Any]:
    """Seconds and exit codes of a run that is left alone."""
    began = time.monotonic()
    try:
        codes = [node.process.wait(timeout=PATIENCE_SECONDS) for node in both]
    finally:
        for node in both:
            node.kill()
    if any(codes):
        raise SystemExit(f"exit codes {codes}: see {both[0].log} and {both[1].log}")
    return {"seconds": time.monotonic() - began}


def lost(out: Path, fault: str, extra: Sequence[str]) -> dict[str, Any]:
    """A run whose second node is lost after some steps; when the first one ended, and what it said."""
    both = started(out, extra)
    try:
        _wait_for(out, both)
        began = time.monotonic()
        if fault == "killed":
            both[1].kill()
        else:
            _ip("-n", NODES[1], "link", "set", CABLES[1], "down")
        code = both[0].process.wait(timeout=PATIENCE_SECONDS)
        seconds = time.monotonic() - began
    finally:
        for node in both:
            node.kill()
        plug_in()
    said = [line for line in both[0].log.read_text("utf-8", "replace").splitlines() if line.startswith("whet:")]
    steps = _steps(out)
    return {"at_step": steps, "seconds_until_noticed": seconds, "exit_code": code, "said": said[-1] if said else ""}


def _wait_for(out: Path, both: Sequence[Node]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _steps(out) < LOST_AT:
        if time.monotonic() > deadline or any(node.process.poll() is not None for node in both):
            raise SystemExit(f"no step {LOST_AT}: see {both[0].log} and {both[1].log}")
        time.sleep(0.05)


def _steps(out: Path) -> int:
    """The last step that is logged."""
    if not (out / "metrics.jsonl").is_file():
        return 0
    return max((row["step"] for row in RunDirectory.open(out, is_writer=False).metrics()), default=0)


def contents(run: Path) -> dict[str, str]:
    """SHA-256 of what a run measured, sampled and trained."""
    files = [file for name in COMPARED for file in sorted((run / name).rglob("*") or []) if file.is_file()]
    files += [run / name for name in COMPARED if (run / name).is_file()]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
