"""What a run on a text is told before it trains: vocabularies, prompts, paths and rows that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.corpus.texts import invented, written
from whet.config import NewModel
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.documents import CorpusSource, pieces, source_files
from whet.distributed.world import World
from whet.errors import UserError
from whet.recipe import validate
from whet.train.rows.loop import build_trainer
from whet.train.setup.build import build_parts
from whet.train.setup.corpora import named_tokenizer
from whet.train.setup.new_model_shape import new_decoder_config

ALONE = World.init("cpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def recipe(tmp_path: Path, new: dict[str, Any], *, online: bool = False, **changes: Any) -> Any:
    path = written(tmp_path / "text.txt", invented(60))
    loop: dict[str, Any] = {"loop": "offline", "objective": "lm", "batch_size": 4}
    if online:
        loop = {"algorithm": "grpo", "reward": {"tokens": "plus"}, "rollout": {"max_tokens": 4}}
    return validate(
        {
            **loop,
            "steps": 2,
            "model": {"new": {"layers": 1, "heads": 2, "width": 16, "context": 16, **new}},
            "task": {"name": "corpus", "path": str(path), "prompt_characters": 8, "answer_characters": 4},
            "eval": {"every_steps": 2, "examples": 2, "max_tokens": 4},
            "track": [],
            "device": "cpu",
            **changes,
        },
        where="here",
    )


@pytest.mark.parametrize(
    ("vocabulary", "multiple", "rows"), [(65, 64, 128), (64, 64, 64), (128, 64, 128), (1, 64, 64), (65, 1, 65)]
)
def test_an_embedding_is_the_next_multiple_and_no_more(vocabulary: int, multiple: int, rows: int) -> None:
    new = NewModel(layers=1, heads=2, width=16, context=8, vocab_multiple=multiple)
    assert new_decoder_config(new, vocabulary).vocab_size == rows


def test_ids_that_are_no_tokens_are_learned_from_text_and_never_sampled(tmp_path: Path) -> None:
    new = {"tokenizer": "bpe:260", "vocab_multiple": 64}
    trainer = build_trainer(recipe(tmp_path, new), ALONE, lambda _: None)
    assert trainer.parts.policy.vocab_size == 320
    sentence = r"model.new.vocab_multiple 64 gives 320 ids and there are 260 tokens, so rollouts would sample ids"
    with pytest.raises(UserError, match=sentence):
        build_parts(recipe(tmp_path, new, online=True), ALONE)
    exact = build_parts(recipe(tmp_path, new | {"vocab_multiple": 65}, online=True), ALONE)
    assert exact.policy.vocab_size == 260 == 4 * 65


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bpe", r"is bpe without a number of tokens: write bpe:SIZE, e\.g\. bpe:1024"),
        ("bpe:9999999999999", "is bpe:9999999999999, and at most 1,048,576 tokens are learned"),
        ("bpe:99999999999999999999", "at most 1,048,576 tokens are learned: lower it"),
        (f"bpe:{'9' * 5000}", "at most 1,048,576 tokens are learned: lower it"),
        ("bpe:1048577", "at most 1,048,576 tokens are learned: lower it"),
    ],
)
def test_a_vocabulary_that_cannot_be_learned_is_a_sentence(tmp_path: Path, name: str, sentence: str) -> None:
    task = CorpusTask(path=str(written(tmp_path / "text.txt", invented(60))))
    with pytest.raises(UserError, match=sentence):
        named_tokenizer(name, task)


@pytest.mark.parametrize("path", [f"/{'a' * 300}", "a\0b", "~nobody-of-this-name/text"], ids=["long", "null", "user"])
def test_a_path_that_cannot_be_looked_for_is_a_sentence(path: str) -> None:
    with pytest.raises(UserError, match=r"cannot be looked for \(.*\): name a file|no such text"):
        source_files(CorpusSource(path=path))


@pytest.mark.parametrize(("value", "kind"), [(None, "null"), (3, "a number"), (["x"], "a list")])
def test_a_row_whose_text_is_none_is_named(tmp_path: Path, value: Any, kind: str) -> None:
    rows = [{"text": "good"}] * 50 + [{"text": value}]
    path = written(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=rf"t.jsonl:51 has {kind} in the column 'text', and text is expected: repair"):
        list(pieces(CorpusSource(path=str(path))))


def test_prompts_that_leave_no_room_are_refused_before_training(tmp_path: Path) -> None:
    sentence = r"have up to 8 tokens and the model's context has 8, .* lower task.prompt_characters, or raise"
    with pytest.raises(UserError, match=rf"{sentence}.*, or train without evaluation, eval.every_steps=0"):
        build_parts(recipe(tmp_path, {"context": 8}), ALONE)
    with pytest.raises(UserError, match=rf"{sentence} model.new.context$"):
        build_parts(recipe(tmp_path, {"context": 8}, online=True), ALONE)
    build_parts(recipe(tmp_path, {"context": 9}), ALONE)
    build_parts(recipe(tmp_path, {"context": 8}, eval={"every_steps": 0}), ALONE)  # nothing is sampled
