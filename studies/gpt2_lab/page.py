"""Writes docs/gpt2-lab.md and its figure from results.json beside this file and from bench/results.

python -m studies.gpt2_lab.page docs/gpt2-lab.template.md docs/gpt2-lab.md
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bench.results import RESULTS as BENCHES
from bench.results import read_result
from studies.gpt2_lab.run import ATTENTION, LABELS, MAIN, METHODS, MUON, RECIPES
from whet.report.figures import png

HERE = Path(__file__).resolve().parent
NOTICE = "<!-- Written by `python -m studies.gpt2_lab.page`: change docs/gpt2-lab.template.md instead. -->\n\n"
ORDERS = {1: "unigram", 2: "bigram", 3: "trigram"}
COLOURS = {"lm": "#2a6fbb", "grpo": "#c8553d", "ppo": "#8a5fb0", "denoise": "#3d8b5f"}
Result = Mapping[str, Any]


def language_models(results: Sequence[Result]) -> Iterator[str]:
    """Runs of the packaged recipes for language modelling."""
    yield "| recipe | seed | steps | held-out loss, nats | bits per character | accuracy | seconds of steps |"
    yield "|---|---|---|---|---|---|---|"
    for result in sorted(results, key=lambda one: (str(one["method"]), int(one["seed"]))):
        if result["method"] in RECIPES:
            after = result["after"]
            numbers = (after["eval/loss"], after["eval/bits_per_character"], 100 * after["eval/token_accuracy"])
            shown = "{:.3f} | {:.3f} | {:.1f} %".format(*numbers)
            about = f"{result['method']} | {result['seed']} | {after['step']:,}"
            yield f"| {about} | {shown} | {result['seconds_of_steps']:.0f} ({result['machine']['device']}) |"


def speeds() -> Iterator[str]:
    """The measurements of GPT-2 124M, the oldest first."""
    yield "| side | tokens/s | MFU of 989 TFLOP/s | peak memory | command |"
    yield "|---|---|---|---|---|"
    for path in sorted(BENCHES.glob("language-model-gpt2-124m-*.json")):
        found = read_result(path)
        for name, side in found["sides"].items():
            memory = side["peak_bytes"] / 2**30
            speed = f"{side['tokens_per_second']:,.0f} | {side['mfu']:.1%} | {memory:.0f} GiB"
            yield f"| {name} | {speed} | `{found['command'].split(' --out')[0]}` |"
    yield ""
    yield "Windows of 1,024 tokens, random tokens and weights."


def latent() -> Iterator[str]:
    """KV bytes, speed and memory of multi-head, grouped-query and latent attention."""
    found = read_result(max(BENCHES.glob("latent-attention-*.json")))
    contexts = found["workload"]["contexts"]
    speeds_at = " | ".join(f"tokens/s at {context:,}" for context in contexts)
    yield f"| attention | KV bytes a token | {speeds_at} | memory at {contexts[-1]:,} |"
    yield "|---|---|" + "---|" * (len(contexts) + 1)
    for name, side in found["sides"].items():
        cells = [f"{side['contexts'][str(c)]['tokens_per_second']:,.0f}" for c in contexts]
        memory = side["contexts"][str(contexts[-1])]["peak_bytes"] / 2**30
        yield f"| {LABELS[name]} | {side['kv_bytes_per_token']:,} | {' | '.join(cells)} | {memory:.1f} GiB |"


def attention(results: Sequence[Result]) -> Iterator[str]:
    """Held-out loss of three kinds of attention at equal parameters, and of Muon beside AdamW if it was trained."""
    measured = {one["method"] for one in results}
    named = {name: method for name, method in {**ATTENTION, **MUON}.items() if name in measured}
    yield "| model | optimizer | seeds | held-out loss, nats | mean |"
    yield "|---|---|---|---|---|"
    for name, method in named.items():
        own = sorted((one for one in results if one["method"] == name), key=lambda one: int(one["seed"]))
        losses = [one["after"]["eval/loss"] for one in own]
        seeds = ", ".join(str(one["seed"]) for one in own)
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        optimizer = "Muon" if name in MUON else "AdamW"
        yield f"| {method.about} | {optimizer} | {seeds} | {shown} | {sum(losses) / len(losses):.3f} |"
    yield ""
    yield f"`python -m studies.gpt2_lab.run --only {','.join(named)} --runs DIR --to FILE`, one H200."


def samples(found: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A text from each way of sampling, with its command."""
    for one in found:
        yield f"{one['about'].capitalize()}: `{one['command']}`"
        yield ""
        yield from ("```text", *one["text"].splitlines(), "```")
        yield ""


def comparison(results: Sequence[Result], baselines: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Methods on one model and text: the ends of their runs."""
    yield "| method | seeds | targets a step | steps | accuracy, % | best | bits per character |"
    yield "|---|---|---|---|---|---|---|"
    for one in baselines:
        bits = one["loss"] / math.log(2)
        yield f"| {ORDERS[int(one['order'])]} | – | – | – | {100 * one['accuracy']:.1f} | – | {bits:.2f} |"
    for name, method in METHODS.items():
        own = sorted((one for one in results if one["method"] == name), key=lambda one: int(one["seed"]))
        if own and "curves" in own[0]:
            yield f"| {method.about} | {_ends(own)} |"
    yield ""
    yield "Accuracy: held-out characters that are the likeliest, by seed, at the end and at the best evaluation."
    yield "A denoising model has none, and its bits are a bound."


def _ends(own: Sequence[Result]) -> str:
    accuracy = [_last(one, "eval/token_accuracy", 100.0) for one in own]
    best = [100 * max((v for _, v in one["curves"]["eval/token_accuracy"]), default=math.nan) for one in own]
    bits = [
        _last(one, "eval/bits_per_character", 1.0)
        if one["curves"]["eval/bits_per_character"]
        else _last(one, "eval/bound_bits_per_character", 1.0)
        for one in own
    ]
    seeds = ", ".join(str(one["seed"]) for one in own)
    shown = [", ".join("–" if math.isnan(v) else f"{v:.1f}" for v in some) for some in (accuracy, best)]
    steps = max(step for step, _ in next(filter(None, own[0]["curves"].values())))
    return (
        f"{seeds} | {own[0]['targets']:,} | {steps} | {shown[0]} | {shown[1]} | {', '.join(f'{v:.2f}' for v in bits)}"
    )


def _last(result: Result, metric: str, scale: float) -> float:
    curve = result["curves"][metric]
    return scale * curve[-1][1] if curve else math.nan


def picture(results: Sequence[Result], baselines: Sequence[Mapping[str, float]]) -> bytes:
    """Accuracy and bits per character over targets and FLOPs: medians of the seeds, bands from lowest to highest."""
    results = finished(results)
    figure = Figure(figsize=(9.0, 6.4), dpi=150, layout="constrained")
    panels = figure.subplots(2, 2)
    measured = (("eval/token_accuracy", 100.0, "accuracy, %"), ("eval/bits_per_character", 1.0, "bits per character"))
    for row, (metric, scale, label) in zip(panels, measured, strict=True):
        for axes, cost, title in zip(
            row, ("targets", "flops_per_weight"), ("targets seen", "FLOPs per weight"), strict=True
        ):
            for one in baselines:
                level = 100 * one["accuracy"] if scale > 1 else one["loss"] / math.log(2)
                axes.axhline(level, color="#999999", linewidth=0.8, linestyle="--")
                axes.annotate(ORDERS[int(one["order"])], (1.0, level), xycoords=("axes fraction", "data"), fontsize=7)
            for name in MAIN:
                _draw(axes, [r for r in results if r["method"] == name], metric, scale, cost, name)
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(title, fontsize=8)
            axes.set_ylabel(f"held-out {label}", fontsize=8)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
    panels[1][0].legend(fontsize=7, frameon=False, loc="lower left")
    return png(figure)


def _draw(axes: Axes, own: Sequence[Result], metric: str, scale: float, cost: str, name: str) -> None:
    curves = [
        dict(one["curves"].get(metric) or one["curves"].get("eval/bound_bits_per_character") or []) for one in own
    ]
    if not own or (metric == "eval/token_accuracy" and not own[0]["curves"][metric]):
        return
    steps = sorted(set.intersection(*(set(curve) for curve in curves)) - {0})
    values = [sorted(scale * curve[step] for curve in curves) for step in steps]
    places = [step * own[0][cost] for step in steps]
    label = METHODS[name].about + (" (bound)" if name == "denoise" else "")
    axes.plot(places, [some[len(some) // 2] for some in values], color=COLOURS[name], label=label)
    axes.fill_between(
        places, [some[0] for some in values], [some[-1] for some in values], color=COLOURS[name], alpha=0.2
    )


def finished(results: Sequence[Result]) -> list[Result]:
    """The results of runs that did not fail."""
    return [one for one in results if "failed" not in one]


def page(template: str, content: Mapping[str, Any]) -> str:
    """The page, with every table in its place."""
    results = finished(content["results"])
    parts = {
        "lm": language_models(results),
        "speed": speeds(),
        "mla": latent(),
        "attention": attention(results),
        "samples": samples(json.loads((HERE / "samples.json").read_text("utf-8"))),
        "rl": comparison(results, content["baselines"]),
    }
    for name, lines in parts.items():
        template = template.replace(f"{{{{ {name} }}}}", "\n".join(lines))
    return NOTICE + template


def main(arguments: Sequence[str]) -> None:
    template, to = map(Path, arguments)
    content = json.loads((HERE / "results.json").read_text("utf-8"))
    to.write_text(page(template.read_text("utf-8"), content), "utf-8")
    to.with_suffix(".png").write_bytes(picture(content["results"], content["baselines"]))


if __name__ == "__main__":
    main(sys.argv[1:])
