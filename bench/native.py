"""The trainer in C++ beside the same loop in Python: `python -m bench.native`, after `make native`.

Both sides train the same weights on the same windows of the same token file, in fp32 with the same number of threads.
In every repeat each side is a process of its own, one after the other, so a ratio compares neighbours in time. On a
busy machine the processor time of all threads, which is measured besides, says more than the clock. The losses of both
are in the result: a step that computes something else is not faster.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.command import run_command
from bench.cpu import busy_notes
from bench.machine import ROOT, machine
from bench.results import RESULTS, write_result
from bench.spread import paired_ratio, spread, timed_median
from whet.errors import RunFailed, UserError

PROGRAM = ROOT / "native" / "build" / "whet-native"
SEED, LR, MOST_NORM, TRAINING = 0, 3e-4, 1.0, 200_000
NEARNESS = 1e-3  # losses of the two sides, after all steps of a process


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A GPT-2 and the windows of its steps."""

    vocab_size: int
    layers: int
    heads: int
    width: int
    context: int
    batch: int


SHAPES = {
    "tiny": Shape(vocab_size=64, layers=2, heads=2, width=32, context=16, batch=4),
    "characters": Shape(vocab_size=96, layers=6, heads=6, width=192, context=128, batch=16),
    "words": Shape(vocab_size=8192, layers=4, heads=8, width=256, context=128, batch=16),
}


def main(arguments: Sequence[str]) -> None:
    """Measures every shape and writes a result file for each."""
    options = _options(arguments)
    if options.python_side is not None:
        print(json.dumps(python_side(options.python_side, SHAPES[options.shape[0]], options.steps, options.threads)))
        return
    if not PROGRAM.is_file():
        raise UserError("native/build/whet-native is missing: build it with `make native`")
    busy = busy_notes(os.getloadavg()[0])
    for name in options.shape:
        content = compare(name, options.repeats, options.steps, options.threads)
        kind = {"what": f"native-{name}", "title": f"GPT-2, {name}", "quick": options.quick, "notes": busy}
        path = write_result(options.out, machine("cpu", options.threads), {**kind, **content}, revision=options.commit)
        for figure, one in content["figure"].items():
            print(f"{name} {figure}: {one['median']:.4g} ({one['low']:.4g}–{one['high']:.4g})")
        print(path)


def compare(name: str, repeats: int, steps: int, threads: int) -> dict[str, Any]:
    """`repeats` rounds of both sides, and the ratio of each round."""
    shape = SHAPES[name]
    sides: dict[str, dict[str, list[Any]]] = {side: {"repeats": []} for side in ("native", "python")}
    with TemporaryDirectory(prefix="bench-") as place:
        directory = Path(place)
        prepare(directory, shape)
        for number in range(repeats):
            sides["native"]["repeats"].append(native_side(directory, shape, steps, threads, f"run-{number}"))
            sides["python"]["repeats"].append(_python_process(directory, name, steps, threads))
    ours, theirs = (sides[side]["repeats"] for side in ("native", "python"))
    far = max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in _pairs(one, other))
    if far > NEARNESS:
        raise RunFailed(f"the losses of the two sides differ by {far:.1e}: they do not compute the same")
    tokens = shape.batch * shape.context
    figure: dict[str, Any] = {}
    for kind in ("seconds", "cpu_seconds"):
        found = {side: [timed_median(answer[kind]) for answer in sides[side]["repeats"]] for side in sides}
        for side, medians in found.items():
            figure[f"{side}_tokens_per_{kind[:-1]}"] = asdict(spread([tokens / one for one in medians]))
        # above 1: C++ is faster
        figure[kind.replace("seconds", "ratio")] = asdict(paired_ratio(found["python"], found["native"]))
    workload = {**asdict(shape), "steps": steps, "largest_difference_of_losses": far}
    return {"workload": workload, "sides": sides, "figure": figure}


def prepare(directory: Path, shape: Shape) -> None:
    """Weights and a corpus of random tokens."""
    from whet.models.load import new_model

    (directory / "model").mkdir()
    new_model(
        "gpt2",
        vocab_size=shape.vocab_size,
        layers=shape.layers,
        heads=shape.heads,
        width=shape.width,
        context=shape.context,
        seed=SEED,
    ).save(directory / "model")
    (directory / "corpus").mkdir()
    tokens = np.random.default_rng(SEED).integers(0, shape.vocab_size, TRAINING).astype("<u2")
    tokens.tofile(directory / "corpus" / "tokens.bin")
    facts = {
        "format": 1,
        "dtype": "uint16",
        "tokens": TRAINING,
        "training_tokens": TRAINING,
        "vocab_size": shape.vocab_size,
        "sha256": hashlib.sha256(tokens.tobytes()).hexdigest(),
    }
    (directory / "corpus" / "corpus.json").write_text(json.dumps(facts), "utf-8")


def native_side(directory: Path, shape: Shape, steps: int, threads: int, run: str) -> dict[str, Any]:
    """Times and losses of the steps of one process in C++."""
    words = ["train", "--model", "model", "--data", "corpus", "--out", run, "--steps", steps, "--batch", shape.batch]
    words += ["--threads", threads, "--lr", LR, "--schedule", "constant", "--max-grad-norm", MOST_NORM, "--seed", SEED]
    words += ["--device", "cpu", "--save-every", 10**9]
    _finished([str(PROGRAM), *map(str, words)], directory, threads)
    timings, metrics = (_lines(directory / run / name) for name in ("timings.jsonl", "metrics.jsonl"))
    return {
        "seconds": [line["seconds"] for line in timings],
        "cpu_seconds": [line["cpu_seconds"] for line in timings],
        "losses": [line["loss"] for line in metrics],
    }


def python_side(directory: Path, shape: Shape, steps: int, threads: int) -> dict[str, Any]:
    """The same of this process: whet's decoder, log-probs, optimizer and step."""
    import torch

    from whet.config import OptimizerConfig
    from whet.distributed.world import World
    from whet.models.decoder.decoder import Decoder
    from whet.models.load import load_model
    from whet.models.logprobs import chosen_logprobs
    from whet.streams import uniform
    from whet.train.optimizers.optimizer import descend, make_optimizer

    torch.set_num_threads(threads)
    model = load_model(directory / "model")
    assert isinstance(model, Decoder)
    tokens = np.fromfile(directory / "corpus" / "tokens.bin", dtype="<u2")
    optimizer, world, rows = make_optimizer(model, OptimizerConfig(lr=LR)), World.alone(), shape.batch
    lengths = torch.full((rows,), shape.context)

    def loss(step: int) -> torch.Tensor:
        keys = torch.full((rows,), (SEED << 32) + step, dtype=torch.int64)
        starts = np.floor(uniform(keys, torch.arange(rows)).numpy() * (len(tokens) - shape.context)).astype(np.int64)
        windows = torch.from_numpy(np.stack([tokens[at : at + shape.context + 1] for at in starts]).astype(np.int64))
        states = model.hidden(windows[:, :-1], lengths).flatten(0, 1)
        head = model.head_weight
        assert head is not None
        logprobs, _ = chosen_logprobs(states, head, windows[:, 1:].flatten(), 1.0)
        return -logprobs.mean()

    seconds, cpu_seconds, losses = [], [], []
    for step in range(1, steps + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        descent = descend((loss(step) for _ in range(1)), [optimizer], world, max_grad_norm=MOST_NORM)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        assert descent is not None
        losses.append(descent.loss)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": losses}


def _python_process(directory: Path, name: str, steps: int, threads: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.native", "--python-side", str(directory), "--shape", name]
    out = _finished([*words, "--steps", str(steps), "--threads", str(threads)], ROOT, threads)
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def _finished(words: Sequence[str], directory: Path, threads: int) -> str:
    """What a process prints; both sides have the same settings of OpenMP."""
    settings = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "10000"}
    done = subprocess.run(
        words, cwd=directory, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunFailed(f"{Path(words[0]).name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _pairs(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[float, float]]:
    return list(zip(one["losses"], other["losses"], strict=True))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.native", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="may be given several times")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--steps", type=int, default=12, help="of each process, at least 2; the first is not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where result files go")
    parser.add_argument("--commit", default="", help="the commit, where git cannot tell")
    parser.add_argument("--quick", action="store_true", help="the tiny shape, to see that it works")
    parser.add_argument("--python-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.shape = ["tiny"] if options.quick else options.shape or ["characters", "words"]
    if options.steps < 2 or options.repeats < 1:
        raise UserError("--steps must be 2 or more (the first is not timed) and --repeats 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(run_command(main, sys.argv[1:]))
