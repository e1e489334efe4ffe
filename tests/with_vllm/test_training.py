"""GRPO with vLLM as its sampler, in this process and behind a URL; a layer that stays behind ends the run."""

import json
from contextlib import nullcontext

import pytest

from whet.errors import RunFailed
from whet.recipe import Recipe, validate
from whet.train.start import start_run

pytestmark = pytest.mark.vllm

WRITTEN = {
    "steps": 4,
    "model": {"new": {"family": "llama", "layers": 2, "heads": 2, "width": 64, "context": 64}},
    "task": "sorting",
    "algorithm": {"preset": "grpo", "importance_correction": "token_truncate"},
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 12},
    "optimizer": {"lr": 3e-3},
    "eval": {"every_steps": 4, "examples": 8, "max_tokens": 12},
    "track": [],
    "device": "cpu",
}


class Silent:
    """Nobody is told."""

    def step(self, step, metrics, timings): ...

    def evaluating(self):
        return nullcontext()

    def note(self, text): ...

    def close(self): ...


def train(tmp_path, **sections):
    written = {**WRITTEN, **sections}
    recipe = Recipe(name="test", config=validate(written, where="here"), written=written)
    run = start_run(recipe, tmp_path, lambda config, run: Silent())
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check(metrics):
    steps = [row for row in metrics if row["step"] > 0]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(0 < row["mismatch/mean"] < 1e-5 for row in steps)  # measured, and as small as fp32 lets it be
    assert all(row["mismatch/max"] < 1e-4 for row in steps)
    assert all(abs(row["importance_correction/largest"] - 1) < 1e-4 for row in steps)
    assert sum(row["updates"] for row in steps) == 4
    assert max(row["grad_norm"] for row in steps) > 0


def test_in_this_process(tmp_path):
    check(train(tmp_path, engine={"name": "vllm", "max_sequences": 16}))


def test_behind_a_url(tmp_path, server, directory):
    where = {"name": "vllm", "url": server.url, "max_sequences": 16, "weights_directory": str(tmp_path)}
    check(train(tmp_path / "runs", model={"path": str(directory)}, engine=where))
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_layer_that_stays_behind_ends_the_run(tmp_path, monkeypatch):
    from whet.engines.vllm.worker_extension import Worker

    take, calls = Worker.whet_take, []

    def forgetful(worker, weights):
        calls.append(1)
        take(worker, [(n, t) for n, t in weights if len(calls) == 1 or "layers.1.mlp.gate_proj" not in n])

    monkeypatch.setattr(Worker, "whet_take", forgetful)
    with pytest.raises(RunFailed, match=r"step 2: vLLM samples with stale weights: 'model.layers.1.mlp.gate_proj"):
        train(tmp_path, engine={"name": "vllm", "max_sequences": 16})
