"""The verdicts on kept runs, as they are committed: studies/doctor/verdicts/whet.json.

python -m studies.doctor.results histories.jsonl.gz --to studies/doctor/verdicts/whet.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.doctor import histories
from studies.doctor.histories import Trained
from studies.doctor.judge import PARTS, as_json, repair_summary, repairs, result, summary, verdict
from studies.doctor.training import CASES, advice


def judged(runs: Sequence[Trained]) -> dict[str, Any]:
    """Verdicts, held-out results and repairs of all runs, and the numbers of each part."""
    mine = [one for one in runs if one.case in CASES]
    plain = [one for one in mine if not one.changes]
    verdicts = [verdict(one) for one in plain]
    said = {(one.case, one.seed): advice(one) for one in plain if CASES[one.case].is_repairable}
    tried = repairs(mine, said)
    parts = {
        part: {
            "verdicts": summary([one for one in verdicts if one.part == part]),
            "repairs": repair_summary([one for one in tried if one.part == part]),
        }
        for part in PARTS
    }
    rows = []
    for one, said_of in zip(plain, verdicts, strict=True):
        ends = result(one)
        rows.append({**as_json(said_of), "ended": one.ended, "result": None if ends is None else ends[0]})
    return {"parts": parts, "runs": rows, "repairs": [as_json(one) for one in tried]}


def rowwise(found: Mapping[str, Any]) -> str:
    """JSON in which every row of a list has a line."""
    sections = []
    for name, content in found.items():
        rows = content if isinstance(content, list) else None
        text = json.dumps(content, ensure_ascii=False)
        if rows:
            text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
        sections.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(sections) + "}\n"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("histories", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args(arguments)
    found = judged(histories.read(options.histories))
    options.to.parent.mkdir(parents=True, exist_ok=True)
    options.to.write_text(rowwise(found), "utf-8")
    sys.stdout.write(json.dumps(found["parts"], indent=1) + "\n")
    for row in found["runs"]:
        wrong = row["faulty"] and (row["rank"] is None or row["rank"] > 2)
        if wrong or (not row["faulty"] and row["alarms"]):
            sys.stdout.write(f"{row['case']} {row['seed']}: {row['alarms']} → {row['causes'][:3]}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
