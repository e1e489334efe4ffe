"""`python -m tests.golden record DIR` makes the runs; `python -m tests.golden compare OLD NEW` shows what differs.

Record before a change that must not change a number, and again after it, on the same machine: metrics, rollouts and
weights of the runs must be byte-identical, but for the names in `RENAMED`.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.golden.recipes import recipes

ROOT = Path(__file__).resolve().parents[2]
RENAMED = {  # a metric's or a column's old name → its new one
    "policy_kl": "approx_kl",
    "chosen/reward": "rewards/chosen",
    "rejected/reward": "rewards/rejected",
    "margin": "rewards/margin",
}
TWO_RANKS = "two-ranks"


def record(place: Path) -> None:
    """Makes every run below `place`."""
    place.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment["WHET_HOME"] = str(place / "home")
    for name, recipe in recipes(place).items():
        file = place / f"{name}.yaml"
        file.write_text(yaml.safe_dump(recipe, sort_keys=False))
        launch = [sys.executable, "-m"]
        if name == TWO_RANKS:
            launch += ["torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m"]
        command = [*launch, "whet", "train", str(file), "--runs", str(place / "runs")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        print(f"{name}: {'ok' if done.returncode == 0 else done.stderr[-800:]}", flush=True)
        if done.returncode:
            raise SystemExit(1)


def contents(place: Path) -> dict[str, Any]:
    """What must not change, by its path: rows of logs and rollouts as values, weights as checksums."""
    found: dict[str, Any] = {}
    for path in sorted((place / "runs").rglob("*")):
        name = re.sub(r"^\d{8}-\d{6}-", "", str(path.relative_to(place / "runs")))
        if path.name in ("metrics.jsonl", "rows.jsonl") or (path.parent.name == "evals" and path.suffix == ".jsonl"):
            found[name] = rows(path.read_bytes())
        elif path.name.endswith(".jsonl.gz"):
            found[name] = rows(gzip.decompress(path.read_bytes()))
        elif path.suffix == ".safetensors":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def rows(data: bytes) -> list[Any]:
    return [renamed(json.loads(line)) for line in data.splitlines()]


def renamed(value: Any) -> Any:
    """The value with every old name in its objects replaced."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): renamed(inner) for key, inner in value.items()}
    return [renamed(inner) for inner in value] if isinstance(value, list) else value


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """A line for each file that is not in both, or not the same."""
    return [
        f"{name}: {'only in one' if (name in old) != (name in new) else 'differs'}"
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name] != new[name]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("places", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.places[0])
        return
    old, new = map(contents, arguments.places)
    found = differences(old, new)
    print("\n".join(found) or f"{len(new)} files are the same")
    raise SystemExit(bool(found) or not new)


if __name__ == "__main__":
    main()
