"""docs/scaling.md: the prose of a template, the simulator beside measurements, and steps on 8 to 1,024 GPUs.

`python -m pages.scaling docs/scaling.template.md docs/scaling.md` writes it; `make docs` does that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median

from bench.published_clusters import ENGINE_GPUS, FITTED, LOCAL_STEPS, POINTS, SIGMA, Point, predicted
from bench.results import RESULTS, newest_results
from bench.simulated import compared
from pages.markdown import header, row_line
from whet.errors import UserError
from whet.models.decoder.known_shapes import require_shape
from whet.train.plan.gpus import GPUS
from whet.train.plan.workload import Models, Work
from whet.train.simulation.best_split import best_outcomes, schedules
from whet.train.simulation.cluster import ETHERNET, INFINIBAND, NVLINK, OLDER, cluster_of
from whet.train.simulation.completion_lengths import log_normal
from whet.train.simulation.deployment import Deployment
from whet.train.simulation.outcome import Outcome

NOTICE = "<!-- Written by `make docs` from scaling.template.md, the simulator and bench/results. Change those. -->\n"
MARK = re.compile(r"^<!-- here: (\w+) -->$", re.MULTILINE)
MODELS = ("qwen3-8b", "qwen3-14b")
COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024)
BOUNDS = (1, 2, 4)
PROMPTS, GROUP, PROMPT, LONGEST = 256, 8, 256, 8192
MEDIAN, SPREAD = 1500, 0.8
GIGA = 10**9
GOAL = 0.1  # error of one GPU's seconds
PUBLISHED_GOAL = 0.25


def render(template: str, counts: Sequence[int] = COUNTS) -> str:
    """The page: every marked line of the template gives way to a table; `counts` are the numbers of GPUs."""
    parts = _parts(counts)
    wanted = set(MARK.findall(template))
    if wanted != set(parts):
        raise UserError(f"the template marks {sorted(wanted)}, but there is {sorted(parts)}")
    text = template.replace("{links}", _links()).replace("{fitted}", _fitted())
    return NOTICE + MARK.sub(lambda mark: "\n".join(parts[mark[1]]()), text)


def _parts(counts: Sequence[int]) -> dict[str, Callable[[], Iterable[str]]]:
    one = cache(partial(simulated, counts=tuple(counts)))
    return {
        "measured": _measured,
        "published": _published,
        "qwen3_8b": lambda: _table(one("qwen3-8b")),
        "qwen3_14b": lambda: _table(one("qwen3-14b")),
        "gains": lambda: _gains({name: one(name) for name in MODELS}),
    }


Simulated = dict[int, list[Outcome]]  # by number of GPUs


def simulated(name: str, counts: tuple[int, ...]) -> Simulated:
    """The schedules of the tables for one model."""
    deployment = Deployment(
        models=Models(policy=require_shape(name)[1], recompute=True),
        work=Work(loop="online", prompts=PROMPTS, group=GROUP, prompt=PROMPT, completion=LONGEST),
        prompt=PROMPT,
        lengths=log_normal(MEDIAN, SPREAD, LONGEST),
        cluster=cluster_of(GPUS["h200"]),
    )
    return {count: best_outcomes(deployment, count, schedules(BOUNDS)) for count in counts}


def _table(found: Simulated) -> Iterable[str]:
    yield from header("GPUs", *(one.schedule.name for one in next(iter(found.values()))))
    for count, outcomes in found.items():
        yield row_line(f"{count:,}", *map(_cell, outcomes))


def _cell(one: Outcome) -> str:
    if not one.fits:
        return "–"
    split = "" if one.split.colocated else f" ({one.split.trainer}:{one.split.rollout})"
    return f"{one.seconds:.0f} s{split}"


def _gains(models: dict[str, Simulated]) -> Iterable[str]:
    """How many times faster than colocated, by model and number of GPUs."""
    yield "How many times as fast as synchronous, colocated steps on the same GPUs:"
    yield ""
    yield from header(
        "model", "GPUs", *(f"S = {bound}" for bound in BOUNDS), "trainer idle, S = 1", "rollouts idle, S = 1"
    )
    for name, found in models.items():
        for count, (colocated, _, *asynchronous) in found.items():
            if colocated.fits and all(one.fits for one in asynchronous):
                faster = [f"{colocated.seconds / one.seconds:.2f}" for one in asynchronous]
                first = asynchronous[0]
                yield row_line(name, f"{count:,}", *faster, f"{first.trainer_idle:.0%}", f"{first.rollout_idle:.0%}")


def _measured() -> Iterable[str]:
    """Measurements of one GPU beside the simulator."""
    found = compared(newest_results(RESULTS))
    errors = [abs(one.error) for one in found]
    within = sum(error <= GOAL for error in errors)
    yield (
        f"{within} of {len(found)} are within {GOAL:.0%}; median error {median(errors):.1%}, worst {max(errors):.1%}. "
        "¹ The shares of bandwidth and arithmetic were fitted to it; the others only check them."
    )
    yield ""
    yield from header("what", "s predicted", "s measured", "error")
    for one in found:
        mark = " ¹" if one.fitted else ""
        yield row_line(f"{one.name}{mark}", f"{one.predicted:.2f}", f"{one.measured:.2f}", f"{one.error:+.1%}")


def _published() -> Iterable[str]:
    """Published steps beside the simulator."""
    seconds = {point: predicted(point) for point in POINTS}
    others = [point for point in POINTS if not point.fitted]
    whole, first = ([_error(seconds[one], value(one)) for one in others] for value in (_whole, _first))
    yield (
        f"Of the {len(others)} points that nothing was fitted to, {_within(first)} are within {PUBLISHED_GOAL:.0%} of "
        f"the mean of the first 200 steps (worst {max(map(abs, first)):.0%}),\nand {_within(whole)} of the mean of the "
        f"whole run (worst {max(map(abs, whole)):.0%})."
    )
    yield ""
    yield from header("run", "GPUs", "s predicted", "first 200 steps", "error", "whole run", "error")
    for point, found in seconds.items():
        yield row_line(
            f"{point.kind}{' (fitted)' if point.fitted else ''}",
            str(point.gpus) if point.staleness is None else f"{point.gpus} + {point.gpus}",
            f"{found:.0f}",
            f"{point.first:.0f}",
            f"{_error(found, point.first):+.0%}",
            f"{point.whole:.0f}",
            f"{_error(found, point.whole):+.0%}",
        )


def _whole(point: Point) -> float:
    return point.whole


def _first(point: Point) -> float:
    return point.first


def _error(predicted_seconds: float, published: float) -> float:
    return predicted_seconds / published - 1


def _within(errors: Sequence[float]) -> int:
    return sum(abs(error) <= PUBLISHED_GOAL for error in errors)


def _fitted() -> str:
    decode = 1e3 * FITTED.decode_overhead
    return (
        f"log-normal with sigma {SIGMA:g}; engines of {ENGINE_GPUS} GPUs and {LOCAL_STEPS} local steps "
        "are as in its scripts.\nThree numbers are fitted to the three parts of one point, the synchronous "
        f"run on 64 GPUs:\na median of {FITTED.median:.0f} tokens, {decode:.1f} ms of a decode step beside what whet's "
        f"own\nengine takes, and {FITTED.constant:.0f} s a step in each of log-probs and update, whatever the lengths."
    )


def _links() -> str:
    newer = " and ".join(name for name in NVLINK if name not in OLDER)
    older = " and ".join(OLDER)
    return (
        f"Per GPU and direction, within nodes of 8: {NVLINK['h200'] / GIGA:.0f} GB/s of {newer}, "
        f"{NVLINK['a100-80'] / GIGA:.0f} GB/s of {older}, of others\n  what they have to the host; between nodes "
        f"{INFINIBAND / GIGA:.0f}, {OLDER['a100-80'] / GIGA:.0f} and {ETHERNET / GIGA:g} GB/s."
    )


def main(arguments: Sequence[str]) -> None:
    """Reads the template, writes the page."""
    template, page = (Path(argument) for argument in arguments)
    page.write_text(render(template.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
