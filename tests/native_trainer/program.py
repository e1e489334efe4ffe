"""The built trainer as a process, and corpora and models for it."""

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.models.decoder.decoder import Decoder
from whet.models.load import new_model
from whet.streams import uniform

PROGRAM = Path(__file__).resolve().parents[2] / "native" / "build" / "whet-native"
VOCABULARY = 61
CONTEXT = 16


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def start(*arguments: object) -> subprocess.Popen[str]:
    """One thread, so that two runs add in the same order; on a CPU, unless the arguments ask for CUDA."""
    words = [str(PROGRAM), *map(str, arguments)]
    hidden = {} if "cuda" in words else {"CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **hidden}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def call(*arguments: object) -> Outcome:
    process = start(*arguments)
    out, err = process.communicate(timeout=120)
    return Outcome(process.returncode, out, err)


def succeed(*arguments: object) -> str:
    outcome = call(*arguments)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_corpus(
    directory: Path, tokens: np.ndarray, *, training: int, vocab_size: int = VOCABULARY, dtype: str = "uint16"
) -> Path:
    """A corpus as docs/native.md describes it."""
    directory.mkdir()
    data = tokens.astype(f"<u{2 if dtype == 'uint16' else 4}").tobytes()
    (directory / "tokens.bin").write_bytes(data)
    facts = {
        "format": 1,
        "dtype": dtype,
        "tokens": len(tokens),
        "training_tokens": training,
        "vocab_size": vocab_size,
        "characters": {"training": training, "held_out": len(tokens) - training},
        "bytes": {"training": training, "held_out": len(tokens) - training},
        "tokenizer": "none",
        "sha256": hashlib.sha256(data).hexdigest(),
        "source": "random",
    }
    (directory / "corpus.json").write_text(json.dumps(facts), "utf-8")
    return directory


def repetitive(count: int, *, seed: int = 0, vocab_size: int = VOCABULARY) -> np.ndarray:
    """Tokens that depend on the one before, so that there is something to learn."""
    random = np.random.default_rng(seed)
    following = random.integers(0, vocab_size, (vocab_size, 3))
    choices = random.integers(0, 3, count)
    tokens = [0]
    for choice in choices[1:]:
        tokens.append(int(following[tokens[-1], choice]))
    return np.array(tokens)


def step_windows(tokens: np.ndarray, training: int, *, seed: int, step: int, rows: int, context: int) -> Tensor:
    """(rows, context + 1) ids: the definition of the windows of a step, with Python's random numbers."""
    keys = torch.full((rows,), (seed << 32) + step, dtype=torch.int64)
    draws = uniform(keys, torch.arange(rows)).numpy()
    starts = np.floor(draws * (training - context)).astype(np.int64)
    return torch.from_numpy(np.stack([tokens[start : start + context + 1] for start in starts]).astype(np.int64))


def tiny(directory: Path, *, seed: int = 3, scale: float = 1.0, **shape: Any) -> Decoder:
    """A saved GPT-2; `scale` above 1 makes its predictions differ."""
    numbers = {"vocab_size": VOCABULARY, "layers": 3, "heads": 4, "width": 32, "context": CONTEXT, **shape}
    model = new_model("gpt2", seed=seed, **numbers)
    with torch.no_grad():
        for parameter in model.parameters():  # biases that are 0 would hide that one is left out
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
            parameter.mul_(scale)
    directory.mkdir()
    model.save(directory)
    return model
