"""Any Hugging Face text classifier as a reward function: the probability of one of its labels."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from whet.errors import UserError, nearest

BATCH = 32  # texts of a forward pass


class TextClassifier:
    """A reward function: the probability that a text has a label, by AutoModelForSequenceClassification.

    In rewards.py: `positive = TextClassifier("path/of/the/model", label="POSITIVE")`; in the recipe
    `reward.functions=[rewards.py:positive]`. The model is loaded at the first call, from local files alone.
    """

    def __init__(self, directory: str, *, label: str, with_prompt: bool = False, max_tokens: int = 512) -> None:
        self._directory = Path(directory).expanduser()
        self._label, self._with_prompt, self._max_tokens = label, with_prompt, max_tokens

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        openings = prompts if self._with_prompt else [""] * len(completions)
        texts = [plain(before) + plain(text) for before, text in zip(openings, completions, strict=True)]
        return [score for start in range(0, len(texts), BATCH) for score in self._scores(texts[start : start + BATCH])]

    def _scores(self, texts: list[str]) -> list[float]:
        tokenizer, model, place = self._loaded
        inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=self._max_tokens)
        with torch.no_grad():
            logits = model(**inputs).logits.float()
        several = logits.shape[-1] > 1
        probabilities = logits.softmax(-1)[:, place] if several else logits.sigmoid()[:, 0]
        return [float(value) for value in probabilities]

    @cached_property
    def _loaded(self) -> tuple[Any, Any, int]:
        """The tokeniser, the model, and the place of the label among its outputs."""
        if not (self._directory / "config.json").is_file():
            raise UserError(f"{self._directory} is not the directory of a model: it has no config.json")
        try:
            tokenizer = AutoTokenizer.from_pretrained(self._directory, local_files_only=True)
            model = AutoModelForSequenceClassification.from_pretrained(self._directory, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{self._directory} is not a text classifier that transformers loads: {reason}") from error
        labels = {str(name): int(place) for place, name in model.config.id2label.items()}
        if self._label not in labels:
            raise UserError(
                f"{self._directory} has no label {self._label!r}{nearest(self._label, labels)} "
                f"(labels: {', '.join(labels)})"
            )
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        if model.config.pad_token_id is None:
            model.config.pad_token_id = tokenizer.pad_token_id
        return tokenizer, model.train(False), labels[self._label]


def plain(text: Any) -> str:
    """A prompt or completion as text: of messages the contents."""
    return text if isinstance(text, str) else "\n".join(str(message["content"]) for message in text)
