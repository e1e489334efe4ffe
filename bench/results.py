"""Result files: one for each thing that was measured, with everything that a reader needs to repeat it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import ROOT, commit, machine_slug, versions
from whet.errors import UserError

RESULTS = ROOT / "bench" / "results"
KEYS = ("what", "title", "date", "machine", "versions", "commit", "command", "workload", "sides")


def write_result(directory: Path, facts: Mapping[str, Any], content: Mapping[str, Any], *, revision: str = "") -> Path:
    """Writes `what`-`machine`-`date`.json; `facts` are the machine's, `revision` a commit that git cannot tell."""
    moment = datetime.now(UTC).replace(microsecond=0)
    result = {
        **content,
        "date": moment.isoformat(),
        "machine": facts,
        "versions": versions(),
        "commit": revision or commit(),
        "command": command(sys.argv),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{content['what']}-{machine_slug(dict(facts))}-{moment:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def newest_results(directory: Path) -> dict[str, dict[str, Any]]:
    """The latest result of each kind; quick runs prove that the code works and are no results."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.json")):
        result = read_result(path)
        if result["quick"]:
            continue
        known = newest.get(result["what"])
        if known is None or result["date"] > known["date"]:
            newest[result["what"]] = result
    return newest


def read_result(path: Path) -> dict[str, Any]:
    """A result file, checked for what the page needs."""
    try:
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}; measure again or delete it") from None
    absent = [key for key in (*KEYS, "quick") if key not in result]
    if absent:
        raise UserError(f"{path} has no {', '.join(absent)}: it is no result of this version; measure again")
    return result


def command(argv: Sequence[str]) -> str:
    """What was typed; of absolute paths only the last part, for the rest is of one machine."""
    program, *arguments = argv
    path = Path(program).resolve()
    module = f"-m bench.{path.stem}" if path.parent == ROOT / "bench" else path.name
    plain = [Path(argument).name if argument.startswith("/") else argument for argument in arguments]
    return f"python {module} {shlex.join(plain)}".strip()
