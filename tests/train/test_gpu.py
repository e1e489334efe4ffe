"""The whole loop on CUDA: fp32 masters, bf16 arithmetic, and log-probs of sampler and trainer that still agree."""

import shutil

import pytest
import torch

from tests.small import small_chat_model, small_model
from whet.algorithms.table import ALGORITHMS
from whet.cli.progress import SilentProgress
from whet.models.load import load_model
from whet.models.reward.reward_model import new_reward_model
from whet.models.reward.settings import RewardSettings
from whet.models.text.tokenizers import load_tokenizer, with_padding
from whet.recipe import read_recipe
from whet.runs.directory import RunDirectory
from whet.train.setup.offloading import weights
from whet.train.start import resume_run, start_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PLACES = ("never", "always")


def train(recipe, tmp_path, *overrides):
    settings = read_recipe(recipe, ["device=cuda", *overrides])
    path = start_run(settings, tmp_path / "runs", lambda config, run: SilentProgress())
    return RunDirectory.open(path, is_writer=False)


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


def test_penalised_sampling_agrees_with_the_trainer(tmp_path):
    run = train(
        *("demo-grpo", tmp_path, "steps=4", "eval.examples=20", "rollout.max_tokens=8", "eval.max_tokens=8"),
        *("rollout.repetition_penalty=1.5", "rollout.min_tokens=5", "rollout.top_k=8"),
    )
    steps = [row for row in run.metrics() if row["step"] > 0]
    assert max(row["mismatch/mean"] for row in steps) < 0.02
    assert min(len(row["logprobs"]) for row in run.rollouts(4)) >= 5


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_other_optimizers_learn_and_resume(tmp_path, name):
    rate = {"lion": 1e-4, "muon": 2e-3}[name]
    settings = (
        f"optimizer.name={name}",
        f"optimizer.lr={rate}",
        "steps=60",
        "eval.every_steps=60",
        "save.every_steps=30",
    )
    run = train("sft-reverse", tmp_path, *settings, "eval.examples=50")
    first, last = run.metrics()[0], run.metrics()[-1]
    assert last["eval/loss"] < first["eval/loss"] * 0.8
    whole = weights_at(run, 60)
    assert distance(weights_at(resumed(run, 60), 60), whole) < 1e-4


def weights_at(run, step):
    return load_model(run.path / "checkpoints" / f"step-{step:06d}" / "model").state_dict()


def resumed(run, step):
    """Loses the checkpoint of this step, the last one, and goes on from the one before."""
    shutil.rmtree(run.path / "checkpoints" / f"step-{step:06d}")
    (run.path / "final_results.json").unlink()
    resume_run(run.path, [], lambda config, run: SilentProgress())
    return run


def distance(some, others):
    return float(torch.cat([(tensor - others[name]).abs().flatten() for name, tensor in some.items()]).mean())


def test_resume_on_cuda_goes_on(tmp_path):
    """Fused AdamW keeps its step count on the device; a restored optimizer must step as before."""
    large = ("optimizer.lr=0.05", "optimizer.warmup_steps=0")  # so that a lost moment shows
    run = train("demo-grpo", tmp_path, "steps=4", "eval.examples=20", "save.every_steps=2", "save.keep=2", *large)
    before = weights_at(run, 4)
    # sums on a GPU differ in the last bit; without the moments it is ten times more
    assert distance(before, weights_at(resumed(run, 4), 4)) < 0.002


@pytest.mark.parametrize(
    "changes",
    [
        *(["algorithm=" + row] for row in ALGORITHMS),
        ["algorithm=ppo", "critic.model=shared", "critic.warmup_steps=1", "update.target_kl=0.05"],
        ["algorithm=ppo", "algorithm.kl.coefficient=0.05", "update.epochs=2", "update.minibatches=2"],
        ["algorithm=grpo", "algorithm.kl.coefficient=0.05", "algorithm.kl.reference=bigram"],
        ["algorithm.kl.coefficient=0.05", "algorithm.kl.reference=sync", "algorithm.kl.sync_steps=1"],
        ["algorithm=grpo", "algorithm.kl.coefficient=0.05", "algorithm.kl.reference=uniform"],
        ["algorithm=grpo", "algorithm.importance_correction=token_mask", "algorithm.entropy.coefficient=0.01"],
        ["algorithm=reinforce", "algorithm.advantage=over_average", "reward.normalize=running"],
        [
            "algorithm=dr_grpo",
            "algorithm.scaling=batch_deviation",
            "update.padding_free=true",
            "rollout.mask_truncated=true",
        ],
    ],
    ids=" ".join,
)
def test_every_part_of_the_loop_runs_on_cuda(changes, tmp_path):
    small = ["steps=3", "rollout.prompts=8", "eval.examples=16", "eval.every_steps=3", "save.every_steps=2"]
    rows = train("toy-sorting", tmp_path, *small, *changes).metrics()
    assert rows[-1]["step"] == 3
    assert max(row["mismatch/mean"] for row in rows[1:] if "mismatch/mean" in row) < 0.02


def test_a_guest_gives_the_memory_of_its_weights_back():
    model = small_model(width=512, layers=4)[0].to("cuda")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    here = torch.cuda.memory_allocated()
    offloaded_model = weights(model, is_frozen=True, device=torch.device("cuda"))
    assert here - torch.cuda.memory_allocated() >= size
    assert all(parameter.device.type == "cpu" and parameter.is_pinned() for parameter in model.parameters())
    with offloaded_model:
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert here - torch.cuda.memory_allocated() >= size


def test_models_that_take_turns_learn_the_same(tmp_path):
    """PPO with a reward model, a moving reference and a critic: all on the GPU, in turns, and in turns resumed."""
    model = small_chat_model(tmp_path / "model")
    tokenizer, pad = with_padding(load_tokenizer(model))
    reward = tmp_path / "reward"
    reward.mkdir()
    new_reward_model(load_model(model), RewardSettings(kind="preference"), seed=1, pad=pad).save(reward)
    tokenizer.save(reward)
    settings = [
        f"model.path={model}",
        f"reward.model={reward}",
        "algorithm=ppo",
        "algorithm.kl={coefficient: 0.05, reference: sync, sync_steps: 2}",
        "engine.precision=fp32",
        "steps=4",
        "save={every_steps: 2, keep: 2}",
        "eval.examples=8",
        "optimizer={lr: 1e-3, warmup_steps: 0}",
    ]
    start = load_model(model).state_dict()
    there, turns = (train("grpo-arithmetic", tmp_path / place, *settings, f"offload={place}") for place in PLACES)
    ends = weights_at(there, 4), weights_at(turns, 4)
    moved = distance(start, ends[0])
    assert distance(*ends) < moved / 20
    assert distance(ends[0], weights_at(resumed(turns, 4), 4)) < moved / 20
    first = [run.metrics()[1] for run in (there, turns)]
    assert first[0]["reward/mean"] == pytest.approx(first[1]["reward/mean"], rel=1e-4)
    assert first[0]["critic/loss"] == pytest.approx(first[1]["critic/loss"], rel=1e-3)
