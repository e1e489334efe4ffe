"""A text classifier as a reward: probabilities against transformers' own forward pass, one text at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from tests.cli.tiny import Whet
from tests.small import small_chat_model
from whet.errors import UserError
from whet.models.reward.text_classifier import TextClassifier
from whet.runs.directory import RunDirectory

TEXTS = ["a good film", "dull", "What is 12+34? " * 5, "x"]


def made(directory: Path, labels: dict[int, str]) -> Path:
    """A random classifier with the tokeniser of the small chat model."""
    small_chat_model(directory)
    vocabulary = len(AutoTokenizer.from_pretrained(directory))
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=vocabulary, num_labels=len(labels), id2label=labels, initializer_range=1.0, **shape)
    (directory / "model.safetensors").unlink()
    LlamaForSequenceClassification(config).save_pretrained(directory)
    return directory


def by_hand(directory: Path, text: str, place: int) -> float:
    """The probability by a forward pass of the one text, without padding."""
    model = LlamaForSequenceClassification.from_pretrained(directory).eval()
    ids = AutoTokenizer.from_pretrained(directory)(text, return_tensors="pt").input_ids
    model.config.pad_token_id = -1
    with torch.no_grad():
        logits = model(ids).logits[0]
    return float(logits.exp()[place] / logits.exp().sum()) if len(logits) > 1 else float(1 / (1 + (-logits[0]).exp()))


@pytest.mark.parametrize(
    ("labels", "label", "place"),
    [({0: "NEGATIVE", 1: "POSITIVE"}, "POSITIVE", 1), ({0: "a", 1: "b", 2: "c"}, "a", 0), ({0: "toxic"}, "toxic", 0)],
)
def test_probabilities_of_a_label(tmp_path: Path, labels: dict[int, str], label: str, place: int) -> None:
    directory = made(tmp_path / "model", labels)
    reward = TextClassifier(str(directory), label=label)
    expected = [by_hand(directory, text, place) for text in TEXTS]
    assert reward(prompts=["p"] * 4, completions=TEXTS) == pytest.approx(expected, abs=1e-5)
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert reward(prompts=["p"] * 4, completions=messages, answer=[""] * 4) == pytest.approx(expected, abs=1e-5)
    with_prompt = TextClassifier(str(directory), label=label, with_prompt=True)
    assert with_prompt(prompts=["a go"], completions=["od film"]) == pytest.approx(expected[:1], abs=1e-5)
    assert len({round(value, 4) for value in expected}) == 4


def test_wrong_models_and_labels_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the directory of a model"):
        TextClassifier(str(tmp_path), label="x")(prompts=["p"], completions=["t"])
    directory = made(tmp_path / "model", {0: "NEGATIVE", 1: "POSITIVE"})
    with pytest.raises(UserError, match=r"has no label 'POSITVE'.*\(labels: NEGATIVE, POSITIVE\)"):
        TextClassifier(str(directory), label="POSITVE")(prompts=["p"], completions=["t"])


def test_a_run_is_rewarded_by_it(whet: Whet, tmp_path: Path) -> None:
    directory = made(tmp_path / "model", {0: "NEGATIVE", 1: "POSITIVE"})
    code = "from whet.models.reward.text_classifier import TextClassifier\n"
    (tmp_path / "rewards.py").write_text(f"{code}positive = TextClassifier({str(directory)!r}, label='POSITIVE')\n")
    quick = ["steps=1", "rollout.prompts=2", "eval.examples=2", "track=[]"]
    reward = f"reward.functions=[{tmp_path / 'rewards.py'}:positive]"
    result = whet("train", "grpo-sorting", reward, *quick, "--runs", tmp_path / "runs")
    assert result.code == 0, result.err
    (path,) = (tmp_path / "runs").iterdir()
    row = RunDirectory.open(path, is_writer=False).metrics()[1]
    assert 0 < row["reward/mean"] < 1
