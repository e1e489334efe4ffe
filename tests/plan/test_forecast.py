"""What `whet train` says on a GPU before the first step, and the lengths that it says it for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.train import rows_on_disk
from tests.train.test_lora_runs import base, train  # noqa: F401 (a fixture)
from whet.config.loops import CollectConfig, Training
from whet.models.decoder.known_shapes import require_shape
from whet.recipe import read_recipe
from whet.train.plan.forecast import changes_that_fit, forecast
from whet.train.plan.gpus import GPUS
from whet.train.session import gpu_forecast as module
from whet.train.session.gpu_forecast import gpu_changes, gpu_forecast


def config_of(source: str, *overrides: str) -> Training:
    config = read_recipe(source, overrides).config
    assert not isinstance(config, CollectConfig)
    return config


def test_one_line_where_it_fits() -> None:
    config = config_of("grpo", "model=qwen3-0.6b", "task=arithmetic")
    (line,) = forecast(config, require_shape("qwen3-0.6b")[1], [(20, 1)], GPUS["h200"])
    assert line.startswith("plan: about ")
    assert "of the GPU's 139.8 GiB, most of it in the update; about " in line


def test_a_warning_with_what_fits_instead() -> None:
    config = config_of("grpo", "model=qwen3-8b", "task=arithmetic")
    warning, advice = forecast(config, require_shape("qwen3-8b")[1], [(20, 1)], GPUS["a6000"])
    assert warning.startswith("warning: the plan is about 1")
    assert "may end out of memory" in warning
    assert advice.startswith("what fits instead: ")
    assert "model.lora=16 (" in advice
    _, none = forecast(config, require_shape("qwen3-14b")[1], [(20, 1)], GPUS["4090"])
    assert none.startswith("no change of the recipe")


def test_a_run_that_ended_out_of_memory_is_told_what_needs_less() -> None:
    """Also one that the plan took to fit: another process may hold a part of the GPU."""
    policy = require_shape("qwen3-0.6b")[1]
    config = config_of("grpo", "model=qwen3-0.6b", "task=arithmetic")
    told = changes_that_fit(config, policy, [(20, 1)], GPUS["h200"])
    first = told.removeprefix("what fits instead: ").partition(" (")
    line, *_ = forecast(config, policy, [(20, 1)], GPUS["h200"])
    smaller, *_ = forecast(
        config_of("grpo", "model=qwen3-0.6b", "task=arithmetic", *first[0].split()), policy, [(20, 1)], GPUS["h200"]
    )
    needs = [float(text.removeprefix("plan: about ").split()[0]) for text in (line, smaller)]
    assert needs[1] <= 0.9 * needs[0]
    assert first[2].startswith(f"{needs[1]:.1f} GiB")


def test_nothing_is_said_on_a_cpu() -> None:
    world: Any = SimpleNamespace(device=torch.device("cpu"), is_writer=True)
    parts: Any = SimpleNamespace(policy=None, lengths=None)
    assert gpu_forecast(config_of("grpo-sorting"), parts, world) == []
    assert gpu_changes(config_of("grpo-sorting"), parts, world) == ""


def test_the_gpu_of_the_run_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world on CUDA, of which only the properties are asked."""
    model, data = rows_on_disk.saved_model(tmp_path / "model"), rows_on_disk.pairs(tmp_path / "rows.jsonl")
    parts, trainer = rows_on_disk.trainer(model, data, "dpo")
    device = SimpleNamespace(name="NVIDIA GeForce RTX 4090", total_memory=GPUS["4090"].memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    world: Any = SimpleNamespace(device=torch.device("cuda"), is_writer=True, size=1)
    (line,) = gpu_forecast(rows_on_disk.config(model, data, "dpo"), replace(parts, lengths=trainer.lengths), world)
    assert "of the GPU's 23.5 GiB, most of it in the " in line
    assert gpu_forecast(trainer.config, parts, SimpleNamespace(**{**vars(world), "is_writer": False})) == []  # type: ignore[arg-type]


def test_a_run_says_it_before_its_first_step(
    base: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU in the place of a GPU of 24 GB: the prompts of the task are measured, and the plan is noted."""
    heard: list[Any] = []

    def said(config: Training, parts: Any, world: Any) -> list[str]:
        shape = parts.policy.config
        heard.extend(module.prompt_lengths(config, parts))
        return forecast(config, shape, heard, GPUS["4090"], world.size)

    monkeypatch.setattr("whet.train.session.session.gpu_forecast", said)
    train(tmp_path, base)
    assert heard
    assert all(prompt >= 1 for prompt, _ in heard)


@pytest.mark.parametrize(
    ("rows", "objective"),
    [(rows_on_disk.pairs, "dpo"), (rows_on_disk.pairs, "sft"), (rows_on_disk.outcomes, "outcome")],
)
def test_the_lengths_of_rows_are_those_of_their_tokens(rows: Any, objective: str, tmp_path: Path) -> None:
    model, data = rows_on_disk.saved_model(tmp_path / "model"), rows(tmp_path / "rows.jsonl")
    _, trainer = rows_on_disk.trainer(model, data, objective)
    found = trainer.lengths()
    first = trainer.rows(1)
    tokens = [row for one in first for row in (one.rows if objective != "sft" else [one])]
    assert [sum(pair) for pair in found] == [len(row.tokens) for row in tokens]
    assert all(completion == sum(row.mask) for (_, completion), row in zip(found, tokens, strict=True))
