"""Predictions of `whet plan` beside measurements on one GPU: `python -m bench.plan [--only NAME] [--skip NAME]`.

Every configuration is a process of its own, with random weights made on the GPU and a few steps of the real loop. Peak
memory is read at every moment of a step. The result file is written after each configuration. Configurations with
`limits` run twice more in processes whose memory is limited: below the predicted need, where they must fail, and above
it, where they must not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.command import run_command
from bench.machine import ROOT, machine
from bench.plan_cases import CASES, QUICK, Case
from bench.plan_steps import GO, config_of, predicted, prediction
from bench.results import RESULTS, read_result, write_result
from whet.errors import UserError
from whet.train.plan.peaks import CONTEXT_BYTES

STEPS = 3  # the first is apart
LONGEST = 120  # seconds of a process; more is a hang
TOO_LITTLE, ENOUGH = 0.90, 1.0  # of the predicted peak, and of the predicted need
GIBI = 2**30


def main(arguments: Sequence[str]) -> None:
    """Measures the configurations that were asked for."""
    options = _options(arguments)
    if options.again:
        print(summary(again(options.again, options.out)), flush=True)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.quick:
        raise UserError("torch finds no CUDA device: run this on a GPU machine, or try it out with --quick")
    known = QUICK if options.quick else CASES
    cases = [case for case in known if _is_meant(case.name, options.only, options.skip)]
    cases = [case for case in cases if case.limits or not options.limits_only]
    if not cases:
        raise UserError(f"no configuration is left: there are {', '.join(case.name for case in known)}")
    content: dict[str, Any] = {"what": "plan", "title": "plan", "quick": options.quick, "workload": {}, "sides": {}}
    written: Path | None = None
    with TemporaryDirectory(prefix="bench-") as name:
        place = Path(name)
        following = started(cases[0], device, place / "0", options.steps, memory=None)
        for number, case in enumerate(cases):
            steps, begun = following, time.perf_counter()
            if number + 1 < len(cases):
                following = started(cases[number + 1], device, place / str(number + 1), options.steps, memory=None)
            if options.limits_only:
                steps.end()
                found = predicted(case, device)
                found["verdicts"] = verdicts(case, device, steps.place, found)
            else:
                found = measured_case(case, device, steps, limits=not options.no_limits)
            content["sides"][case.name] = {**found, "wall_seconds": time.perf_counter() - begun}
            print(line(case.name, content["sides"][case.name]), flush=True)
            content["workload"][case.name] = asdict(case)
            new = write_result(options.out, machine(device), content, revision=options.commit)
            if written is not None and written != new:
                written.unlink()
            written = new
    print(summary(content["sides"]), written, sep="\n", flush=True)


def again(files: Sequence[Path], out: Path) -> dict[str, Any]:
    """Result files as one, with predictions by the formulas of now; later measurements and limits replace earlier."""
    known = {case.name: case for case in CASES}
    results = [read_result(file) for file in files]
    sides: dict[str, dict[str, Any]] = {}
    for result in results:
        for name in known.keys() & result["sides"].keys():
            side = result["sides"][name]
            sides[name] = side if "missing" in side else {**sides.get(name, {}), **side}
    for name, side in sides.items():
        with TemporaryDirectory(prefix="bench-") as place:
            config = config_of(known[name], "cuda", Path(place), steps=1, tokenizer=False)
        sides[name] = {**side, **prediction(known[name], config, side["gpu"])}
    newest = max(results, key=lambda result: str(result["date"]))
    ordered = {name: sides[name] for name in known if name in sides}
    commands = dict.fromkeys(str(result["command"]) for result in results)
    content = {
        **newest,
        "command": " && ".join(commands),
        "sides": ordered,
        "workload": {name: asdict(known[name]) for name in ordered},
    }
    path = out / Path(files[-1]).name
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return ordered


def _is_meant(name: str, only: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether a part of the name was asked for, and none left out."""
    return (not only or any(one in name for one in only)) and not any(one in name for one in skip)


def measured_case(case: Case, device: str, steps: Steps, *, limits: bool) -> dict[str, Any]:
    """The prediction and the measurement of one configuration; what breaks is said and ends nothing."""
    try:
        found = predicted(case, device)
    except (UserError, ValueError) as error:
        steps.end()
        return {"missing": f"not predicted: {' '.join(str(error).split())[:300]}"}
    answer = steps.answer()
    if "missing" in answer:
        return {**found, **answer}
    whole = {**found, "measured": figures(answer)}
    if limits and case.limits:
        whole["verdicts"] = verdicts(case, device, steps.place, found)
    return whole


def verdicts(case: Case, device: str, place: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the configuration ran below the predicted peak and within the predicted need, and whether it should."""
    limits = {
        "too little": (int(TOO_LITTLE * found["peak_bytes"]), False),
        "enough": (int(ENOUGH * found["needed_bytes"]) - CONTEXT_BYTES, True),
    }
    runs = {
        what: started(case, device, place / what.replace(" ", "-"), 2, memory=size)
        for what, (size, _) in limits.items()
    }
    if device == "cuda" and sum(size for size, _ in limits.values()) < torch.cuda.mem_get_info()[0]:
        for run in runs.values():
            run.go()  # both at once: their memory is limited, and their seconds are not read
    answers = {what: run.answer() for what, run in runs.items()}
    return {
        what: {
            "memory_bytes": size,
            "expected": fits,
            "ran": "missing" not in answers[what],
            "said": answers[what].get("missing", ""),
        }
        for what, (size, fits) in limits.items()
    }


@dataclass(frozen=True, slots=True)
class Steps:
    """A process that makes the steps of a configuration; it does not touch the GPU before it is told to."""

    process: subprocess.Popen[bytes]
    place: Path

    def go(self) -> None:
        """Lets it start."""
        (self.place / GO).touch()

    def answer(self) -> dict[str, Any]:
        """What it measured, or what it said at its end."""
        self.go()
        try:
            self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.end()
        answered = self.place / "answer.json"
        if answered.is_file():
            answer: dict[str, Any] = json.loads(answered.read_text("utf-8"))
            return answer
        log = (self.place / "log.txt").read_text("utf-8", errors="replace")
        lines = [one.strip() for one in log.splitlines() if one.strip()]
        said = " / ".join(lines[-3:]).replace(f"{Path(__file__).parents[1]}/", "")
        return {"missing": said[:600] or "ended without a word"}

    def end(self) -> None:
        """Stops it, wherever it is."""
        self.process.kill()
        self.process.wait()


def started(case: Case, device: str, place: Path, steps: int, *, memory: int | None) -> Steps:
    """The process for a configuration: it loads its libraries while another one measures."""
    place.mkdir(parents=True)
    asked = place / "job.json"
    asked.write_text(json.dumps({"case": asdict(case), "device": device, "steps": steps, "memory": memory}), "utf-8")
    command = [sys.executable, "-m", "bench.plan_steps", str(asked), str(place / "answer.json")]
    with (place / "log.txt").open("wb") as output:
        return Steps(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output), place)


def figures(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The steps after the first: the most memory and the median seconds of each moment."""
    later = answer["steps"][1:] or answer["steps"]
    moments = list(later[0]["seconds"])
    return {
        "peak_bytes": {name: max(step["peak_bytes"].get(name, 0) for step in later) for name in moments},
        "reserved_bytes": answer["reserved_bytes"],
        "seconds": {name: median([step["seconds"][name] for step in later]) for name in moments},
        "step_seconds": median([step["step_seconds"] for step in later]),
        "first_seconds": answer["steps"][0]["step_seconds"],
        "start_seconds": answer["start_seconds"],
        "slots": answer["slots"],
    }


def errors(side: Mapping[str, Any]) -> tuple[float, float] | None:
    """Relative errors of the predicted peak and of the predicted seconds of a step; None if not measured."""
    if "measured" not in side or not max(side["measured"]["peak_bytes"].values()):
        return None
    peak = side["peak_bytes"] / max(side["measured"]["peak_bytes"].values()) - 1
    return peak, side["step_seconds"] / side["measured"]["step_seconds"] - 1


def line(name: str, side: Mapping[str, Any]) -> str:
    """One configuration on a line."""
    if "missing" in side:
        return f"{name}: {side['missing']}"
    ran = "".join(
        f"; {what}: {'as expected' if one['ran'] == one['expected'] else 'WRONG'}"
        for what, one in side.get("verdicts", {}).items()
    )
    if "measured" not in side:
        return f"{name}{ran}; wall {side['wall_seconds']:.0f} s"
    measured = side["measured"]
    seconds = f"{side['step_seconds']:.2f} s predicted, {measured['step_seconds']:.2f} s measured"
    peak = max(measured["peak_bytes"].values())
    memory = f"{side['peak_bytes'] / GIBI:.2f} GiB predicted, {peak / GIBI:.2f} measured"
    moments = ", ".join(
        f"{moment} {side['moments'].get(moment, 0) / GIBI:.2f}/{size / GIBI:.2f}"
        for moment, size in measured["peak_bytes"].items()
    )
    parts = ", ".join(
        f"{moment} {side['seconds'].get(moment, 0):.2f}/{value:.2f}" for moment, value in measured["seconds"].items()
    )
    return f"{name}: {memory}; {seconds}{ran}\n  GiB {moments}\n  s {parts}\n  wall {side['wall_seconds']:.0f} s"


def summary(sides: Mapping[str, Mapping[str, Any]]) -> str:
    """Median and worst errors, and the wrong verdicts."""
    found = [pair for side in sides.values() if (pair := errors(side)) is not None]
    lines = [f"{len(found)} of {len(sides)} configurations measured"]
    for index, what in enumerate(("memory", "seconds")):
        if found:
            sizes = [abs(pair[index]) for pair in found]
            lines.append(f"{what}: median error {median(sizes):.1%}, worst {max(sizes):.1%}")
    verdicts = [one for side in sides.values() for one in side.get("verdicts", {}).values()]
    wrong = sum(one["ran"] != one["expected"] for one in verdicts)
    return "\n".join([*lines, f"{len(verdicts)} verdicts, {wrong} wrong"])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.plan", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="configurations with this in their name")
    parser.add_argument("--skip", action="append", default=[], help="without configurations with this in their name")
    parser.add_argument("--steps", type=int, default=STEPS, help="at least 2; the first is apart")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--no-limits", action="store_true", help="without the runs in limited memory")
    limits.add_argument("--limits-only", action="store_true", help="nothing but the runs in limited memory")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="FILE", help="measure nothing: join result files and predict again"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the result file goes")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it works; also on a CPU")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        raise UserError(f"--steps is {options.steps}: the first step compiles, so at least 2 are needed")
    return options


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
