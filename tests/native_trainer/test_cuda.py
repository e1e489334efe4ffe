"""The trainer in C++ on a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.native_trainer.program import lines, repetitive, succeed, tiny, write_corpus

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("precision", "nearness"), [("fp32", 1e-3), ("auto", 0.05)])
def test_losses_are_those_of_the_cpu(tmp_path: Path, precision: str, nearness: float) -> None:
    corpus = write_corpus(tmp_path / "corpus", repetitive(4000), training=3000)
    tiny(tmp_path / "model", scale=2, width=64)
    losses = []
    for device, asked in (("cpu", "fp32"), ("cuda", precision)):
        succeed(
            *("train", "--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / device, "--steps", 20),
            *("--micro-batch", 3, "--lr", 3e-3, "--eval-every", 20, "--device", device, "--precision", asked),
        )
        losses.append([line["loss"] for line in lines(tmp_path / device / "metrics.jsonl")])
    assert np.abs(np.subtract(*losses)).max() < nearness
    assert losses[1][-1] < losses[1][0] - 0.1


def test_sampling_and_resuming(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", repetitive(4000), training=3000)
    tiny(tmp_path / "model", scale=2, width=64)
    arguments = ("--model", tmp_path / "model", "--data", corpus, "--out", tmp_path / "run", "--device", "cuda")
    succeed("train", *arguments, "--steps", 6, "--stop-after", 3)
    succeed("train", "--resume", tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run/metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    prompt = ("sample", "--model", tmp_path / "model", "--prompt-ids", "1,2", "--max-tokens", 12, "--temperature", 0)
    assert succeed(*prompt, "--device", "cuda", "--precision", "fp32") == succeed(*prompt, "--device", "cpu")
