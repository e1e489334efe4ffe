"""The trainer in C++ takes the same steps as a loop in Python on whet's decoder, optimizer and schedule."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.native_trainer.program import CONTEXT, lines, repetitive, step_windows, succeed, tiny, write_corpus
from whet.config import OptimizerConfig
from whet.distributed.world import World
from whet.models.decoder.decoder import Decoder
from whet.models.load import load_model
from whet.models.logprobs import token_logprobs
from whet.records import Sampling
from whet.train.optimizers.optimizer import descend, learning_rate, make_optimizer, set_learning_rate

pytestmark = pytest.mark.native

STEPS, ROWS, SEED, TRAINING = 20, 6, 5, 3000
TOLERANCE = 1e-4


def summed_loss(model: Decoder, windows: torch.Tensor) -> torch.Tensor:
    """The sum of −log p over all targets; the last id is only a target, so context + 1 ids fit the model's context."""
    states = model.hidden(windows[:, :-1], torch.full((len(windows),), windows.shape[1] - 1))
    logprobs = torch.log_softmax(model.head(states), dim=-1).gather(-1, windows[:, 1:, None])
    return -logprobs.sum()


def python_run(model: Decoder, tokens: np.ndarray, config: OptimizerConfig, most: float) -> list[dict[str, float]]:
    """Loss, learning rate and gradient norm of each step."""
    optimizer, found = make_optimizer(model, config), []
    for step in range(1, STEPS + 1):
        windows = step_windows(tokens, TRAINING, seed=SEED, step=step, rows=ROWS, context=CONTEXT)
        rate = learning_rate(step, STEPS, config)
        set_learning_rate(optimizer, rate)
        losses = (summed_loss(model, windows) / (ROWS * CONTEXT) for _ in range(1))
        descent = descend(losses, [optimizer], World.alone(), max_grad_norm=most)
        assert descent is not None
        found.append({"loss": descent.loss, "lr": rate, "grad_norm": descent.grad_norms[0]})
    return found


CASES = {
    "cosine": (OptimizerConfig(lr=3e-3, schedule="cosine", warmup_steps=4, min_lr_share=0.1, weight_decay=0.1), 1.0, 0),
    "linear in micro-batches": (OptimizerConfig(lr=3e-3, schedule="linear", weight_decay=0.5), 0.5, 4),
    "constant, never clipped": (OptimizerConfig(lr=1e-3, schedule="constant", warmup_steps=30), 1e9, 1),
    "other betas": (OptimizerConfig(lr=3e-3, beta1=0.8, beta2=0.99, epsilon=1e-4), 1.0, 5),
}


@pytest.mark.parametrize("case", CASES)
def test_the_losses_are_pythons(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, most, micro_batch = CASES[case]
    tokens = repetitive(4000)
    corpus = write_corpus(tmp_path / "corpus", tokens, training=TRAINING)
    model = tiny(tmp_path / "model", scale=2)
    succeed(
        *("train", "--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / "run"),
        *("--steps", STEPS, "--batch", ROWS, "--micro-batch", micro_batch, "--seed", SEED, "--max-grad-norm", most),
        *("--lr", config.lr, "--schedule", config.schedule, "--warmup-steps", config.warmup_steps),
        *("--min-lr-share", config.min_lr_share, "--weight-decay", config.weight_decay, "--beta1", config.beta1),
        *("--beta2", config.beta2, "--epsilon", config.epsilon),
    )
    native = lines(tmp_path / "run" / "metrics.jsonl")
    expected = python_run(model, tokens, config, most)
    assert [line["step"] for line in native] == list(range(1, STEPS + 1))
    assert [line["lr"] for line in native] == [line["lr"] for line in expected]
    assert [line["tokens"] for line in native] == [ROWS * CONTEXT * step for step in range(1, STEPS + 1)]
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(native, expected, strict=True))
    with capsys.disabled():
        print(f"\n{case}: losses differ by at most {worst:.1e}")
    assert worst <= TOLERANCE
    for ours, theirs in zip(native, expected, strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert native[-1]["loss"] < native[0]["loss"]
    trained = load_model(tmp_path / "run" / "checkpoints" / f"step-{STEPS}")
    assert isinstance(trained, Decoder)
    for (name, weight), after in zip(model.named_parameters(), trained.parameters(), strict=True):
        # Attention does not depend on the bias of keys: its gradient is rounding, which AdamW makes as long as any.
        assert "k_proj.bias" in name or torch.allclose(weight, after, atol=2e-4), name


def test_the_loss_is_that_of_token_logprobs(tmp_path: Path) -> None:
    """The loop above against the log-probs that whet trains on."""
    model = tiny(tmp_path / "model", context=CONTEXT + 1)
    windows = torch.from_numpy(repetitive(3 * (CONTEXT + 1)).reshape(3, -1))
    mask = torch.ones_like(windows, dtype=torch.bool)
    mask[:, 0] = False
    lengths = torch.full((3,), CONTEXT + 1)
    with torch.no_grad():
        logprobs, _ = token_logprobs(model, windows, lengths, mask, Sampling(max_tokens=1))
        expected = float(summed_loss(model, windows))
    assert float(-logprobs.sum()) == pytest.approx(expected, rel=1e-6)


def test_a_wide_vocabulary_in_chunks_and_uint32_ids(tmp_path: Path) -> None:
    """More logits than are in memory at a time: 1536 rows, in chunks of 512."""
    wide, rows, context = 40_000, 24, 64
    tokens = np.random.default_rng(1).integers(0, wide, 4000)
    corpus = write_corpus(tmp_path / "corpus", tokens, training=TRAINING, vocab_size=wide, dtype="uint32")
    model = tiny(tmp_path / "model", vocab_size=wide, context=context, layers=1)
    succeed(
        *("train", "--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / "run", "--steps", 2),
        *("--batch", rows, "--seed", SEED, "--lr", 1e-3, "--schedule", "constant"),
    )
    native = lines(tmp_path / "run" / "metrics.jsonl")
    config = OptimizerConfig(lr=1e-3)
    optimizer = make_optimizer(model, config)
    for step in (1, 2):
        windows = step_windows(tokens, TRAINING, seed=SEED, step=step, rows=rows, context=context)
        loss = (summed_loss(model, windows) / (rows * context) for _ in range(1))
        descent = descend(loss, [optimizer], World.alone(), max_grad_norm=1.0)
        assert descent is not None
        assert native[step - 1]["loss"] == pytest.approx(descent.loss, abs=TOLERANCE)
        assert native[step - 1]["grad_norm"] == pytest.approx(descent.grad_norms[0], rel=1e-4)


def test_an_untied_head(tmp_path: Path) -> None:
    tokens = repetitive(4000)
    corpus = write_corpus(tmp_path / "corpus", tokens, training=TRAINING)
    model = tiny(tmp_path / "model", tied_head=False)
    succeed(
        *("train", "--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / "run", "--steps", STEPS),
        *("--batch", ROWS, "--seed", SEED, "--lr", 3e-3, "--schedule", "constant"),
    )
    native = lines(tmp_path / "run" / "metrics.jsonl")
    expected = python_run(model, tokens, OptimizerConfig(lr=3e-3), 1.0)
    assert max(abs(a["loss"] - b["loss"]) for a, b in zip(native, expected, strict=True)) <= TOLERANCE


def test_products_in_bf16_stay_near(tmp_path: Path) -> None:
    """The arithmetic of a GPU, on a CPU: rounded products, fp32 weights."""
    tokens = repetitive(4000)
    corpus = write_corpus(tmp_path / "corpus", tokens, training=TRAINING)
    tiny(tmp_path / "model", scale=2)
    losses = {}
    for precision in ("fp32", "bf16"):
        succeed(
            *("train", "--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / precision),
            *("--steps", STEPS, "--batch", ROWS, "--micro-batch", 2, "--lr", 3e-3, "--precision", precision),
        )
        losses[precision] = [line["loss"] for line in lines(tmp_path / precision / "metrics.jsonl")]
    differences = np.abs(np.subtract(losses["fp32"], losses["bf16"]))
    assert 1e-5 < differences.max() < 0.05
    assert losses["bf16"][-1] < losses["bf16"][0] - 0.1


def test_the_held_out_loss_is_the_mean_over_consecutive_windows(tmp_path: Path) -> None:
    tokens = repetitive(4000)
    held_out = tokens[TRAINING:]
    corpus = write_corpus(tmp_path / "corpus", tokens, training=TRAINING)
    model = tiny(tmp_path / "model", scale=2)
    count = (len(held_out) - 1) // CONTEXT
    assert count * CONTEXT < len(held_out) - 1  # some tokens are left over
    windows = torch.from_numpy(np.stack([held_out[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in range(count)]))
    with torch.no_grad():
        expected = [float(summed_loss(model, windows[:n])) / (n * CONTEXT) for n in (count, 7)]
    for most, wanted, windows_used in zip((0, 7), expected, (count, 7), strict=True):
        arguments = ("--data", corpus, "--model", tmp_path / "model", "--batch", 5, "--eval-windows", most)
        (tmp_path / "out").write_text(succeed("eval", *arguments))
        (found,) = lines(tmp_path / "out")
        assert found["loss"] == pytest.approx(wanted, abs=1e-5)
        assert found["perplexity"] == pytest.approx(np.exp(wanted), rel=1e-5)
        assert (found["windows"], found["tokens"]) == (windows_used, windows_used * CONTEXT)
    run = ("--steps", 3, "--batch", 2, "--eval-every", 2, "--lr", 1e-12, "--out", tmp_path / "run")
    succeed("train", "--model", tmp_path / "model", "--data", corpus, *run)
    measured = [line.get("held_out_loss") for line in lines(tmp_path / "run" / "metrics.jsonl")]
    assert measured[0] is None
    assert measured[1:] == [pytest.approx(expected[0], abs=1e-5)] * 2  # step 2, and the last one
