"""Caches of text and tokens: their keys, sources that change, manifests that lie, processes that are killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.data.corpus.texts import invented, written
from whet.data.corpus import text_store as store_module
from whet.data.corpus.corpus_task import CorpusTask
from whet.data.corpus.documents import CorpusSource, pieces
from whet.data.corpus.text_store import STALE, TextStore, text_store
from whet.data.corpus.token_file import TokenFile, cached_token_file, read_token_file
from whet.errors import RunFailed, UserError
from whet.models.text.tokenizers import character_tokenizer
from whet.models.text.trained_bpe import train_bpe
from whet.train.setup import corpora
from whet.train.setup.corpora import named_tokenizer, token_file, tokenize_to


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def stored(path: Path, *, share: float = 0.25, limit: int | None = None) -> TextStore:
    return text_store(CorpusSource(path=str(path), limit=limit), held_out_share=share)


def encoded(store: TextStore) -> TokenFile:
    tokenizer = character_tokenizer(store.alphabet)
    facts: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "eos": tokenizer.eos}
    return cached_token_file(store, tokenizer.encode, **facts, tokenizer="characters", source="here")


def three_rows(path: Path) -> Path:
    return written(path, "".join(json.dumps({"text": text}) + "\n" for text in ("abc", "de", "fghi")))


# --- what is in a key --------------------------------------------------------------------------------------------


def test_tokens_of_another_split_are_others(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "abcdefgh")
    assert [encoded(stored(path, share=share)).training_tokens for share in (0.25, 0.5)] == [6, 4]


def test_tokens_of_another_tokeniser_of_the_same_size_are_others(tmp_path: Path) -> None:
    text = invented(40)
    task = CorpusTask(path=str(written(tmp_path / "t.txt", text)), prompt_characters=4, answer_characters=4)
    for tokenizer in (train_bpe([text], 270), train_bpe(["zebras quiz foxes " * 30], 270)):
        assert tokenizer.vocab_size == 270
        assert tokenizer.decode(token_file(task, tokenizer).ids.tolist()) == text


def test_a_text_of_fewer_documents_is_another(tmp_path: Path) -> None:
    path = three_rows(tmp_path / "t.jsonl")
    found = [stored(path, limit=limit) for limit in (2, None, 2)]
    assert [store.documents for store in found] == [2, 3, 2]
    assert [store.data[:] for store in found] == [b"abcde", b"abcdefghi", b"abcde"]


# --- a source that changes ---------------------------------------------------------------------------------------


def test_a_text_that_changes_while_it_is_read_is_not_kept_under_its_old_checksum(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "t.txt", "first text")

    def changing(source: CorpusSource) -> Any:
        written(path, "other text")  # after the checksum, before it is read
        return pieces(source)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "pieces", changing)
        with pytest.raises(RunFailed, match=r"t.txt changed while its text was read: try again"):
            stored(path)
    assert list((home / "corpora").iterdir()) == []
    written(path, "first text")
    assert stored(path).data[:] == b"first text"


# --- manifests that lie ------------------------------------------------------------------------------------------

LIES: list[tuple[str, Any, str]] = [
    ("training_tokens", 5, "training_tokens is 5, where no document begins"),
    ("training_tokens", 99, "training_tokens is 99, where no document begins"),
    ("training_tokens", -3, "training_tokens is -3, not a count"),
    ("training_tokens", "3", "training_tokens is '3', not a count"),
    ("tokens", 7, r"7 tokens of uint16, and tokens.bin has 24 bytes"),
    ("tokens", True, "tokens is True, not a count"),
    ("dtype", "uint32", r"12 tokens of uint32, and tokens.bin has 24 bytes"),
    ("dtype", ["uint16"], "is of another format"),
    ("vocab_size", 2.5, "vocab_size is 2.5, not a count"),
    ("characters", [1, 2], r"characters is \[1, 2\], not a count of each side"),
    ("bytes", {"training": 5}, "not a count of each side"),
    ("bytes", {"training": 5, "held_out": None}, "not a count of each side"),
    ("source", None, "source is None, not a text"),
    ("sha256", 3, "damaged"),
]


@pytest.mark.parametrize(("key", "lie", "sentence"), LIES, ids=[f"{key}={lie}" for key, lie, _ in LIES])
def test_a_manifest_that_lies_is_refused_and_a_cache_built_again(
    tmp_path: Path, key: str, lie: Any, sentence: str
) -> None:
    store = stored(three_rows(tmp_path / "t.jsonl"), share=0.3)
    found = encoded(store)
    assert (found.tokens, found.training_tokens, found.documents.tolist()) == (12, 7, [0, 4, 7])
    path = found.directory / "corpus.json"
    truth = path.read_text()
    path.write_text(json.dumps(json.loads(truth) | {key: lie}))
    with pytest.raises(UserError, match=sentence):
        read_token_file(found.directory)
    assert encoded(store).training_tokens == 7
    assert path.read_text() == truth


@pytest.mark.parametrize(
    ("key", "lie"),
    [("size", "9"), ("size", 8), ("size", None), ("documents", 2), ("documents", [3]), ("alphabet", 3)],
)
def test_facts_of_a_text_that_lie_are_written_again(tmp_path: Path, home: Path, key: str, lie: Any) -> None:
    path = three_rows(tmp_path / "t.jsonl")
    expected = stored(path)
    (facts,) = (home / "corpora").glob("*/text.json")
    truth = facts.read_text()
    facts.write_text(json.dumps(json.loads(truth) | {key: lie}))
    assert stored(path) == expected
    assert facts.read_text() == truth


# --- processes that are killed -----------------------------------------------------------------------------------


def test_leftovers_of_killed_processes_are_removed_after_a_day(tmp_path: Path, home: Path) -> None:
    old, young, writing = (home / "corpora" / f".building-{name}" for name in ("old", "young", "writing"))
    for left in (old, young, writing):
        written(left / "text-2-x" / "text.utf8", "half")
    long_ago = time.time() - STALE - 60
    for path in (old / "text-2-x" / "text.utf8", *((left / "text-2-x") for left in (old, writing)), old, writing):
        os.utime(path, (long_ago, long_ago))
    encoded(stored(three_rows(tmp_path / "t.jsonl")))
    assert not old.exists()
    assert young.exists()
    assert writing.exists()  # its file is of now


def test_tokens_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, place = CorpusTask(path=str(three_rows(tmp_path / "t.jsonl"))), tmp_path / "deep" / "tokens"

    def killed(directory: Path, *_: Any, **__: Any) -> None:
        (directory / "tokens.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpora, "write_token_file", killed)
        with pytest.raises(KeyboardInterrupt):
            tokenize_to(place, task, "characters")
    assert not place.exists()
    place.mkdir()  # an empty one may be named
    assert tokenize_to(place, task, "characters").tokens == 12
    assert {file.name for file in place.iterdir()} >= {"tokens.bin", "documents.bin", "corpus.json", "tokenizer.json"}
    with pytest.raises(UserError, match="exists and is not empty: name another directory"):
        tokenize_to(place, task, "characters")
    with pytest.raises(UserError, match=r"tokens holds the tokens .* name the text itself, .*model\.new\.tokenizer="):
        stored(place)
    assert named_tokenizer(str(place), task).vocab_size == 10  # nine letters and the end
    written(tmp_path / "file", "")
    with pytest.raises(UserError, match=r"cannot write the tokens of .*: name another directory"):
        tokenize_to(tmp_path / "file" / "tokens", task, "characters")
