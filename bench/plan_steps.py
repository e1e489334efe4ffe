"""A few steps of one configuration in a process of its own: `python -m bench.plan_steps JOB.json ANSWER.json`.

The model is made on the device, in place of being read from disk, and nothing is saved: an 8 B model would take minutes
of each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml

from bench.clock import take_peak
from bench.plan_cases import DPO, ONLINE, Case
from bench.shapes import SHAPES, Shape, word_tokenizer
from bench.task import word
from whet.config.loops import Training
from whet.distributed.world import World
from whet.models.decoder.decoder import Decoder
from whet.models.decoder.families import export_config
from whet.recipe import dump, read_recipe
from whet.runs.directory import RunDirectory
from whet.train.online import loop as online
from whet.train.plan.gpus import GPUS, find_gpu
from whet.train.plan.planning import make_plan
from whet.train.plan.recipe_facts import models_of, work_of
from whet.train.rows import loop as offline
from whet.train.session import session as sessions
from whet.train.setup import build

NEVER = 10**9
GO = "go"  # the file whose appearance starts the measurement
LEARNING_RATE = 1e-6


def config_of(case: Case, device: str, directory: Path, steps: int, *, tokenizer: bool = True) -> Training:
    """The config that `whet train` would make of the recipe, which is left in `directory` with the files it names."""
    shape = SHAPES[case.shape]
    model = directory / "model"
    model.mkdir(parents=True)
    family = Decoder(shape.config, family=shape.family, seed=None).family
    (model / "config.json").write_text(json.dumps(export_config(family, shape.config, {})), "utf-8")
    # Rows end with the tokeniser's end, so there it is an id of the model; rollouts never sample it.
    words = shape.config.vocab_size - (0 if case.loss == ONLINE else 1)
    if tokenizer:
        word_tokenizer(words).save(model)
    written: dict[str, Any] = {
        "steps": steps,
        "model": {"path": str(model), "dtype": "bf16"},
        "optimizer": {"lr": LEARNING_RATE},
        "eval": {"every_steps": 0},
        "save": {"every_steps": NEVER, "rollouts_every_steps": NEVER},
        "track": [],
        "device": device,
    }
    if case.loss == ONLINE:
        written |= {
            "task": {"name": "bench.task:Words", "words": case.prompt, "size": shape.config.vocab_size},
            "algorithm": "grpo",
            "rollout": {"prompts": case.prompts, "group": case.group, "max_tokens": case.new},
        }
        written["eval"] |= {"max_tokens": case.new}
    else:
        rows = directory / "rows.jsonl"
        rows.write_text("".join(json.dumps(row) + "\n" for row in _rows(case, words, steps)), "utf-8")
        written |= {"loop": "offline", "objective": case.loss, "data": {"path": str(rows), "held_out_share": 0.0}}
        written |= {"batch_size": case.prompts}
    path = directory / "recipe.yaml"
    path.write_text(yaml.safe_dump(written, sort_keys=False), "utf-8")
    config = read_recipe(str(path), case.overrides).config
    assert isinstance(config, Training)
    return config


def _rows(case: Case, words: int, steps: int) -> Iterator[dict[str, str]]:
    """Prompts and completions of as many words as the case has tokens, all different."""
    random = Random(0)

    def text(count: int) -> str:
        return " ".join(word(random.randrange(1, words)) for _ in range(count))

    for _ in range(case.prompts * steps):
        if case.loss == DPO:
            yield {"prompt": text(case.prompt), "chosen": text(case.new - 1), "rejected": text(case.new - 1)}
        else:
            yield {"prompt": text(case.prompt), "completion": text(case.new - 1)}


def predicted(case: Case, device: str) -> dict[str, Any]:
    """What the plan says of a case on this device; on a CPU, on the first GPU of the table."""
    with TemporaryDirectory(prefix="bench-") as place:
        config = config_of(case, device, Path(place), steps=1, tokenizer=False)
    gpu = next(iter(GPUS.values()))
    if device == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory
        gpu = next((one for one in GPUS.values() if one.name in torch.cuda.get_device_name().lower()), gpu)
        gpu = find_gpu(f"{memory}") if abs(gpu.memory / memory - 1) > 0.02 else gpu
    return prediction(case, config, gpu.name)


def prediction(case: Case, config: Training, gpu: str) -> dict[str, Any]:
    """The plan of a case as plain numbers."""
    models = models_of(config, SHAPES[case.shape].config)
    plan = make_plan(models, work_of(config, prompt=case.prompt, completion=case.new), find_gpu(gpu))
    return {
        "gpu": gpu,
        "moments": dict(plan.peaks.moments),
        "peak_bytes": plan.peaks.peak,
        "needed_bytes": plan.peaks.needed,
        "seconds": plan.seconds.moments,
        "step_seconds": plan.seconds.step,
        "micro_batch_tokens": plan.peaks.choice.micro_batch_tokens,
        "slots": plan.peaks.choice.slots,
        "away": sorted(plan.peaks.choice.away),
        "config": yaml.safe_load(dump(config)),
    }


class Enough(Exception):
    """All steps are made; nothing is to be saved."""


class Watch:
    """Notes the seconds and the peak memory of every moment of a step."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.last, self.steps = device, steps, list[dict[str, Any]]()
        self.peaks: dict[str, int] = {}
        self.started = time.perf_counter()
        self.start_seconds = 0.0

    @contextmanager
    def moment(self, name: str) -> Iterator[None]:
        take_peak(self.device)
        yield
        self.peaks[name] = max(self.peaks.get(name, 0), take_peak(self.device) or 0)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:  # noqa: ARG002
        seconds = {key.removeprefix("seconds/"): value for key, value in timings.items() if key.startswith("seconds/")}
        whole = seconds.pop("step")
        if not self.steps:
            self.start_seconds = time.perf_counter() - self.started - whole
        self.steps.append({"seconds": seconds, "step_seconds": whole, "peak_bytes": self.peaks})
        self.peaks = {}
        if step == self.last:
            raise Enough

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        """Owns nothing."""


def random_model(shape: Shape, device: torch.device, *, is_half: bool) -> Decoder:
    """Random weights, made on the device; with `is_half` matrices are in bf16."""
    model = Decoder(shape.config, family=shape.family, seed=None)
    if is_half:
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 2:
                    module.register_parameter(name, torch.nn.Parameter(parameter.detach().to(torch.bfloat16)))
    model.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, shape.config.init_std, generator=generator)
    return model


def measure(case: Case, device_name: str, steps: int, memory: int | None, go: Path) -> dict[str, Any]:
    """`steps` steps of the real loop, begun when the file `go` is there."""
    shape = SHAPES[case.shape]
    with TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        config = config_of(case, device_name, directory, steps)
        while not go.exists():
            time.sleep(0.05)
        world = World.init(config.device)
        if memory is not None and world.device.type == "cuda":
            total = torch.cuda.get_device_properties(world.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total))
        watch = Watch(world.device, steps)
        found: list[Any] = []
        _replace_parts(shape, watch, found)
        try:
            with RunDirectory.create(directory, "bench", dump(config)) as run:
                if case.loss == ONLINE:
                    online.train(config, run, world, watch)  # type: ignore[arg-type]
                else:
                    offline.train(config, run, world, watch)  # type: ignore[arg-type]
        except Enough:
            pass
    is_cuda = world.device.type == "cuda"
    sampler = found[0]._sampler if found else None
    return {
        "steps": watch.steps,
        "start_seconds": watch.start_seconds,
        "reserved_bytes": torch.cuda.max_memory_reserved(world.device) if is_cuda else None,
        "slots": sampler._loop.slots if sampler is not None and sampler._loop is not None else None,
    }


def _replace_parts(shape: Shape, watch: Watch, engines: list[Any]) -> None:
    """In this process: models are made, not read; weights are not hashed, the disk not asked; moments are watched."""
    timed, build_engine = sessions.Session.timed, build.build_engine

    def load(path: Path, *, keep_bf16: bool = False, **_: object) -> Decoder:  # noqa: ARG001
        return random_model(shape, watch.device, is_half=keep_bf16)

    @contextmanager
    def watched(self: Any, name: str) -> Iterator[None]:
        with watch.moment(name), timed(self, name):
            yield

    def noted(*arguments: Any) -> Any:
        engines.append(build_engine(*arguments))
        return engines[-1]

    build.load_model = load  # type: ignore[assignment]
    build.fingerprint = lambda _: f"random {shape.title}"  # type: ignore[assignment]
    build.build_engine = noted
    sessions.require_space = lambda *_, **__: []
    sessions.Session.timed = watched  # type: ignore[method-assign,assignment]


def main(arguments: list[str]) -> None:
    """Reads the job, measures, writes the answer."""
    asked, answered = (Path(argument) for argument in arguments)
    job = json.loads(asked.read_text("utf-8"))
    case = Case(**{**job["case"], "overrides": tuple(job["case"]["overrides"])})
    answer = measure(case, job["device"], job["steps"], job["memory"], go=asked.parent / GO)
    answered.write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
