"""The whole loop on CUDA: fp32 masters, bf16 arithmetic, and log-probs of sampler and trainer that still agree."""

import pytest
import torch

from tests.small import small_chat_model
from whet.algorithms.table import ALGORITHMS
from whet.cli.progress import SilentProgress
from whet.models.load import load_model
from whet.recipe import read_recipe
from whet.runs.directory import Run
from whet.train.start import start_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def train(recipe, tmp_path, *overrides):
    settings = read_recipe(recipe, ["device=cuda", *overrides])
    path = start_run(settings, tmp_path / "runs", lambda config, run: SilentProgress())
    return Run.open(path, is_writer=False)


def test_online(tmp_path):
    run = train("demo-grpo", tmp_path, "steps=8", "eval.examples=50", "algorithm.kl.coefficient=0.01")
    steps = [row for row in run.metrics() if row["step"] > 0]
    assert max(row["mismatch/mean"] for row in steps) < 0.02  # bf16: cached and uncached passes round differently
    assert all(row["grad_norm"] > 0 for row in steps)
    assert {p.dtype for p in load_model(run.path / "best_model").parameters()} == {torch.float32}


def test_offline_learns(tmp_path):
    run = train("sft-reverse", tmp_path, "steps=150", "eval.every_steps=150", "eval.examples=200")
    first, last = run.metrics()[0], run.metrics()[-1]
    assert last["eval/loss"] < first["eval/loss"] / 3
    assert last["eval/accuracy"] > first["eval/accuracy"]


def test_chat_model_with_checkpointing_and_several_updates(tmp_path):
    model = small_chat_model(tmp_path / "model")
    run = train(
        "grpo-arithmetic",
        tmp_path,
        f"model.path={model}",
        "model.gradient_checkpointing=true",
        "steps=2",
        "eval.examples=8",
        "update.epochs=2",
        "update.minibatches=2",
        "rollout.top_p=0.9",
        "algorithm.kl.coefficient=0",
    )
    assert run.finished


def test_resume_on_cuda_goes_on(tmp_path):
    """Fused AdamW keeps its step count on the device; a restored optimizer must step as before."""
    from whet.train.start import resume_run

    large = ("optimizer.lr=0.05", "optimizer.warmup_steps=0")  # so that a lost moment shows
    run = train("demo-grpo", tmp_path, "steps=4", "eval.examples=20", "save.every_steps=2", "save.keep=2", *large)
    weights = load_model(run.path / "checkpoints" / "step-000004" / "model").state_dict()
    import shutil

    shutil.rmtree(run.path / "checkpoints" / "step-000004")
    (run.path / "final_results.json").unlink()
    resume_run(run.path, [], lambda config, run: SilentProgress())
    again = load_model(run.path / "checkpoints" / "step-000004" / "model").state_dict()
    difference = torch.cat([(tensor - again[name]).abs().flatten() for name, tensor in weights.items()]).mean()
    assert float(difference) < 0.002  # sums on a GPU differ in the last bit; without the moments it is ten times more


@pytest.mark.parametrize(
    "changes",
    [
        *(["algorithm=" + row] for row in ALGORITHMS),
        ["algorithm=ppo", "critic.model=shared", "critic.warmup_steps=1", "update.kl_limit=0.05"],
        ["algorithm=ppo", "algorithm.kl.coefficient=0.05", "update.epochs=2", "update.minibatches=2"],
        ["algorithm=grpo", "algorithm.kl.coefficient=0.05", "algorithm.kl.reference=bigram"],
        ["algorithm.kl.coefficient=0.05", "algorithm.kl.reference=moving", "algorithm.kl.sync_steps=1"],
        ["algorithm=grpo", "algorithm.kl.coefficient=0.05", "algorithm.kl.reference=uniform"],
        ["algorithm=grpo", "algorithm.correction=mask_tokens", "algorithm.entropy.coefficient=0.01"],
        ["algorithm=reinforce", "algorithm.advantage=over_average", "reward.normalize=running"],
        ["algorithm=dr_grpo", "algorithm.scaling=batch_deviation", "update.packed=true", "rollout.mask_truncated=true"],
    ],
    ids=" ".join,
)
def test_every_part_of_the_loop_runs_on_cuda(changes, tmp_path):
    small = ["steps=3", "rollout.prompts=8", "eval.examples=16", "eval.every_steps=3", "save.every_steps=2"]
    rows = train("toy-sorting", tmp_path, *small, *changes).metrics()
    assert rows[-1]["step"] == 3
    assert max(row["mismatch/mean"] for row in rows[1:] if "mismatch/mean" in row) < 0.02
