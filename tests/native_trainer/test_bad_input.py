"""Damaged, hostile and wrong input ends with one line that says what is wrong, never with a crash."""

import json
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.native_trainer.program import CONTEXT, VOCABULARY, Outcome, call, repetitive, succeed, tiny, write_corpus

pytestmark = pytest.mark.native

WORD = "transformer.wte.weight"
NORM = "transformer.ln_f.weight"


class Place:
    """A model and a corpus, to be damaged."""

    def __init__(self, path: Path) -> None:
        self.path, self.config, self.weights = path, path / "model/config.json", path / "model/model.safetensors"
        self.corpus, self.tokens = path / "corpus/corpus.json", path / "corpus/tokens.bin"
        tiny(path / "model")
        write_corpus(path / "corpus", repetitive(600), training=500)

    def set(self, file: Path, **keys: Any) -> None:
        """Replaces keys of a JSON file; `...` removes one."""
        content = {**json.loads(file.read_text()), **keys}
        file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))

    def tensors(self, **changed: Any) -> None:
        """Replaces tensors by name; None removes one."""
        content = {**load_file(self.weights), **changed}
        save_file({name: tensor for name, tensor in content.items() if tensor is not None}, self.weights)

    def header(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Changes the header of the weights, whose data stays as it is."""
        data = self.weights.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        self.weights.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    def train(self, *more: object) -> Outcome:
        return call("train", "--model", self.path / "model", "--data", self.path / "corpus", *more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def assert_one_line(outcome: Outcome, code: int, *fragments: str) -> None:
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err[:-1].isprintable(), outcome.err
    for fragment in fragments:
        assert fragment in outcome.err, outcome.err


def first_bytes(place: Place, length: int) -> None:
    data = place.weights.read_bytes()
    place.weights.write_bytes(struct.pack("<Q", length) + data[8:])


def sparse_header(place: Place) -> None:
    first_bytes(place, 2**26)
    os.truncate(place.weights, 2**26 + 8)


def fifo(place: Place) -> None:
    place.weights.unlink()
    os.mkfifo(place.weights)


def same_offsets(header: dict[str, Any]) -> None:
    vectors = [entry for entry in header.values() if entry.get("shape") == [32]]
    vectors[1]["data_offsets"] = vectors[0]["data_offsets"]


def moved(header: dict[str, Any]) -> None:
    last = max((entry for entry in header.values() if "shape" in entry), key=lambda entry: entry["data_offsets"][1])
    del header[next(name for name, entry in header.items() if entry is last)]


WRONG_MODELS: dict[str, tuple[Callable[[Place], object], tuple[str, ...]]] = {
    "no config": (lambda p: p.config.unlink(), ("config.json cannot be read: No such file",)),
    "config is a directory": (lambda p: (p.config.unlink(), p.config.mkdir()), ("is no regular file",)),
    "empty config": (lambda p: p.config.write_text(""), ("config.json is not valid JSON", "byte 0")),
    "cut config": (lambda p: p.config.write_text(p.config.read_text()[:50]), ("is not valid JSON",)),
    "config is a list": (lambda p: p.config.write_text("[]"), ("is no JSON object",)),
    "deep config": (lambda p: p.config.write_text("[" * 10**6), ("more than 64 levels",)),
    "deep objects": (lambda p: p.config.write_text('{"a":' * 10**6), ("more than 64 levels",)),
    "nan": (lambda p: p.set(p.config, layer_norm_epsilon=float("nan")), ("is not valid JSON",)),
    "number without end": (lambda p: p.set(p.config, layer_norm_epsilon=10**400), ("expected a finite number",)),
    "same key twice": (lambda p: p.config.write_text('{"n_embd": 1, "n_embd": 2}'), ("'n_embd' stands twice",)),
    "not UTF-8": (lambda p: p.config.write_bytes(b'{"\xff": 1}'), ("invalid UTF-8",)),
    "half a surrogate": (lambda p: p.config.write_text('{"\\ud800": 1}'), ("half of a surrogate pair",)),
    "other family": (lambda p: p.set(p.config, model_type="llama"), ("'model_type'", "only gpt2")),
    "no model_type": (lambda p: p.set(p.config, model_type=...), ("'model_type' is missing",)),
    "other activation": (lambda p: p.set(p.config, activation_function="relu"), ("'activation_function'", "gelu_new")),
    "text for a number": (lambda p: p.set(p.config, n_layer="3"), ("'n_layer'", "expected a whole number")),
    "fraction": (lambda p: p.set(p.config, n_layer=1.5), ("'n_layer'", "expected a whole number")),
    "giant": (lambda p: p.set(p.config, n_layer=2**40), ("'n_layer'", "expected a whole number from 1 to 16384")),
    "uneven heads": (lambda p: p.set(p.config, n_head=5), ("'n_embd'", "5 heads")),
    "unscaled attention": (lambda p: p.set(p.config, scale_attn_weights=False), ("'scale_attn_weights'",)),
    "quantised": (lambda p: p.set(p.config, quantization_config={"bits": 4}), ("use the original weights",)),
    "no weights": (lambda p: p.weights.unlink(), ("model.safetensors cannot be read: No such file",)),
    "a pipe": (fifo, ("model.safetensors is no regular file",)),
    "empty weights": (lambda p: p.weights.write_bytes(b""), ("no safetensors header",)),
    "cut weights": (lambda p: os.truncate(p.weights, p.weights.stat().st_size - 4), ("lies outside of the file",)),
    "longer weights": (lambda p: os.truncate(p.weights, p.weights.stat().st_size + 4), ("4 bytes after the last",)),
    "endless header": (lambda p: first_bytes(p, 2**63), ("its header ends after the file",)),
    "large header": (sparse_header, ("header of 67108864 bytes",)),
    "no header": (lambda p: first_bytes(p, 0), ("header of", "not valid JSON")),
    "header is a list": (lambda p: p.weights.write_bytes(struct.pack("<Q", 2) + b"[]"), ("is no JSON object",)),
    "overlapping tensors": (lambda p: p.header(same_offsets), ("overlap",)),
    "bytes of no tensor": (lambda p: p.header(moved), ("bytes after the last tensor",)),
    "negative offset": (lambda p: p.header(lambda h: h[WORD].update(data_offsets=[-4, 4])), (WORD, "outside of the")),
    "text for an offset": (lambda p: p.header(lambda h: h[WORD].update(data_offsets=["0", []])), (WORD, "outside")),
    "no offsets": (lambda p: p.header(lambda h: h[WORD].pop("data_offsets")), (WORD, "no data_offsets")),
    "backwards": (lambda p: p.header(lambda h: h[WORD]["data_offsets"].reverse()), (WORD, "lies outside of the file")),
    "wrong size": (lambda p: p.header(lambda h: h[NORM].update(shape=[31])), (NORM, "needs 124")),
    "overflow": (lambda p: p.header(lambda h: h[NORM].update(shape=[2**62, 2**62])), (NORM, "impossible shape")),
    "negative shape": (lambda p: p.header(lambda h: h[NORM].update(shape=[-32])), (NORM, "impossible shape")),
    "no dtype": (lambda p: p.header(lambda h: h[NORM].pop("dtype")), (NORM, "'dtype' is missing")),
    "unknown dtype": (lambda p: p.header(lambda h: h[NORM].update(dtype="F3")), (NORM, "unknown dtype 'F3'")),
    "integers": (lambda p: p.tensors(**{NORM: torch.ones(32, dtype=torch.int32)}), (NORM, "is I32", "only F32")),
    "doubles": (lambda p: p.tensors(**{NORM: torch.ones(32, dtype=torch.float64)}), (NORM, "is F64", "only F32")),
    "other shape": (
        lambda p: p.tensors(**{NORM: torch.ones(33)}),
        (NORM, "has shape (33,), config.json implies (32,)"),
    ),
    "a tensor is missing": (lambda p: p.tensors(**{NORM: None}), (f"lacks tensor '{NORM}'",)),
    "a tensor too many": (lambda p: p.tensors(extra=torch.ones(1)), ("unexpected tensor 'extra'",)),
    "control characters": (lambda p: p.tensors(**{"a\x1b[2J\nb": torch.ones(1)}), (r"a\x1b[2J\x0ab",)),
    "two heads": (
        lambda p: p.tensors(**{"lm_head.weight": torch.ones(VOCABULARY, 32)}),
        ("has its own lm_head.weight", "tie_word_embeddings"),
    ),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_wrong_models(place: Place, case: str) -> None:
    damage, fragments = WRONG_MODELS[case]
    damage(place)
    assert_one_line(place.train("--steps", 1, "--out", place.path / "run"), 1, *fragments)
    assert not (place.path / "run").exists()  # nothing is left behind


WRONG_CORPORA: dict[str, tuple[Callable[[Place], object], tuple[str, ...]]] = {
    "no tokens": (lambda p: p.tokens.unlink(), ("tokens.bin cannot be read",)),
    "no description": (lambda p: p.corpus.unlink(), ("corpus.json cannot be read",)),
    "cut description": (lambda p: p.corpus.write_text("{"), ("corpus.json is not valid JSON",)),
    "other format": (lambda p: p.set(p.corpus, format=2), ("'format'",)),
    "other dtype": (lambda p: p.set(p.corpus, dtype="int8"), ("'dtype' is 'int8': expected uint16 or uint32",)),
    "wrong dtype": (lambda p: p.set(p.corpus, dtype="uint32"), ("tokens.bin has 1200 bytes", "600 tokens of uint32")),
    "cut tokens": (lambda p: os.truncate(p.tokens, 1199), ("tokens.bin has 1199 bytes",)),
    "no vocabulary": (lambda p: p.set(p.corpus, vocab_size=...), ("'vocab_size' is missing",)),
    "more training tokens": (lambda p: p.set(p.corpus, training_tokens=601), ("'training_tokens'", "from 0 to 600")),
    "id of no token": (lambda p: p.set(p.corpus, vocab_size=9), ("but corpus.json says vocab_size 9",)),
    "too few tokens": (lambda p: p.set(p.corpus, training_tokens=CONTEXT), ("too few for a context of 16",)),
    "other tokenizer": (
        lambda p: (
            p.set(p.corpus, vocab_size=60_000),
            p.tokens.write_bytes(p.tokens.read_bytes()[:-2] + struct.pack("<H", 59_999)),
        ),
        ("has id 59999, but the model has a vocabulary of 61",),
    ),
}


@pytest.mark.parametrize("case", WRONG_CORPORA)
def test_wrong_corpora(place: Place, case: str) -> None:
    damage, fragments = WRONG_CORPORA[case]
    damage(place)
    assert_one_line(place.train("--steps", 1, "--out", place.path / "run"), 1, *fragments)
    assert not (place.path / "run").exists()


USUAL = ("--model", "m", "--data", "d", "--out", "o")
WRONG_USAGE: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "no command": ((), ("a command is missing: choose eval, sample, train",)),
    "unknown command": (("trian",), ("unknown command 'trian': did you mean train?",)),
    "unknown flag": (("train", "--step", 3), ("unknown flag '--step': did you mean --steps?",)),
    "flag of another command": (("eval", "--prompt-ids", 3), ("unknown flag '--prompt-ids'",)),
    "control characters": (("train", "--\x1b[2J", 3), (r"\x1b[2J",)),
    "no value": (("train", *USUAL, "--steps"), ("--steps needs a value",)),
    "empty value": (("train", *USUAL, "--steps="), ("--steps is missing",)),
    "twice": (("train", "--lr", 1, "--lr=2"), ("--lr is given twice",)),
    "no flag": (("train", "model"), ("unexpected 'model'",)),
    "no steps": (("train", *USUAL), ("--steps is missing: write --steps N",)),
    "fraction": (("train", *USUAL, "--steps", "1.5"), ("--steps is '1.5': expected a whole number",)),
    "hexadecimal": (("train", *USUAL, "--steps", "0x10"), ("--steps is '0x10'",)),
    "too many": (("train", *USUAL, "--steps", 10**30), ("--steps",)),
    "negative": (("train", *USUAL, "--steps", -1), ("--steps is '-1'",)),
    "nan": (("train", *USUAL, "--steps", 1, "--lr", "nan"), ("--lr is 'nan': expected a number",)),
    "beta of 1": (("train", *USUAL, "--steps", 1, "--beta1", 1), ("--beta1 is '1'",)),
    "schedule": (("train", *USUAL, "--steps", 1, "--schedule", "cos"), ("choose constant, linear, cosine",)),
    "device": (("train", *USUAL, "--steps", 1, "--device", "tpu"), ("--device is 'tpu': choose cpu, cuda, auto",)),
    "both": (("train", *USUAL, "--steps", 1, "--config", "c"), ("either --model DIR", "or --config FILE")),
    "neither": (("train", "--data", "d", "--out", "o", "--steps", 1), ("either --model DIR",)),
    "changed run": (("train", "--resume", "r", "--lr", 1), ("--lr is of the run that is resumed: leave it out",)),
    "no ids": (("sample", "--model", "m", "--prompt-ids", "1,,2"), ("--prompt-ids is '1,,2'",)),
    "seed": (("train", *USUAL, "--steps", 1, "--seed", 2**31), ("--seed is '2147483648'",)),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage(case: str) -> None:
    arguments, fragments = WRONG_USAGE[case]
    assert_one_line(call(*arguments), 2, *fragments)


def test_limits_of_model_and_machine(place: Place) -> None:
    model, run = place.path / "model", place.path / "run"
    assert_one_line(place.train("--steps", 1, "--out", run, "--context", 17), 1, "--context is 17", "context of 16")
    assert_one_line(place.train("--steps", 1, "--out", place.tokens / "run"), 1, "cannot be made")
    place.set(place.corpus, training_tokens=590)
    assert_one_line(place.train("--steps", 1, "--out", run, "--eval-every", 1), 1, "too few held-out tokens")
    assert_one_line(call("eval", "--model", model, "--data", place.path / "corpus"), 1, "has 10 held-out tokens")
    sample = ("sample", "--model", model, "--prompt-ids")
    assert_one_line(call(*sample, "1,61"), 1, "has id 61, but the model has a vocabulary of 61")
    assert_one_line(call(*sample, "1,2", "--max-tokens", 15), 1, "exceed the model's context of 16")
    place.set(place.config, n_embd=2**20, n_head=1, vocab_size=2**24)
    new = ("train", "--config", place.config, "--data", place.path / "corpus", "--steps", 1, "--out", run)
    assert_one_line(call(*new), 1, "out of memory")
    assert not run.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(place: Place) -> None:
    outcome = place.train("--steps", 1, "--out", place.path / "run", "--device", "cuda")
    assert_one_line(outcome, 1, "finds no CUDA device; use --device cpu")


def test_a_loss_that_is_not_finite_takes_no_step(place: Place) -> None:
    outcome = place.train("--steps", 9, "--out", place.path / "run", "--lr", 1e30, "--schedule", "constant")
    assert_one_line(outcome, 1, "no step was taken: lower --lr")
    saved = load_file(place.path / "run/checkpoints/step-0/model.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in saved.values())


def checkpoint(place: Place) -> Path:
    return place.path / "run/checkpoints/step-2"


WRONG_RUNS: dict[str, tuple[Callable[[Place], object], tuple[str, ...]]] = {
    "no run": (lambda p: (p.path / "run/run.json").unlink(), ("has no run.json",)),
    "cut run.json": (lambda p: (p.path / "run/run.json").write_text("{"), ("run.json is not valid JSON",)),
    "unknown argument": (
        lambda p: p.set(p.path / "run/run.json", arguments={"--speed": "9"}),
        ("run.json has an unknown argument '--speed'",),
    ),
    "other corpus": (lambda p: p.set(p.corpus, sha256="0"), ("is not the corpus that the run was started with",)),
    "no state": (lambda p: (checkpoint(p) / "state.json").unlink(), ("state.json cannot be read",)),
    "wrong state": (lambda p: p.set(checkpoint(p) / "state.json", step="2"), ("state.json: 'step'",)),
    "no moments": (lambda p: (checkpoint(p) / "optimizer.safetensors").unlink(), ("optimizer.safetensors cannot",)),
    "cut moments": (lambda p: os.truncate(checkpoint(p) / "optimizer.safetensors", 9999), ("outside of the file",)),
    "other moments": (
        lambda p: save_file({"exp_avg/x": torch.ones(1)}, checkpoint(p) / "optimizer.safetensors"),
        ("lacks tensor 'exp_avg/",),
    ),
    "cut metrics": (lambda p: os.truncate(p.path / "run/metrics.jsonl", 9), ("metrics.jsonl is shorter",)),
    "no checkpoints": (
        lambda p: [(path / "x").parent.rename(p.path / path.name) for path in (p.path / "run/checkpoints").iterdir()],
        ("has no checkpoint: start the run again",),
    ),
}


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_wrong_runs(place: Place, case: str) -> None:
    assert place.train("--steps", 4, "--out", place.path / "run", "--stop-after", 2).code == 0
    damage, fragments = WRONG_RUNS[case]
    damage(place)
    assert_one_line(call("train", "--resume", place.path / "run"), 1, *fragments)


def test_a_run_is_not_overwritten(place: Place) -> None:
    assert place.train("--steps", 1, "--out", place.path / "run").code == 0
    before = (place.path / "run/metrics.jsonl").read_bytes()
    assert_one_line(place.train("--steps", 1, "--out", place.path / "run"), 1, "has a run already: continue it with")
    assert (place.path / "run/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("seed", range(24))
def test_random_damage_never_crashes(place: Place, seed: int) -> None:
    """Bytes of a header or a description are replaced, removed and doubled: an answer or one line, never a signal."""
    chance = random.Random(seed)
    file = chance.choice([place.config, place.weights, place.weights, place.corpus])
    data = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(min(len(data), 4000))
        damage = chance.choice([bytes([chance.randrange(256)]), b"", b"9", b'"', b"{", bytes(data[at : at + 40])])
        data[at : at + 1] = damage
    file.write_bytes(bytes(data))
    outcome = call("eval", "--model", place.path / "model", "--data", place.path / "corpus")
    assert outcome.code in (0, 1), outcome
    assert outcome.err.count("\n") == outcome.code, outcome


def test_help_names_every_flag() -> None:
    for command in ("train", "eval", "sample"):
        text = succeed(command, "--help")
        assert text.startswith(f"whet-native {command}\n")
        assert "--model DIR" in text
        assert text in succeed("--help")
