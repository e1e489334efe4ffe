"""docs/performance.md: the prose of a template, and in its marked places the newest result of each kind.

`python -m bench.table docs/performance.template.md docs/performance.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import roofline
from bench.command import run_command
from bench.job import Workload
from bench.results import RESULTS, newest_results
from bench.shapes import SHAPES
from whet.errors import UserError

NOTICE = "<!-- Written by `make docs` from performance.template.md and bench/results. Change those. -->\n"
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)
EARLIER = Path(__file__).with_name("earlier.json")
ROLLOUTS = (
    *("group-smollm2", "group-qwen3", "group-qwen3-1.7b", "group-qwen3-4b", "group-qwen3-8b"),
    *("mixed-smollm2", "mixed-qwen3"),
)
STEPS = ("step-smollm2",)
ADAPTERS = ("lora-step-qwen3-1.7b", "lora-step-qwen3-4b", "lora-step-qwen3-8b")
BESIDE = ("asynchronous-smollm2", "asynchronous-qwen3")
CPU = ("cpu-2x4x32", "cpu-4x8x64", "cpu-lora-2x4x32")
DRIFT_STEPS = 50  # over which sampler and trainer may not drift apart
WATCHED = "mixed-qwen3"  # the rollout whose kernels are shown
GOAL = 30_000  # tokens a second in it
KERNEL_LETTERS = 72  # of a kernel's name; templates have names of several lines
DAGGER = "†"  # measured earlier
NONE = "–"
GIBI = 2**30

Results = Mapping[str, dict[str, Any]]


def render(template: str, results: Results, earlier: Mapping[str, Any]) -> str:
    """The page: every marked line of the template gives way to a table."""
    wanted = set(MARK.findall(template))
    if wanted != set(PARTS):
        raise UserError(f"the template marks {sorted(wanted)}, but there is {sorted(PARTS)}")
    return NOTICE + MARK.sub(lambda mark: "\n".join(PARTS[mark[1]](results, earlier)), template)


def rollouts(results: Results, earlier: Mapping[str, Any]) -> Iterable[str]:
    """Output tokens a second of every side."""
    yield from _header(
        "workload", "model", "whet", "vLLM", "transformers", "whet / vLLM", "ms a step", "of the roofline", "peak"
    )
    for kind in ROLLOUTS:
        workload, _, model = kind.partition("-")
        known = earlier["rollouts"].get(kind, {})
        vllm, transformers = (_peer_speed(results.get(kind), name, known) for name in ("vllm", "transformers"))
        if kind not in results:
            yield _row(
                workload, SHAPES[model].title, "not measured yet", vllm[1], transformers[1], NONE, NONE, NONE, NONE
            )
            continue
        result = results[kind]
        whet = result["sides"]["whet"]
        figure, runs = whet["figure"], whet["runs"]
        speed = figure["tokens_per_second"]
        yield _row(
            workload,
            result["title"],
            f"**{speed:,.0f}** (first run {runs[0]['tokens'] / runs[0]['seconds']:,.0f})",
            vllm[1],
            transformers[1],
            NONE if vllm[0] is None else f"{speed / vllm[0]:.1f} ×",
            f"{figure['milliseconds_per_step']:.2f}",
            f"{figure['share_of_roofline']:.0%} of {result['limits']['ideal_tokens_per_second']:,.0f}"
            if _has_limits(result)
            else NONE,
            _gibi(runs[-1]["peak_bytes"]),
        )


def steps(results: Results, earlier: Mapping[str, Any]) -> Iterable[str]:
    """Seconds of a whole step of every system."""
    yield from _header("model", "system", "seconds a step", "first step", "peak", "training part, of 790 TFLOP/s")
    for kind in STEPS:
        model, known = SHAPES[kind.split("-")[1]].title, earlier["steps"][kind]
        result = results.get(kind)
        if result is None:
            yield _row(model, "whet", "not measured yet", NONE, NONE, NONE)
        for name in () if result is None else ("whet", "trl"):
            assert result is not None
            side = result["sides"][name]
            if "figure" not in side:
                continue
            figure = side["figure"]
            yield _row(
                model,
                "whet" if name == "whet" else f"TRL {result['versions']['trl']}{_with_vllm(side)}",
                f"**{figure['seconds']:.2f}**" if name == "whet" else f"{figure['seconds']:.1f}",
                _first(figure, side),
                _gibi(figure["peak_bytes"]),
                f"{figure['training_share']:.0%}" if "training_share" in figure and _has_limits(result) else NONE,
            )
        if result is None or "figure" not in result["sides"]["trl"]:
            yield _row(
                model,
                f"{known['title']} {DAGGER}",
                f"{known['seconds']:.1f}",
                NONE,
                f"{known['gibibytes']:.1f} GiB",
                NONE,
            )


def breakdown(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """Where whet's time goes."""
    yield from _header("what", "part", "seconds")
    rows = [row for kind in (*ROLLOUTS, *STEPS) if kind in results for row in _parts_of(kind, results[kind])]
    yield from rows or [_row("not measured yet", NONE, NONE)]


def adapters(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """Steps with LoRA by size of the model."""
    yield from _header("model", "a step", "rollout", "update", "update, of 790 TFLOP/s", "output tokens/s", "peak")
    for kind in ADAPTERS:
        if kind not in results:
            yield _row(kind.removeprefix("lora-step-"), "not measured yet", *[NONE] * 5)
            continue
        result = results[kind]
        figure, workload = result["sides"]["whet"]["figure"], result["workload"]
        tokens = workload["prompts"] * workload["group"] * workload["new_tokens"][1]
        rollout, update = figure["stages"]["rollout"], figure["stages"]["update"]
        yield _row(
            result["title"],
            *(f"{seconds:.1f} s" for seconds in (figure["seconds"], rollout, update)),
            f"{figure['training_share']:.0%}",
            f"{tokens / rollout:,.0f}",
            _gibi(figure["peak_bytes"]),
        )


def asynchronous(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """Steps whose rollouts are sampled in turn with the updates, and beside them."""
    yield from _header(
        "model", "tokens a step", "rollouts", "seconds a step", "waiting", "hand-off", "update", "trainer's peak", "GPU"
    )
    for kind in BESIDE:
        if kind not in results:
            yield _row(SHAPES[kind.partition("-")[2]].title, "not measured yet", *[NONE] * 7)
            continue
        workload = results[kind]["workload"]
        tokens = workload["prompts"] * workload["group"] * workload["new_tokens"][1]
        for name, side in results[kind]["sides"].items():
            figure, stages = side["figure"], side["figure"]["stages"]
            times = (stages.get(stage) for stage in ("waiting", "hand_off", "update"))
            yield _row(
                results[kind]["title"],
                f"{tokens:,}",
                name,
                f"**{figure['seconds']:.2f}** (mean {figure['mean_seconds']:.2f})",
                *(NONE if seconds is None else f"{seconds:.2f}" for seconds in times),
                _gibi(figure["peak_bytes"]),
                _gibi(figure["device_bytes"]),
            )


def kernels(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """What the device did in the workload that is furthest from its goal."""
    yield from _header("kernel", "runs", "seconds", "µs each")
    whet = results[WATCHED]["sides"]["whet"] if WATCHED in results else {}
    for row in whet.get("kernels", []) or [{"kernel": "not measured yet", "runs": 0, "seconds": 0.0}]:
        each = 1e6 * row["seconds"] / max(1, row["runs"])
        yield _row(f"`{row['kernel'][:KERNEL_LETTERS]}`", f"{row['runs']:,}", f"{row['seconds']:.3f}", f"{each:.1f}")
    if whet.get("kernels") and _has_limits(results[WATCHED]):
        yield from ("", _bound(results[WATCHED]))


def _bound(result: Mapping[str, Any]) -> str:
    """What attention alone allows in this workload, and what is left for the rest at GOAL tokens a second."""
    workload = Workload(**{k: tuple(v) if isinstance(v, list) else v for k, v in result["workload"].items()})
    lengths = [(len(prompt), new) for prompt, new in workload.requests()]
    whet = result["sides"]["whet"]
    last, attending = whet["runs"][-1], next(row["seconds"] for row in whet["kernels"] if row["kernel"] == "_attend")
    size = roofline.cache_bytes(SHAPES[WATCHED.partition("-")[2]].config, lengths, group=workload.group)
    others = sum(row["seconds"] for row in whet["kernels"]) - attending
    prefill, waiting = last["breakdown"]["prefill"], last["seconds"] - attending - others
    return (
        f"Attention reads {size / 1e12:.2f} TB of keys and values in {attending:.2f} s, "
        f"{size / attending / 1e12:.2f} of {roofline.BANDWIDTH / 1e12:.1f} TB/s. If all else took no time, "
        f"that would be {last['tokens'] / attending:,.0f} tokens/s. {GOAL:,} tokens/s would leave "
        f"{last['tokens'] / GOAL - attending:.2f} s for all else, which takes {last['seconds'] - attending:.2f} s: "
        f"{others:.2f} s of other kernels in {sum(row['runs'] for row in whet['kernels']):,} launches, and "
        f"{waiting:.2f} s in which the device waits. Reading the prompts is {prefill:.2f} s of it."
    )


def cpu(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """Whole steps and rollouts against TRL and transformers."""
    yield from _header(
        "prompts × group × new tokens",
        "whet, s a step",
        "TRL, s a step",
        "whet is faster by",
        "whet rollouts, tokens/s",
        "transformers, tokens/s",
        "by",
    )
    for kind in CPU:
        size = kind.removeprefix("cpu-").removeprefix("lora-").replace("x", " × ")
        size += ", LoRA of rank 16" if "lora" in kind else ""
        if kind not in results:
            yield _row(size, "not measured yet", *[NONE] * 5)
            continue
        figure = results[kind]["figure"]
        shown = {
            "whet_seconds": "{:.2f}",
            "trl_seconds": "{:.2f}",
            "step_ratio": "**{:.2f} ×**",
            "whet_rollout_tokens_per_second": "{:.0f}",
            "transformers_tokens_per_second": "{:.0f}",
            "rollout_ratio": "{:.2f} ×",
        }
        yield _row(size, *(_spread(figure.get(key), style) for key, style in shown.items()))


def learning(results: Results, _: Mapping[str, Any]) -> Iterable[str]:
    """Held-out accuracy before and after, of every seed."""
    yield from _header("seed", "before", "after", "gained", "steps", "seconds", "30 points after")
    if "learning" not in results:
        yield _row("not measured yet", *[NONE] * 6)
        return
    for seed, points in results["learning"]["sides"]["whet"]["curves"].items():
        first, last = points[0], points[-1]
        reached = next((f"{p['seconds']:.0f} s" for p in points if p["accuracy"] >= first["accuracy"] + 0.3), NONE)
        yield _row(
            seed,
            _interval(first),
            _interval(last),
            f"**{100 * (last['accuracy'] - first['accuracy']):+.1f}**",
            f"{last['step']}",
            f"{last['seconds']:.0f}",
            reached,
        )
    yield from ("", "![Held-out accuracy over seconds, one line for each seed](learning.png)", "")
    yield from _header("run", "mismatch at step 1", f"mean of steps 1–{DRIFT_STEPS}", "at the last step")
    for seed, apart in results["learning"]["sides"]["whet"]["mismatch"].items():
        mean = sum(apart[:DRIFT_STEPS]) / len(apart[:DRIFT_STEPS])
        yield _row(f"seed {seed}", *(f"{number:.4f}" for number in (apart[0], mean, apart[-1])))


def _interval(point: Mapping[str, float]) -> str:
    return f"{point['accuracy']:.1%} ({100 * point['low']:.1f}–{100 * point['high']:.1f})"


def sources(results: Results, earlier: Mapping[str, Any]) -> Iterable[str]:
    """Machine, versions, commit and command of every result on the page."""
    for kind in (*ROLLOUTS, *STEPS, *ADAPTERS, *BESIDE, "learning", *CPU):
        if kind not in results:
            continue
        result = results[kind]
        facts = result["machine"]
        place = facts["gpu"] if "gpu" in facts else f"{facts['processor']}, {facts['threads']} threads"
        installed = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if number[0].isdigit())
        notes = "".join(f" ({note})" for note in result.get("notes", ()))
        yield (
            f"- `{kind}`: {result['date'][:10]}, {place}; {installed}; commit `{result['commit'][:12]}`; "
            f"`{result['command']}`{notes}"
        )
    yield f"- {DAGGER} measured earlier on the same kind of machine ({earlier['machine']}): {earlier['versions']}."


PARTS: dict[str, Callable[[Results, Mapping[str, Any]], Iterable[str]]] = {
    "rollouts": rollouts,
    "steps": steps,
    "adapters": adapters,
    "asynchronous": asynchronous,
    "breakdown": breakdown,
    "kernels": kernels,
    "learning": learning,
    "cpu": cpu,
    "sources": sources,
}


def _peer_speed(result: dict[str, Any] | None, name: str, known: Mapping[str, float]) -> tuple[float | None, str]:
    """Tokens a second of a peer, and how the page shows them: from the same run, or from earlier."""
    side = {} if result is None else result["sides"][name]
    if "figure" in side:
        speed = side["figure"]["tokens_per_second"]
        return speed, f"{speed:,.0f}"
    if name in known:
        return known[name], f"{known[name]:,.0f} {DAGGER}"
    return None, NONE


def _parts_of(kind: str, result: dict[str, Any]) -> Iterable[str]:
    whet = result["sides"]["whet"]
    if kind in ROLLOUTS:
        last = whet["runs"][-1]
        what = f"{kind.split('-', maxsplit=1)[0]}, {result['title']}"
        parts = {**last["breakdown"], "text (also in the whole)": last["text_seconds"], "whole": last["seconds"]}
    else:
        what = f"step, {result['title']}"
        passes = result["passes"]["runs"][-1]["breakdown"]
        parts = {
            **whet["figure"]["stages"],
            "whole": whet["figure"]["seconds"],
            **{f"update alone: {name}": seconds for name, seconds in passes.items()},
        }
    for index, (name, seconds) in enumerate(parts.items()):
        yield _row(what if index == 0 else "", name, f"{seconds:.3f}")


def _first(figure: Mapping[str, float], side: Mapping[str, Any]) -> str:
    """The first step and, where it is known, the time from the start of the loop to its end."""
    whole = side.get("start_to_first_step_seconds")
    return f"{figure['first_seconds']:.1f}" + ("" if whole is None else f" ({whole:.1f} from the start)")


def _with_vllm(side: Mapping[str, Any]) -> str:
    return " + vLLM" if side["settings"]["use_vllm"] else ""


def _has_limits(result: Mapping[str, Any]) -> bool:
    """Whether it was measured on the machine that the limits are of."""
    return "H200" in result["machine"].get("gpu", "")


def _gibi(size: int | None) -> str:
    return NONE if size is None else f"{size / GIBI:.1f} GiB"


def _spread(one: Mapping[str, float] | None, style: str) -> str:
    if one is None:
        return NONE
    return f"{style.format(one['median'])} ({one['low']:.3g}–{one['high']:.3g})"


def _header(*columns: str) -> tuple[str, str]:
    return _row(*columns), "|" + "---|" * len(columns)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> None:
    """Reads the template and the results, writes the page."""
    if len(arguments) not in (2, 3):
        raise UserError("give the template, the page and perhaps a folder of results: python -m bench.table A.md B.md")
    template, page, *folder = (Path(argument) for argument in arguments)
    results = newest_results(folder[0] if folder else RESULTS)
    earlier = json.loads(EARLIER.read_text("utf-8"))
    page.write_text(render(template.read_text("utf-8"), results, earlier), "utf-8")


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
