"""docs/planning.md: the prose of a template, what fits on which GPU by formula, and predictions beside measurements.

`python -m pages.planning docs/planning.template.md docs/planning.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.results import RESULTS, newest_results
from pages.markdown import header, row_line
from whet.config.loops import Training
from whet.errors import UserError
from whet.models.decoder.known_shapes import KNOWN_SHAPES, require_shape
from whet.models.layers.decoder_config import parameter_count
from whet.recipe import read_recipe
from whet.train.plan.advice import EFFECTS, MICRO_BATCH, ROUNDED, SLOTS, advise
from whet.train.plan.gpus import GPUS
from whet.train.plan.planning import Plan
from whet.train.plan.recipe_plan import ample, plan_config
from whet.train.plan.run_shapes import RunShapes, run_shapes
from whet.train.plan.token_lengths import Lengths, token_lengths

NOTICE = "<!-- Written by `make docs` from planning.template.md, the formulas and bench/results. Change those. -->\n"
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)
GIBI = 2**30
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen2.5-3b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
CARDS = {"4090": "24 GB (4090)", "a6000": "48 GB (A6000)", "h100": "80 GB (H100)", "h200": "141 GB (H200)"}
METHODS = {"full": "", "LoRA": "model.lora=16", "QLoRA": "model.lora={rank: 16, quantization: nf4}"}
PROMPT = 256  # tokens
RECIPE = ("task=arithmetic", "eval.every_steps=0")
WORDS = {
    "model.gradient_checkpointing=true": "checkpointing",
    "optimizer.master_weights=offload": "offload",
    "optimizer.name=adamw_bf16": "bf16 moments",
    "optimizer.master_weights=bf16": "bf16 weights",
}

Results = Mapping[str, dict[str, Any]]


def render(template: str, results: Results) -> str:
    """The page: every marked line of the template gives way to a table."""
    wanted = set(MARK.findall(template))
    if wanted != set(PARTS):
        raise UserError(f"the template marks {sorted(wanted)}, but there is {sorted(PARTS)}")
    return NOTICE + MARK.sub(lambda mark: "\n".join(PARTS[mark[1]](results)), template)


def _one(_: Results) -> Iterable[str]:
    return _fitting(1)


def _four(_: Results) -> Iterable[str]:
    return _fitting(4)


def _fitting(gpus: int) -> Iterable[str]:
    """Seconds of a step of every model and method on every GPU, and with which changes."""
    yield from header("model", "method", *(f"{gpus} × {title}" if gpus > 1 else title for title in CARDS.values()))
    for name in MODELS:
        for method, override in METHODS.items():
            config = workload(name, [override] if override else [])
            yield row_line(name, method, *(_cell(config, card, gpus) for card in CARDS))


def workload(name: str, overrides: Sequence[str]) -> Training:
    """The recipe of the tables for one model."""
    config = read_recipe("grpo", [f"model.path={name}", *RECIPE, *overrides]).config
    assert isinstance(config, Training)
    return config


def _cell(config: Training, card: str, gpus: int) -> str:
    shapes, gpu = run_shapes(config, None), GPUS[card]
    lengths = token_lengths(config, shapes, (), prompt=PROMPT)
    plan = plan_config(config, shapes, lengths, gpu, gpus)
    if plan.fits:
        return f"**{_seconds(plan.seconds.step)}**"
    return _changed(config, shapes, lengths, card, gpus)


def _changed(config: Training, shapes: RunShapes, lengths: Lengths, card: str, gpus: int) -> str:
    """The change that fits and alters the result least, among those that keep the method."""

    def plan_of(other: Training) -> Plan:
        return plan_config(other, shapes, lengths, GPUS[card], gpus)

    seconds = plan_config(config, shapes, lengths, ample(GPUS[card]), gpus).seconds.step
    kept = EFFECTS[: ROUNDED + 1]
    found = [one for one in advise(config, plan_of, seconds=seconds) if one.effect in kept]
    if not found:
        return "–"
    return f"{_seconds(found[0].seconds)}: {', '.join(map(_word, found[0].overrides))}"


def _word(override: str) -> str:
    """An override in a word or two."""
    key, _, value = override.partition("=")
    numbers = {MICRO_BATCH: f"micro-batches of {value}", SLOTS: f"{value} slots"}
    return numbers.get(key) or WORDS[override]


def _shapes(_: Results) -> Iterable[str]:
    """The well-known models by name."""
    yield from header("name", "parameters")
    yield from (row_line(f"`{name}`", f"{parameter_count(require_shape(name)[1]):,}") for name in KNOWN_SHAPES)


def _gpus(_: Results) -> Iterable[str]:
    yield from header("name", "memory", "bandwidth", "bf16 arithmetic", "to the host", "price an hour")
    for gpu in GPUS.values():
        yield row_line(
            f"`{gpu.name}`",
            f"{gpu.memory / GIBI:.1f} GiB",
            f"{gpu.bandwidth / 1e12:.2f} TB/s",
            f"{gpu.flops / 1e12:.0f} TFLOP/s",
            f"{gpu.host_bandwidth / 1e9:.0f} GB/s",
            f"${gpu.price:g}",
        )


def _measured(results: Results) -> Iterable[str]:
    """Predictions beside measurements, and their errors."""
    result = results.get("plan")
    if result is None:
        yield "There is no result file of `python -m bench.plan` in bench/results yet."
        return
    sides, cases = result["sides"], result["workload"]
    found = {name: pair for name, side in sides.items() if (pair := _errors(side)) is not None}
    yield f"{_device(result)}, {result['date'][:10]}: {_summary(found, cases)}"
    verdicts = [one for side in sides.values() for one in side.get("verdicts", {}).values()]
    if verdicts:
        right = sum(one["ran"] == one["expected"] for one in verdicts)
        yield (
            f"In processes with less memory than the predicted peak and with as much as the predicted need, {right} of "
            f"{len(verdicts)} ended as predicted."
        )
    yield ""
    columns = ("GiB predicted", "GiB measured", "error", "s a step predicted", "s measured", "error")
    yield from header("configuration", *columns)
    for name, side in sides.items():
        if name not in found:
            yield row_line(name, *(["–"] * 6))
            continue
        memory, seconds = found[name]
        yield row_line(
            f"{name}{'' if _checks(cases, name) else ' ¹'}",
            f"{side['peak_bytes'] / GIBI:.2f}",
            f"{max(side['measured']['peak_bytes'].values()) / GIBI:.2f}",
            f"{memory:+.1%}",
            f"{side['step_seconds']:.2f}",
            f"{side['measured']['step_seconds']:.2f}",
            f"{seconds:+.1%}",
        )
    if not all(_checks(cases, name) for name in sides):
        yield "\n¹ The shares of bandwidth and arithmetic were fitted to it; the others only check them."


def _checks(cases: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    """Whether the seconds of a configuration were predicted without it."""
    return bool(cases.get(name, {}).get("checks"))


def _errors(side: Mapping[str, Any]) -> tuple[float, float] | None:
    """Relative errors of the predicted peak and of the predicted seconds of a step; None if not measured."""
    measured = side.get("measured", {})
    peak = max(measured.get("peak_bytes", {}).values(), default=0)
    return (side["peak_bytes"] / peak - 1, side["step_seconds"] / measured["step_seconds"] - 1) if peak else None


def _summary(found: Mapping[str, tuple[float, float]], cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Median and worst errors, of the seconds only where they were not fitted."""
    if not found:
        return "nothing was measured."
    memory = [abs(pair[0]) for pair in found.values()]
    seconds = [abs(pair[1]) for name, pair in found.items() if _checks(cases, name)]
    text = f"peak memory of {len(found)} configurations: median error {median(memory):.1%}, worst {max(memory):.1%}"
    if seconds:
        text += f"; seconds of the {len(seconds)} that nothing was fitted to: median {median(seconds):.1%}, "
        text += f"worst {max(seconds):.1%}"
    return f"{text}."


def _device(result: Mapping[str, Any]) -> str:
    return str(result["machine"].get("gpu") or result["machine"].get("processor") or "unknown machine")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


PARTS: dict[str, Callable[[Results], Iterable[str]]] = {
    "one": _one,
    "four": _four,
    "shapes": _shapes,
    "gpus": _gpus,
    "measured": _measured,
}


def main(arguments: Sequence[str]) -> None:
    """Reads the template and the results, writes the page."""
    template, page, *folder = (Path(argument) for argument in arguments)
    results = newest_results(folder[0] if folder else RESULTS)
    page.write_text(render(template.read_text("utf-8"), results), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
