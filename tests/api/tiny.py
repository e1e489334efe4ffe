"""The smallest runs that learn from rollouts, and cells of a notebook that no file holds."""

import os
from pathlib import Path

TINY = {
    "model": {"new": {"layers": 1, "width": 32}},
    "rollout": {"prompts": 4, "group": 4},
    "eval": {"examples": 8},
    "device": "cpu",
    "track": [],
}


def whose(completions):
    """A reward that says which process it runs in."""
    return [float(os.getpid())] * len(completions)


def contents(run):
    """What a resumed run must repeat byte for byte."""
    path = Path(run)
    names = ["metrics.jsonl", *sorted(str(file.relative_to(path)) for file in path.glob("rollouts/*"))]
    return {name: (path / name).read_bytes() for name in (*names, "best_model/model.safetensors")}
