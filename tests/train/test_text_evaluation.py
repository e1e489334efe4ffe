"""Held-out text of a run: documents as in training, nothing of it trained on, bits of bytes and not of characters."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.fake_ranks import on_ranks
from tests.data.corpus.texts import invented, written
from tests.small import small_model
from whet.config import OfflineConfig
from whet.distributed.world import World
from whet.evaluate.held_out_text import HeldOutText, text_metrics
from whet.recipe import validate
from whet.train.rows.loop import build_trainer
from whet.train.rows.text_trainer import TextTrainer, Window
from whet.train.setup.corpora import held_out_text

ALONE = World.init("cpu")
CONTEXT = 16


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def trainer_of(path: Path, objective: str = "lm", family: str = "gpt2", **options: Any) -> TextTrainer:
    task = {"name": "corpus", "path": str(path), "prompt_characters": 2, "answer_characters": 2, **options}
    recipe: dict[str, Any] = {
        "loop": "offline",
        "steps": 6,
        "model": {"new": {"family": family, "layers": 1, "heads": 2, "width": 16, "context": CONTEXT}},
        "task": task,
        "objective": objective,
        "batch_size": 6,
        "eval": {"every_steps": 3, "examples": 2, "max_tokens": 4},
        "track": [],
        "device": "cpu",
    }
    config = validate(recipe, where="here")
    assert isinstance(config, OfflineConfig)
    found = build_trainer(config, ALONE, lambda _: None)
    assert isinstance(found, TextTrainer)
    return found


def short_documents(path: Path) -> Path:
    """Sixty texts of 3 to 7 letters."""
    rows = [{"text": "".join("abcdefgh"[(7 * n + 3 * k) % 8] for k in range(3 + n % 5))} for n in range(60)]
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def held_out_documents(trainer: TextTrainer) -> list[list[int]]:
    """The held-out documents, each with the token that ends it."""
    corpus = trainer.corpus
    bounds = [*corpus.documents.tolist(), corpus.tokens]
    return [corpus.ids[a:b].tolist() for a, b in pairwise(bounds) if a >= corpus.training_tokens]


def test_separate_documents_are_separate_in_evaluation(tmp_path: Path) -> None:
    """Against every part of a document alone: its first token is given, the next ones follow from its own."""
    trainer = trainer_of(short_documents(tmp_path / "d.jsonl"), documents="separate", held_out_share=0.3)
    corpus, policy = trainer.corpus, trainer.parts.policy
    documents, expected, count, place = held_out_documents(trainer), 0.0, 0, corpus.training_tokens
    last = int(corpus.held_out_windows(CONTEXT, most=0)[-1]) + CONTEXT  # the last token that a window covers
    for document in documents:
        for first in range(place, place + len(document)):
            is_window = (first - corpus.training_tokens) % CONTEXT == 0
            if first != place and not is_window:
                continue
            nearest = place + len(document) - 1
            end = min(nearest, first + CONTEXT - (first - corpus.training_tokens) % CONTEXT, last)
            if end <= first:
                continue
            ids = torch.tensor([corpus.ids[first : end + 1].tolist()])
            logits = policy(ids[:, :-1], torch.tensor([end - first])).detach().double()
            expected -= float(logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).sum())
            count += end - first
        place += len(document)
    found = trainer.parts.measure(policy)
    assert found["eval/loss"] == pytest.approx(expected / count, abs=1e-5)
    joined = trainer_of(tmp_path / "d.jsonl", documents="joined", held_out_share=0.3).parts
    assert joined.measure(joined.policy)["eval/loss"] != pytest.approx(found["eval/loss"], abs=1e-4)


def test_evaluation_reads_windows_as_training_does(tmp_path: Path) -> None:
    """The loss of a step whose windows are the held-out ones is the held-out loss, separate or joined."""
    path = short_documents(tmp_path / "d.jsonl")
    for documents in ("separate", "joined"):
        trainer = trainer_of(path, documents=documents, held_out_share=0.3)
        measured = trainer.parts.measure(trainer.parts.policy)["eval/loss"]
        starts = trainer.corpus.held_out_windows(CONTEXT, most=0).tolist()
        metrics, _ = trainer.fit([Window(1, row, start) for row, start in enumerate(starts)])
        assert measured == pytest.approx(metrics["loss"], abs=1e-5), documents


def test_separate_documents_are_separate_where_tokens_are_masked(tmp_path: Path) -> None:
    trainer = trainer_of(short_documents(tmp_path / "d.jsonl"), "denoise", "llama", documents="separate")
    corpus = trainer.corpus
    text = held_out_text(corpus, CONTEXT, most=0, given=0, separate=True)
    assert text.parts is not None
    starts = corpus.held_out_windows(CONTEXT, most=0)
    begins = {int(starts[window] + first) for window, first, _ in text.parts.tolist()}
    assert begins == {
        *starts.tolist(),
        *(one for one in corpus.documents.tolist() if one in range(min(begins), starts[-1] + CONTEXT)),
    }
    assert int((text.parts[:, 2] - text.parts[:, 1]).sum()) == CONTEXT * len(starts)  # every token, the first ones too
    assert trainer.parts.measure(trainer.parts.policy)["eval/windows"] == len(text.parts) > len(starts)


def test_parts_of_documents_by_hand(tmp_path: Path) -> None:
    corpus = trainer_of(short_documents(tmp_path / "d.jsonl")).corpus
    documents = corpus.documents.tolist()[:3]  # of 3, 4 and 5 letters, with their ends of 4, 5 and 6 tokens
    assert documents == [0, 4, 9]
    starts = np.array([0, 3])
    assert corpus.parts(starts, 9, shortest=1).tolist() == [[0, 0, 4], [0, 4, 9], [1, 0, 1], [1, 1, 6], [1, 6, 9]]
    assert corpus.parts(starts, 9, shortest=2).tolist() == [[0, 0, 4], [0, 4, 9], [1, 1, 6], [1, 6, 9]]


def test_no_window_of_training_reaches_held_out_text(tmp_path: Path) -> None:
    """Half of the text is held out: windows drawn from all of it would be noticed at once."""
    trainer = trainer_of(written(tmp_path / "t.txt", invented(20)), held_out_share=0.5)
    ends = [row.start + CONTEXT for step in range(1, 200) for row in trainer.rows(step)]
    training = trainer.corpus.training_tokens
    assert max(ends) < training
    assert max(ends) > 0.95 * training  # and they reach to its end


def test_bits_per_byte_of_text_with_longer_characters(tmp_path: Path) -> None:
    """ "aé€" has three characters of one, two and three bytes: a byte has half of a character's bits."""
    trainer = trainer_of(written(tmp_path / "t.txt", "aé€" * 200))
    found = trainer.parts.measure(trainer.parts.policy)
    bits = found["eval/loss"] / math.log(2)
    assert found["eval/bits_per_character"] == pytest.approx(bits)
    assert found["eval/bits_per_byte"] == pytest.approx(bits / 2, rel=0.02)
    masked = trainer_of(tmp_path / "t.txt", "denoise", "llama").parts
    told = masked.measure(masked.policy)
    assert told["eval/bound_bits_per_byte"] == pytest.approx(told["eval/bound_bits_per_character"] / 2, rel=0.02)


def test_ranks_read_parts_of_documents_as_one_process_does() -> None:
    policy, _ = small_model("gpt2", context=8)
    windows = torch.randint(0, policy.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    parts = torch.tensor([[0, 0, 9], [1, 0, 2], [1, 2, 9], [2, 1, 4], [2, 4, 9]])
    text = HeldOutText(windows=windows, tokens_per_character=1.0, tokens_per_byte=1.0, parts=parts)
    found = text_metrics(policy, text, ALONE)
    assert found["eval/windows"] == 5
    for size in (2, 7):  # with seven, two have nothing to read
        for ranked in on_ranks(size, lambda world: text_metrics(policy, text, world)):
            assert ranked == pytest.approx(found, abs=1e-6)
